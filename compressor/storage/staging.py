"""Directories in which files are written until they are complete.

What is under its final name is whole, also after a power cut: files are written in a directory
beside their target and moved from there. A lock in that directory says that its process is alive.
A directory whose lock is free was left by a process that was killed; the next process that
writes there removes it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from compressor.storage.hashes import sha256_of
from compressor.storage.input_files import inner_path, read_json
from compressor.storage.locks import Lock, lock_output

PREFIX = ".writing-"
_ONLY = f"{PREFIX}output"  # the name that one process at a time can have
_LOCK = "lock"
_NEW = "new"  # directory of the files
_MOVING = "moving.json"  # files that are moved out, with their SHA-256


@contextmanager
def staging(parent: Path) -> Iterator[Path]:
    """An empty directory below `parent`, which is made if needed; removed when the block ends."""
    parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(parent)
    directory, lock = _lock_new(parent)
    try:
        (directory / _NEW).mkdir()
        yield directory / _NEW
    finally:
        _remove(directory, lock)


def _lock_new(parent: Path) -> tuple[Path, Lock]:
    while True:  # another process that looks for leftovers may be faster
        directory = Path(mkdtemp(prefix=PREFIX, dir=parent))
        lock = Lock(directory / _LOCK)
        try:
            if lock.acquire():
                return directory, lock
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise


@contextmanager
def staging_output(output: Path) -> Iterator[Path]:
    """`staging` for one process at a time, whose block ends with `move_output`.

    After an error nothing of it is left, not even `output` if that was made for it.
    """
    is_new = not output.exists()
    directory = output / _ONLY
    directory.mkdir(parents=True, exist_ok=True)
    lock = lock_output(directory / _LOCK, output)
    try:
        _undo(directory)  # what a killed process did
        (directory / _NEW).mkdir()
        yield directory / _NEW
    except BaseException:
        _undo(directory)
        _remove(directory, lock)
        if is_new:
            with suppress(OSError):
                output.rmdir()
        raise
    _remove(directory, lock)


def move_output(staged: Path, output: Path, hashes: dict[str, str], last: str = "") -> None:
    """`move_files` out of `staging_output`; if the process is killed, they are removed.

    Args:
        hashes: path below `staged` -> SHA-256.
    """
    moving = staged.with_name(_MOVING)
    moving.write_text(json.dumps(hashes), encoding="utf-8")
    sync(moving)
    sync(moving.parent)
    move_files(staged, output, hashes, last)


def require_free(output: Path) -> None:
    """Remove leftovers of killed processes in a directory; raise InputError if one writes there."""
    remove_leftovers(output)
    if (output / _ONLY).exists():
        lock_output(output / _ONLY / _LOCK, output).release()


def remove_leftovers(parent: Path, recursive: bool = False) -> None:
    """Remove leftovers of killed processes in a directory."""
    for directory in [*(parent.rglob if recursive else parent.glob)(f"{PREFIX}*")]:
        if not (directory / _LOCK).exists():
            with suppress(OSError):
                directory.rmdir()  # only if it is empty: killed before it could lock
            continue
        with suppress(OSError):
            lock = Lock(directory / _LOCK)
            if lock.acquire():
                _undo(directory)
                _remove(directory, lock)


def move_files(source: Path, target: Path, names: Iterable[str], last: str = "") -> None:
    """Move files into another directory on the same file system, each at once.

    Args:
        names: paths below `source`.
        last: name of the file that names others, and so is moved after them.
    """
    paths = [Path(name) for name in names]
    for path in sorted(paths, key=lambda path: (path.name == last, path)):
        follow_umask(source / path, source)
        sync(source / path)
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).replace(target / path)
    for directory in sorted({(target / path).parent for path in paths}):
        sync(directory)


def follow_umask(path: Path, directory: Path) -> None:
    """Give a file the mode of a new one, since libraries write theirs for their owner alone.

    Args:
        directory: one that `mkdir` made; its mode is the only one that tells the umask without
            setting it, which would be seen by other threads.
    """
    path.chmod(directory.stat().st_mode & 0o666)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # directories cannot be opened there
    file = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(file)
    except OSError as error:
        # Some file systems have no fsync of directories; a full disk is an error.
        if not path.is_dir() or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(file)


def _undo(directory: Path) -> None:
    """Remove the files that were moved out of a directory whose move was not completed."""
    try:
        noted = read_json(directory / _MOVING)
        hashes = {inner_path(name, nested=True): digest for name, digest in noted.items()}
    except (OSError, ValueError, AttributeError):
        hashes = {}  # it had not begun
    for name, digest in hashes.items():
        path = directory.parent / name
        if path.is_file() and sha256_of(path) == digest:
            path.unlink()
            with suppress(OSError):  # others may be in it
                path.parent.rmdir()
    (directory / _MOVING).unlink(missing_ok=True)
    shutil.rmtree(directory / _NEW, ignore_errors=True)


def _remove(directory: Path, lock: Lock) -> None:
    """Remove a directory; its lock last, so that no other process takes it before."""
    (directory / _MOVING).unlink(missing_ok=True)  # first: from here on the files are the user's
    shutil.rmtree(directory / _NEW, ignore_errors=True)
    lock.release()
    with suppress(OSError):
        directory.rmdir()
