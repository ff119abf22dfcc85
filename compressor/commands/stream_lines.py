"""Lines in, lines out: an artifact as a filter in a shell pipeline, at constant memory."""

from __future__ import annotations

import codecs
import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from compressor.errors import InputError
from compressor.progress import Progress
from compressor.runtime.batching import CHUNK_ROWS
from compressor.storage.files import require_directory, written_at_once
from compressor.storage.input_files import open_file

STANDARD_INPUT = Path("-")

Answer = TypeVar("Answer")


class Lines:
    """The lines of files, one after the other, without their ends; read as they are asked for.

    A line ends with LF or CR LF, and nothing else: U+2028, form feed and a lone CR are part of
    the text. The last line needs no end. A byte order mark before a file's first line is left out.

    Args:
        files: `-` is the standard input, which is also what no files at all mean.

    Raises:
        InputError: while reading, a file that cannot be read, or text that is not UTF-8.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = list(files) or [STANDARD_INPUT]
        # Whether someone types the lines, and waits for each answer.
        typed = STANDARD_INPUT in self._files and sys.stdin is not None
        self.interactive = typed and sys.stdin.isatty()
        self.place = ""  # of the line that was read last, `file:number`

    def __iter__(self) -> Iterator[str]:
        for file in self._files:
            name = "standard input" if file == STANDARD_INPUT else str(file)
            try:
                with _opened(file) as lines:
                    for number, line in enumerate(lines, 1):
                        self.place = f"{name}:{number}"
                        yield self._text(line if number > 1 else line.removeprefix(codecs.BOM_UTF8))
            except OSError as error:
                raise InputError(
                    f"cannot read {name}: {error.strerror}; give a file with one text per line",
                    id="file-unreadable",
                ) from error

    def _text(self, line: bytes) -> str:
        try:
            return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self.place}: byte 0x{error.object[error.start]:02x} is not UTF-8; convert the "
                "text to UTF-8",
                id="file-not-utf8",
            ) from error


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    if file != STANDARD_INPUT:
        with open_file(file) as opened:
            yield opened
    elif sys.stdin is None:
        raise OSError(errno.EBADF, "it is closed")
    else:
        yield sys.stdin.buffer


@contextmanager
def _written(output: Path | None) -> Iterator[BinaryIO]:
    """The standard output, or a new file, which appears when the block ends without an error."""
    if output is not None:
        require_directory(output.parent)
        refuse_existing(output)
        with written_at_once(output, replace=False) as staged, staged.open("xb") as file:
            yield file
    elif sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed")
    else:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()


def refuse_existing(output: Path) -> None:
    """Raise `InputError` if a file exists, or a link of that name."""
    if output.exists() or output.is_symlink():
        raise InputError(
            f"{output} exists; choose another --output, or remove it", id="output-not-empty"
        )


def serve(
    lines: Lines,
    answer: Callable[[Iterable[str], int], Iterator[Answer]],
    form: Callable[[int, Answer], str],
    output: Path | None,
    chunk_lines: int | None,
    progress: Progress,
) -> None:
    """Write the answer to each line, in their order, as soon as its chunk is done.

    Args:
        lines: to answer.
        answer: a stream of answers to a stream of lines; takes the number of lines to read ahead.
        form: the line to write for an answer and its number, counted from 1. Line ends within it
            become spaces, so that line numbers stay what they are.
        output: a new file, whose directories are made; None for the standard output.
        chunk_lines: lines to read ahead; None for `CHUNK_ROWS`, or 1 if someone types them.
        progress: receives the number of lines written.

    Raises:
        InputError: the file exists, or cannot be written.
        BrokenPipeError: the reader of the standard output went away.
    """
    chunk = chunk_lines or (1 if lines.interactive else CHUNK_ROWS)
    number = 0
    try:
        with _written(output) as file:
            for number, value in enumerate(answer(lines, chunk), 1):
                flat = form(number, value).replace("\r", " ").replace("\n", " ")
                file.write(flat.encode("utf-8") + b"\n")
                if number % chunk == 0:
                    file.flush()
                    progress.update("lines", number, None)
    except OSError as error:
        if output is None and sys.stdout is not None:  # or Python would try once more at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise InputError(
            f"cannot write {output or 'standard output'}: {error.strerror}",
            id="output-not-writable",
        ) from error
    progress.update("lines", number, number)
