"""Opening text files that others made: plain, or packed by gzip (`.gz`) or Zstandard (`.zst`).

They are read piece by piece, so that a file may be larger than memory. The format follows from the
suffix; `rows.tsv.gz` is a table like `rows.tsv`.
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


class _Unpacked(io.RawIOBase):
    """Bytes of a packed file, whose library's errors become errors that name the file."""

    def __init__(self, stream: Any, path: Path, tool: str, error: type[Exception]) -> None:
        self._stream, self._path, self._tool = stream, path, tool
        self._errors = (EOFError, zlib.error, error)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return int(self._stream.readinto(buffer))
        except self._errors as error:
            reason = str(error).splitlines()[0].rstrip(".") if str(error) else "it is damaged"
            raise InputError(
                f"{self._path} cannot be unpacked ({reason}); give a whole file, which "
                f"`{self._tool} -t` finds no fault with",
                id="packed-file-damaged",
            ) from error


def _unpack(file: BinaryIO, path: Path) -> _Unpacked:
    if path.suffix.lower() == ".gz":
        return _Unpacked(gzip.GzipFile(fileobj=file, mode="rb"), path, "gzip", gzip.BadGzipFile)
    # Python's own from 3.14 on, or else the package that has it for older ones.
    for name in ("compression.zstd", "backports.zstd"):
        try:
            library = importlib.import_module(name)
        except ImportError:
            continue
        return _Unpacked(library.ZstdFile(file, "rb"), path, "zstd", library.ZstdError)
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
    """A file, opened to read its bytes, unpacked where it is packed.

    Raises:
        OSError: as `open_file`.
        EnvironmentProblem: the package that unpacks it is not installed.
        InputError: it is damaged or cut off; also from reading.
    """
    with open_file(path) as file:
        if not is_packed(path):
            yield file
            return
        with io.BufferedReader(_unpack(file, path), _PIECE) as unpacked:
            yield cast(BinaryIO, unpacked)


def raw_lines(file: BinaryIO, path: str | Path) -> Iterator[bytes]:
    """The lines of an opened file, with their ends; raises InputError for one that is too long."""
    lines = iter(lambda: file.readline(LONGEST_LINE + 1), b"")
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_LINE:
            raise InputError(
                f"{path}:{number}: the line is longer than {LONGEST_LINE // MIB} MiB; give a text "
                "a line",
                id="line-too-long",
            )
        yield line
