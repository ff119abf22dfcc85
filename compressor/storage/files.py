"""Files written whole, and checks of where output goes before anything is computed."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from compressor.errors import InputError
from compressor.storage.hashes import sha256_of_text
from compressor.storage.staging import follow_umask, staging, sync


def require_directory(directory: Path, option: str = "--output") -> None:
    """Raise InputError if `directory` cannot be written to or created; leave nothing behind."""
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
    path: Path, kind: str, is_compress_output: Callable[[Path], bool], option: str = "--output"
) -> None:
    """Raise InputError if `path` cannot be written, or exists and `is_compress_output` is false.

    Args:
        kind: what will be written, for the message.
    """
    require_directory(path.parent, option)
    if path.is_dir():
        raise InputError(
            f"{path} is a directory; give {option} the name of a file", id="output-is-a-directory"
        )
    if path.exists() and not (path.is_file() and is_compress_output(path)):
        raise InputError(
            f"{path} exists and is not {kind} of compress; remove it, or choose another {option}",
            id="output-not-ours",
        )


@contextmanager
def written_at_once(path: Path, replace: bool = True) -> Iterator[Path]:
    """Write a file so that readers see the whole file or none, also after a power cut.

    Gives the path to write to, which takes `path`'s place when the block ends without an error.
    The directory is created if needed. Leftovers of a killed process's writing are removed.

    Args:
        replace: whether it may take the place of a file; else that raises FileExistsError.

    Raises:
        OSError: the disk refuses; with the name of the file.
    """
    try:
        with staging(path.parent) as directory:
            staged = directory / path.name
            yield staged
            follow_umask(staged, directory)
            sync(staged)
            if replace or not _link(staged, path):
                staged.replace(path)
            sync(path.parent)
    except OSError as error:
        if error.filename is None:  # errors of writing to an open file name none
            error.filename = str(path)
        raise


def _link(staged: Path, path: Path) -> bool:
    """Give a file a name that must be free; False where the file system has no hard links."""
    try:
        path.hardlink_to(staged)
    except FileExistsError:
        raise
    except OSError:
        if path.exists() or path.is_symlink():
            raise FileExistsError(errno.EEXIST, "File exists", str(path)) from None
        return False
    return True


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, which must be free, or copy it where that cannot be."""
    if not _link(source, target):
        shutil.copyfile(source, target)


def write_at_once(path: Path, text: str) -> str:
    """Write UTF-8 with `written_at_once`; returns its SHA-256."""
    with written_at_once(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))
    return sha256_of_text(text)


def write_json(path: Path, value: Any) -> str:
    """Write JSON with `written_at_once`; returns its SHA-256."""
    return write_at_once(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")
