"""Directories beside their target in which files are written until they can be moved whole.

So a file under its final name is complete, also after a power cut. A lock in such a directory,
which the system releases however a process ends, says that its process is alive; otherwise the next
process that writes there removes it.
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
def staging(parent: Path, exclusive: bool = False) -> Iterator[Path]:
    """An empty directory below `parent`, which is created if needed; removed when the block ends.

    Args:
        parent: the directory that the files are for.
        exclusive: only one process at a time has it, and it ends with `move_output`; after an error
            nothing is left, not even a new `parent`.

    Raises:
        InputError: it is exclusive, and another process has it.
    """
    is_new = not parent.exists()
    parent.mkdir(parents=True, exist_ok=True)
    if exclusive:
        directory = parent / _ONLY
        directory.mkdir(exist_ok=True)
        lock = lock_output(directory / _LOCK, parent)
    else:
        directory, lock = _lock_new(parent)
    try:
        _undo(directory)  # what a killed process did
        (directory / _NEW).mkdir()
        yield directory / _NEW
    except BaseException:
        _undo(directory)
        _remove(directory, lock)
        if is_new and exclusive:
            with suppress(OSError):
                parent.rmdir()
        raise
    _remove(directory, lock)


def _lock_new(parent: Path) -> tuple[Path, Lock]:
    """A new directory, and its lock."""
    remove_leftovers(parent)
    while True:  # another process that looks for leftovers may be faster
        directory = Path(mkdtemp(prefix=PREFIX, dir=parent))
        lock = Lock(directory / _LOCK)
        try:
            if lock.acquire():
                return directory, lock
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise


def require_free(output: Path) -> None:
    """Remove leftovers of killed processes in a directory.

    Raises:
        InputError: a process is writing there.
    """
    remove_leftovers(output)
    if (output / _ONLY).exists():
        lock_output(output / _ONLY / _LOCK, output).release()


def remove_leftovers(parent: Path, recursive: bool = False) -> None:
    """Remove what killed processes left of their writing in a directory, or below it."""
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


def move_output(staged: Path, output: Path, hashes: dict[str, str], last: str = "") -> None:
    """Move the files of an exclusive directory into place; if killed meanwhile, they are removed.

    Args:
        staged: the directory that `staging` gave.
        output: where they go.
        hashes: path below `staged` -> SHA-256.
        last: as for `move_files`.
    """
    moving = staged.with_name(_MOVING)
    moving.write_text(json.dumps(hashes), encoding="utf-8")
    sync(moving)
    sync(moving.parent)
    move_files(staged, output, hashes, last)


def move_files(source: Path, target: Path, names: Iterable[str], last: str = "") -> None:
    """Move files to another directory on the same file system, each atomically.

    Args:
        source: their directory.
        target: where they go.
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
    """Give a file the mode of a new one, since libraries write theirs for their owner alone."""
    # The mode of a directory that `mkdir` made tells the umask; asking for it would set it.
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
