"""Hashes, atomic writes, and checks of where output goes before anything is computed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from compressor.errors import InputError


def require_directory(directory: Path, option: str = "--output") -> None:
    """Check that `directory` can be written to, or created; leave nothing behind.

    Raises:
        InputError: it or one of its parents is a file, or the file system refuses.
    """
    existing = directory.absolute()
    try:
        while not existing.exists():
            existing = existing.parent
        if not existing.is_dir():
            raise InputError(
                f"cannot write {directory}, because {existing} is a file; choose another {option}",
                id="output-not-writable",
            )
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise InputError(
            f"cannot write {directory}: {error.strerror}; choose another {option}",
            id="output-not-writable",
        ) from error


def require_file(
    path: Path, kind: str, is_ours: Callable[[Path], bool], option: str = "--output"
) -> None:
    """Check that `path` can be written, and does not replace a file that is not ours.

    Args:
        kind: what will be written, for the message.
        is_ours: whether a file is of that kind, and may be replaced.

    Raises:
        InputError: it exists and is something else, or cannot be written.
    """
    require_directory(path.parent, option)
    if path.is_dir():
        raise InputError(
            f"{path} is a directory; give {option} the name of a file", id="output-is-a-directory"
        )
    if path.exists() and not (path.is_file() and is_ours(path)):
        raise InputError(
            f"{path} exists and is not {kind} of compress; remove it, or choose another {option}",
            id="output-not-ours",
        )


def write_at_once(path: Path, text: str) -> None:
    """Write UTF-8 so that readers see the whole file or none; create its directory if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".writing-", dir=path.parent) as writing:
        written = Path(writing) / path.name
        written.write_text(text, encoding="utf-8", newline="\n")
        written.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that readers see the whole file or none."""
    write_at_once(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fingerprint(paths: Iterable[Path]) -> str:
    """One SHA-256 over the names and contents of several files."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.name}:{sha256_of(path)}\n".encode())
    return digest.hexdigest()
