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
    """Check that a directory can be written to, or created; leave nothing behind.

    Args:
        directory: where output goes.
        option: that named it, for the message.

    Raises:
        InputError: it or one of its parents is a file, or the file system refuses.
    """
    existing = directory.absolute()
    try:
        while not existing.exists():
            existing = existing.parent
        with TemporaryFile(dir=existing):  # an error where it is a file
            pass
    except OSError as error:
        raise InputError(
            f"cannot write {directory}: {error.strerror}; choose another {option}",
            id="output-not-writable",
        ) from error


def require_file(
    path: Path, kind: str, is_compress_output: Callable[[Path], bool], option: str = "--output"
) -> None:
    """Check that a file can be written, and replaces none that is not ours.

    Args:
        path: of the file.
        kind: what will be written, for the message.
        is_compress_output: whether an existing file is of that kind, and may be replaced.
        option: that named it, for the message.

    Raises:
        InputError: it exists and is something else, or cannot be written.
    """
    require_directory(path.parent, option)
    if path.exists() and not (path.is_file() and is_compress_output(path)):
        raise InputError(
            f"{path} exists and is not {kind} of compress; choose another {option}",
            id="output-not-ours",
        )


@contextmanager
def written_at_once(path: Path, replace: bool = True) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` when the block ends without an error.

    Readers see the whole file or none, also after a power cut.

    Args:
        path: of the file.
        replace: whether an existing file is replaced.

    Raises:
        FileExistsError: it exists, and `replace` is false.
        OSError: the file system refuses; it has the name of the file.
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
