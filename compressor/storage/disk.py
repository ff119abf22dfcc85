"""Errors of a full, read-only or vanished disk, in whichever library they occur."""

from __future__ import annotations

import errno
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from compressor.errors import CompressError, InputError

_ERRORS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ENODEV, errno.ENXIO,
    errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ESTALE,
}  # fmt: skip
# Libraries in Rust (safetensors, tokenizers) pass the number on in the text of their own error.
_IN_TEXT = re.compile(r"\(os error (\d+)\)")
# NumPy says that writing failed, and not why.
_BY_NUMPY = re.compile(r"requested and \d+ written|problem writing element")
_MEBIBYTE = 1 << 20


def disk_problem(error: BaseException) -> str:
    """The reason why a disk refuses, such as `No space left on device`; empty for other errors."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _ERRORS:
            return os.strerror(seen.errno)
        number = _IN_TEXT.search(str(seen))
        if number and int(number[1]) in _ERRORS:
            return os.strerror(int(number[1]))
        if isinstance(seen, OSError) and _BY_NUMPY.search(str(seen)):
            return "no more can be written"
        seen = seen.__cause__ or seen.__context__
    return ""


@contextmanager
def translate_disk_errors(
    output: Path, needed: Callable[[], int], doing: Callable[[], str]
) -> Iterator[None]:
    """Turn an error of the disk within the block into one that says what to do.

    Args:
        output: the directory that is written to.
        needed: returns about how many bytes the block writes in all.
        doing: returns what the block does at the moment, in words.

    Raises:
        InputError: instead of the error of whichever library was writing.
    """
    try:
        yield
    except Exception as error:
        problem = disk_problem(error)
        path = getattr(error, "filename", None)
        elsewhere = path is not None and not Path(str(path)).is_relative_to(output)
        if not problem or elsewhere or isinstance(error, CompressError):
            raise
        room = "it no longer exists"
        with suppress(OSError, StopIteration):
            # After an error nothing is left of an output that was new.
            existing = next(x for x in (output, *output.absolute().parents) if x.exists())
            room = f"{shutil.disk_usage(existing).free / _MEBIBYTE:.0f} MiB are free"
        raise InputError(
            f"cannot write {output} while {doing()}: {problem} (about "
            f"{math.ceil(needed() / _MEBIBYTE)} MiB are needed in all, {room}); make room or "
            "choose another --output, and the same command goes on",
            id="disk-refuses",
        ) from error
