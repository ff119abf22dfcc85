"""SHA-256 of files and texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_text(text: str) -> str:
    """Hex SHA-256 of a text in UTF-8."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def sha256_below(directory: Path) -> dict[str, str]:
    """Hex SHA-256 of all files below a directory, by their paths from there."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {path.relative_to(directory).as_posix(): sha256_of(path) for path in files}


def fingerprint(paths: Iterable[Path]) -> str:
    """One SHA-256 over the names and contents of several files."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.name}:{sha256_of(path)}\n".encode())
    return digest.hexdigest()
