"""Reading files that others made, with bounds: nothing that is damaged or hostile hangs or crashes.

Problems raise an `OSError` (with `strerror`) or a `ValueError`, which callers turn into
InputErrors, as `cannot_read` does.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from compressor.errors import InputError

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
    """Turn a panic of a library in Rust, which is no `Exception` in Python, into a `Panic`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise Panic(f"it cannot be used: {error}") from error


def inner_path(name: object, *, nested: bool = False) -> str:
    """Check the name of a file that stays in its directory.

    Args:
        name: as JSON gives it.
        nested: whether it may be in a directory below, with `/` between the parts.

    Returns:
        The name.

    Raises:
        ValueError: it is no text, absolute, on a drive, has `..`, or is too long.
    """
    parts = str(name).split("/") if nested else [str(name)]
    is_short = len(parts) <= _DEEPEST and all(len(x.encode()) <= _LONGEST_NAME for x in parts)
    is_plain = not any(x in ("", ".", "..") or set(x) & set("/\\:\0") for x in parts)
    if not (isinstance(name, str) and is_short and is_plain):
        where = "in its directory" if nested else "beside it"
        raise ValueError(f"{str(name)[:60]!r} must be the name of a file {where}")
    return name


def require_regular(path: Path) -> None:
    """Check that opening a file neither waits for a writer nor reads a device.

    Raises:
        OSError: there is no such file, or it is a directory, a named pipe, a socket or a device.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise _not_a_file(path)


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file, a pipe that somebody writes into, or a terminal, to read bytes.

    Raises:
        OSError: it is something else, cannot be read, or nobody writes into the pipe.
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
            raise _not_a_file(path)
        os.set_blocking(descriptor, True)
        yield file


def _not_a_file(path: Path) -> OSError:
    reason = "it is a directory, a pipe or a device, not a file"
    return OSError(errno.EINVAL, reason, str(path))


def cannot_read(path: object, error: OSError) -> InputError:
    """The error of a file that exists but cannot be read.

    Args:
        path: of the file.
        error: the system's.
    """
    advice = (
        "make it readable for the user who runs this"
        if error.errno == errno.EACCES
        else "copy it again"
    )
    return InputError(f"cannot read {path}: {error.strerror}; {advice}", id="file-unreadable")


def read_text(path: Path, most: int | None = MOST_TEXT) -> str:
    """The text of a file in UTF-8.

    Args:
        path: as for `open_file`.
        most: bytes that it may have; None for any number.

    Raises:
        OSError: it cannot be read, or has more bytes.
        ValueError: it is not UTF-8.
    """
    with open_file(path) as file:
        data = file.read() if most is None else file.read(most + 1)
    if most is not None and len(data) > most:
        bound = f"{most // MIB} MiB" if most >= MIB else f"{most >> 10} KiB"
        raise OSError(errno.EFBIG, f"it is larger than {bound}", str(path))
    return data.decode("utf-8")


def parse_json(
    text: str | bytes, make_object: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Parse a JSON value.

    Args:
        text: the value.
        make_object: makes an object of its names and values, where it is not to be a dict.

    Raises:
        ValueError: it is none, is nested too deeply, or has half of a surrogate pair.
    """
    try:
        value = json.loads(text, object_pairs_hook=make_object)
        if _SURROGATE.search(text if isinstance(text, bytes) else text.encode()):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("it has half of a surrogate pair, which is not text") from error
    return value


def read_json(path: Path) -> Any:
    """The JSON value of a file; raises what `read_text` and `parse_json` do."""
    return parse_json(read_text(path))


def shown(value: Any, most: int = 60) -> str:
    """The `repr` of a value for a message, shortened to `most` characters."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"
