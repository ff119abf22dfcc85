"""Results that hold a section for each machine they were measured on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from compressor.throughput.hardware import describe


def title_of(threads: int, device: str = "cpu") -> str:
    """The section of this machine."""
    hardware = describe()
    count = f"{threads} thread{'s' if threads > 1 else ''}"
    return f"{hardware['cpu']}, {hardware.get('instructions', '')}, {count}, {device}"


def write_section(path: Path, title: str, rows: list[Any]) -> dict[str, list[Any]]:
    """Write one machine's rows and keep those of others; all sections, by title."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found[title] = rows
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return found
