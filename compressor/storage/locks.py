"""Locks of directories: one process at a time writes there."""

from __future__ import annotations

import datetime
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from compressor.errors import InputError


class Lock:
    """An exclusive lock on a file, which is created for it and removed.

    The system releases it however the process ends.

    Args:
        path: of the file, in an existing directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._holder = path.with_name(f"{path.name}-holder")  # filelock may empty its own file
        self._lock = FileLock(path, blocking=False, thread_local=False)
        self._held = False

    def acquire(self) -> bool:
        """Take the lock.

        Returns:
            Whether it was free; False if another process, or another `Lock` of this one, holds it.

        Raises:
            OSError: the file cannot be created.
        """
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
        """The holder of the lock, in words: process, machine and since when."""
        try:
            return self._holder.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return "another process"

    def release(self) -> None:
        """Release the lock, if it is held."""
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
    """Lock an output directory.

    Args:
        path: of the lock's file.
        output: the directory, for the message.

    Raises:
        InputError: another run writes there.
    """
    lock = Lock(path)
    if not lock.acquire():
        raise InputError(
            f"another run writes to {output} ({lock.holder()}); wait until it has ended, or choose "
            "another --output",
            id="output-in-use",
        )
    return lock
