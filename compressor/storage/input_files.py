"""Reading files that others made, with bounds: nothing that is damaged or hostile hangs or crashes.

Problems raise an `OSError` (with `strerror`) or a `ValueError`, which callers turn into an
`InputError` that names the file and says what to give instead.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

MIB = 1 << 20
MOST_TEXT = 64 * MIB  # of a configuration, a recipe, a report; the largest are a few MiB
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_LONGEST_NAME = 255  # bytes, on the usual file systems
_DEEPEST = 16  # directories in one another; this tool makes three
WRITER_SECONDS = 5.0  # to wait for somebody to write into a named pipe


class Panic(ValueError):
    """A library in Rust gave up, as `tokenizers` does over some damaged files."""


@contextmanager
def panics_raised() -> Iterator[None]:
    """Turn a panic of a library in Rust, which Python does not count as an Exception, into one."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise Panic(f"it cannot be used: {error}") from error


def inner_path(name: object, *, nested: bool = False) -> str:
    """The name of a file, as JSON gives it, that stays in the directory that it is looked up in.

    Raises ValueError if it is no text, absolute, on a drive, has `..`, or is too long.

    Args:
        nested: it may lie in a directory below, with `/` between the parts.
    """
    parts = str(name).split("/") if nested else [str(name)]
    if not isinstance(name, str) or any(
        part in ("", ".", "..") or set(part) & set("/\\:\0") for part in parts
    ):
        where = "in its directory" if nested else "beside it"
        raise ValueError(f"{str(name)[:60]!r} must be the name of a file {where}")
    if len(parts) > _DEEPEST or max(len(part.encode()) for part in parts) > _LONGEST_NAME:
        raise ValueError(f"{name[:60]!r} is longer than names of files are")
    return name


def require_regular(path: Path) -> None:
    """Raise OSError if opening a file could wait for a writer or read a device."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise _not_a_file(mode, path)


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """A file, a pipe that somebody writes into, or a terminal, opened to read bytes.

    Raises OSError if it is something else, cannot be read, or the pipe has no writer.
    """
    # Opening a named pipe would wait for a writer, without end where there is none.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISFIFO(mode):
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            deadline = time.monotonic() + WRITER_SECONDS
            while not poll.poll(100):  # until there is something to read, or the writer is done
                if time.monotonic() > deadline:
                    raise OSError(errno.EAGAIN, "it is a pipe without a writer", str(path))
        elif not stat.S_ISREG(mode) and not os.isatty(descriptor):
            raise _not_a_file(mode, path)
        os.set_blocking(descriptor, True)
        yield file


def _not_a_file(mode: int, path: Path) -> OSError:
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    kind = kinds.get(stat.S_IFMT(mode), "a device")
    return OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))


def read_text(path: Path, most: int | None = MOST_TEXT) -> str:
    """The UTF-8 of `open_file`, of at most so many bytes; None does not limit them.

    Raises OSError for more, and UnicodeDecodeError, a ValueError, where it is none.
    """
    with open_file(path) as file:
        data = file.read() if most is None else file.read(most + 1)
    if most is not None and len(data) > most:
        bound = f"{most // MIB} MiB" if most >= MIB else f"{most >> 10} KiB"
        raise OSError(errno.EFBIG, f"it is larger than {bound}", str(path))
    return data.decode("utf-8")


def parse_json(text: str | bytes) -> Any:
    """A JSON value.

    Raises:
        ValueError: it is none, is nested too deeply, or has halves of surrogate pairs, which no
            file can hold.
    """
    try:
        value = json.loads(text)
        if _SURROGATE.search(text if isinstance(text, bytes) else text.encode()):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("it has half of a surrogate pair, which is not text") from error
    return value


def read_json(path: Path) -> Any:
    """A file's JSON value; raises as `read_text` and `parse_json`."""
    return parse_json(read_text(path))


def shown(value: Any, most: int = 60) -> str:
    """A value of a file, for messages."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"
