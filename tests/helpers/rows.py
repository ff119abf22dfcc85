"""Rows of both tasks, and files of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PAIRS = [("Hello there.", "Hallo du."), ('He said "no".', "Er sagte „nein“."), ("Go!", "Geh!")]
LABELS = ["balance", "card_lost", "weather"]


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def tsv(rows: Sequence[tuple[str, ...]], header: tuple[str, ...] = ("en", "de")) -> str:
    return "".join("\t".join(row) + "\n" for row in [header, *rows])
