"""Locks between processes, which the operating system releases however a process ends.

A lock is a file that its holder has locked and that says who that is. Where a file system has no
locks (some network ones), every process gets the lock.
"""

from __future__ import annotations

import datetime
import errno
import json
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from compressor.errors import InputError

_HELD = (errno.EWOULDBLOCK, errno.EACCES, errno.EAGAIN, errno.EDEADLK)
_BEHIND = 1 << 30  # bytes: on Windows a locked part cannot be read, so one behind the text is


class Lock:
    """An exclusive lock on a file, which is made for it and removed with it.

    Args:
        path: the file; its directory must be there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def acquire(self) -> bool:
        """Take the lock; False if another process, or another `Lock` of this one, holds it.

        Raises:
            OSError: the file cannot be made.
        """
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if not _lock(file):
                    os.close(file)
                    return False
                if _is_same(file, self.path):  # else its former holder has removed it just now
                    self._file = file
                    self._sign(file)
                    return True
            except BaseException:
                self._file = None
                os.close(file)
                raise
            os.close(file)

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._file is None:
            return
        file, self._file = self._file, None
        if sys.platform != "win32":  # where an open file cannot be removed
            self.path.unlink(missing_ok=True)
        os.close(file)
        if sys.platform == "win32":
            with suppress(OSError):
                self.path.unlink()

    def holder(self) -> str:
        """Who holds the lock, in words: process, machine and since when."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            return f"process {found['pid']} on {found['host']}, since {found['since']}"
        except (OSError, ValueError, LookupError, TypeError):
            return "another process"

    def __del__(self) -> None:
        self.release()

    def _sign(self, file: int) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        mine = {"pid": os.getpid(), "host": socket.gethostname(), "since": now}
        os.truncate(file, 0)
        os.write(file, f"{json.dumps(mine)}\n".encode())


def lock_output(path: Path, output: Path) -> Lock:
    """The lock of an output directory.

    Args:
        path: its file.
        output: the directory, for the message.

    Raises:
        InputError: another run writes there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = Lock(path)
    if not lock.acquire():
        raise InputError(
            f"another run writes to {output} ({lock.holder()}); wait until it has ended, or choose "
            "another --output",
            id="output-in-use",
        )
    return lock


def _is_same(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _lock(file: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(file, _BEHIND, os.SEEK_SET)
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
            os.lseek(file, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _HELD
    return True
