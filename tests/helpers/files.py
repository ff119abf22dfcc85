"""Files of rows, some packed by the formats' own programs."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

PAIRS = [("Hello there.", "Hallo du."), ('He said "no".', "Er sagte „nein“."), ("Go!", "Geh!")]
LABELS = ["balance", "card_lost", "weather"]


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def tsv(rows: Sequence[tuple[str, ...]], header: tuple[str, ...] = ("en", "de")) -> str:
    return "".join("\t".join(row) + "\n" for row in [header, *rows])


PACK: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".zst": lambda data: zstd().compress(data),
}


def zstd() -> Any:
    own = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    return importlib.import_module(own)


def packed(path: Path, content: str) -> Path:
    """Write a file, packed as its last suffix says."""
    path.write_bytes(PACK.get(path.suffix.lower(), PACK[""])(content.encode("utf-8")))
    return path


def cut_off(path: Path, content: str) -> Path:
    """A packed file that lacks its end, as after a download that was stopped."""
    packed(path, content)
    path.write_bytes(path.read_bytes()[:-9])
    return path


def jsonl(objects: Iterable[Mapping[str, object]]) -> str:
    return "".join(json.dumps(x, ensure_ascii=False) + "\n" for x in objects)
