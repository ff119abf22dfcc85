"""Opening text files that others made: plain, or packed by gzip (`.gz`) or Zstandard (`.zst`).

They are read piece by piece, so that a file may be larger than memory. The suffix says how a file
is packed; `rows.tsv.gz` is a table as `rows.tsv` is.
"""

from __future__ import annotations

import gzip
import importlib
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from compressor.errors import EnvironmentProblem, InputError
from compressor.storage.input_files import MIB, open_file

LONGEST_LINE = 64 * MIB  # bytes; what a line needs is all that reading a file needs
PACKED = (".gz", ".zst")
REPORTED_LINES = 10_000  # how often who reads a long file says how far it is
_PIECE = 1 << 18  # bytes that are unpacked at once


def _unpack(file: BinaryIO, path: Path) -> tuple[Any, str, type[Exception]]:
    """The unpacked bytes, the tool that tests such files, and the library's error."""
    if path.suffix.lower() == ".gz":
        return gzip.GzipFile(fileobj=file, mode="rb"), "gzip", gzip.BadGzipFile
    # Python's own from 3.14 on, or else the package that has it for older ones.
    for name in ("compression.zstd", "backports.zstd"):
        try:
            library = importlib.import_module(name)
        except ImportError:
            continue
        return library.ZstdFile(file, "rb"), "zstd", library.ZstdError
    raise EnvironmentProblem(
        f"the package backports.zstd, which unpacks {path}, is not installed; install it with "
        "`pip install 'backports.zstd>=1,<2'`",
        id="zstd-not-installed",
    )


def is_packed(path: str | Path) -> bool:
    """Whether a file has to be unpacked to be read, by its suffix."""
    return Path(path).suffix.lower() in PACKED


def format_suffix(path: str | Path) -> str:
    """The suffix without packing: `.tsv` of `rows.tsv`, `rows.TSV` and `rows.tsv.gz`."""
    path = Path(path)
    return Path(path.stem if is_packed(path) else path.name).suffix.lower()


@contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read its bytes, unpacked if it is packed.

    Raises:
        OSError: as `open_file`.
        EnvironmentProblem: the package that unpacks it is not installed.
        InputError: it is damaged or incomplete; also while it is read.
    """
    with open_file(path) as file:
        if not is_packed(path):
            yield file
            return
        stream, tool, unpacking_error = _unpack(file, path)
        try:
            with io.BufferedReader(stream, _PIECE) as unpacked:
                yield cast(BinaryIO, unpacked)
        except (EOFError, zlib.error, unpacking_error) as error:
            reason = str(error).splitlines()[0].rstrip(".") if str(error) else "it is damaged"
            raise InputError(
                f"{path} cannot be unpacked ({reason}); give a whole file, which `{tool} -t` finds "
                "no fault with",
                id="packed-file-damaged",
            ) from error


def raw_lines(file: BinaryIO, path: str | Path) -> Iterator[bytes]:
    """The lines of an opened file, with their ends.

    Args:
        file: opened by `open_text`.
        path: for the message.

    Raises:
        InputError: a line is longer than `LONGEST_LINE`.
    """
    lines = iter(lambda: file.readline(LONGEST_LINE + 1), b"")
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_LINE:
            raise InputError(
                f"{path}:{number}: the line is longer than {LONGEST_LINE // MIB} MiB; give a text "
                "a line",
                id="line-too-long",
            )
        yield line
