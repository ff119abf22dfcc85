"""SHA-256 of files and texts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from compressor.storage.input_files import MIB

_REPORTED_MIB = 64


def sha256_of(path: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> str:
    """Hex SHA-256 of a file's bytes; `progress` is called with MiB done and in all, if large."""
    digest, done = hashlib.sha256(), 0
    total = -(-path.stat().st_size // MIB)
    with path.open("rb") as file:
        while piece := file.read(MIB):
            digest.update(piece)
            done += 1
            if done % _REPORTED_MIB == 0:
                progress(min(done, total), total)
    return digest.hexdigest()


def sha256_of_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def sha256_below(directory: Path) -> dict[str, str]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {path.relative_to(directory).as_posix(): sha256_of(path) for path in files}


def fingerprint(paths: Iterable[Path]) -> str:
    """One SHA-256 over the names and contents of several files."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.name}:{sha256_of(path)}\n".encode())
    return digest.hexdigest()
