"""Locks between processes: filelock's, with the words who holds one, and removed when released.

The operating system releases them however a process ends. Where a file system has no locks (some
network ones), every process gets the lock.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from compressor.errors import InputError


class Lock:
    """An exclusive lock on a file; the file and its directory are made for it, the file removed."""

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
            # The file exists, and the file system has no locks.
        self._held = True
        return True

    def sign(self) -> None:
        """Write down who holds the lock."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": now}
        self._holder.write_text(json.dumps(holder), encoding="utf-8")

    def holder(self) -> str:
        """Who holds the lock, in words: process, machine and since when."""
        try:
            holder = json.loads(self._holder.read_text(encoding="utf-8"))
            return f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
        except (OSError, ValueError, LookupError, TypeError):
            return "another process"

    def release(self) -> None:
        """Give the lock back, if it is held."""
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
    try:
        lock.sign()
    except BaseException:
        lock.release()
        raise
    return lock
