"""Directories beside their target in which files are written until they can be moved whole.

A lock in such a directory, which the system releases however a process ends, says that its process
is alive; else the next process that writes there removes it.
"""

from __future__ import annotations

import datetime
import errno
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from filelock import FileLock, Timeout

from compressor.errors import InputError
from compressor.storage.hashes import sha256_of
from compressor.storage.input_files import inner_path, read_json

PREFIX = ".writing-"
_ONLY = f"{PREFIX}output"  # the name that one process at a time can have
_LOCK = "lock"
_NEW = "new"  # directory of the files
_MOVING = "moving.json"  # files that are moved out, with their SHA-256


class Lock:
    """An exclusive lock on a file, which is made for it and removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._holder = path.with_name(f"{path.name}-holder")  # filelock may empty its own file
        self._lock = FileLock(path, blocking=False, thread_local=False)
        self._held = False

    def acquire(self) -> bool:
        """Take the lock; False if another process, or another `Lock` of this one, holds it."""
        try:
            self._lock.acquire()
        except Timeout:
            return False
        except OSError as error:
            if error.filename is not None:
                raise
            # The file exists, and the file system has no locks (some network ones): all get it.
        self._held = True
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with suppress(OSError):
            holder = f"process {os.getpid()} on {socket.gethostname()}, since {now}"
            self._holder.write_text(holder, encoding="utf-8")
        return True

    def holder(self) -> str:
        try:
            return self._holder.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return "another process"

    def release(self) -> None:
        if not self._held:
            return
        self._held = False
        self._holder.unlink(missing_ok=True)
        # While it is held, so that no other process has it. Windows cannot remove an open file.
        if sys.platform != "win32":
            self.path.unlink(missing_ok=True)
        self._lock.release()
        if sys.platform == "win32":
            with suppress(OSError):
                self.path.unlink()


def lock_output(path: Path, output: Path) -> Lock:
    """The lock of an output directory, in the file `path`; raises InputError if it is taken."""
    lock = Lock(path)
    if not lock.acquire():
        raise InputError(
            f"another run writes to {output} ({lock.holder()}); wait until it has ended, or choose "
            "another --output",
            id="output-in-use",
        )
    return lock


@contextmanager
def staging(parent: Path, exclusive: bool = False) -> Iterator[Path]:
    """An empty directory below `parent`, which is made if needed; removed when the block ends.

    An `exclusive` one, of one process at a time, ends with `move_output`; after an error nothing is
    left, not even a new `parent`.
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
    """Remove leftovers of killed processes in a directory; raise InputError if one writes there."""
    remove_leftovers(output)
    if (output / _ONLY).exists():
        lock_output(output / _ONLY / _LOCK, output).release()


def remove_leftovers(parent: Path, recursive: bool = False) -> None:
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
    """`move_files` out of an exclusive directory; they are removed if the process is killed."""
    moving = staged.with_name(_MOVING)
    moving.write_text(json.dumps(hashes), encoding="utf-8")
    sync(moving)
    sync(moving.parent)
    move_files(staged, output, hashes, last)


def move_files(source: Path, target: Path, names: Iterable[str], last: str = "") -> None:
    """Move files to another directory of a file system; `last`, which names others, behind them."""
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
