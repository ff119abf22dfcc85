"""Lines in, lines out: an artifact as a filter in a shell pipeline, at constant memory."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
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
        InputError: a file is missing, or is a directory; while reading, text that is not UTF-8
            or a file that cannot be read.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = list(files) or [STANDARD_INPUT]
        for file in self._files:
            if file == STANDARD_INPUT:
                continue
            if file.is_dir():
                raise InputError(
                    f"{file} is a directory; give a file with one text per line",
                    id="file-is-directory",
                )
            if not file.exists():
                raise InputError(
                    f"there is no file {file}; give one that exists", id="file-missing"
                )
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
                    f"cannot read {name}: {error.strerror}", id="file-unreadable"
                ) from error

    @property
    def interactive(self) -> bool:
        """Whether someone types the lines, and waits for each answer."""
        return STANDARD_INPUT in self._files and sys.stdin is not None and sys.stdin.isatty()

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
    if file == STANDARD_INPUT:
        if sys.stdin is None:
            raise InputError(
                "standard input is closed; give a file, or pipe the lines in",
                id="standard-input-closed",
            )
        yield sys.stdin.buffer
    else:
        with open_file(file) as opened:
            yield opened


class LineWriter:
    """Writes lines to a file, as UTF-8 that end with LF; see `line_writer`."""

    def __init__(self, file: BinaryIO, output: Path | None) -> None:
        self._file, self._output = file, output

    def write(self, line: str) -> None:
        """One line; line ends within it become spaces, so that line numbers stay what they are."""
        flat = line.replace("\r", " ").replace("\n", " ")
        with _write_errors(self._output):
            self._file.write(flat.encode("utf-8") + b"\n")

    def flush(self) -> None:
        with _write_errors(self._output):
            self._file.flush()


@contextmanager
def line_writer(output: Path | None) -> Iterator[LineWriter]:
    """Write lines to the standard output or to a new file, which appears when the block ends well.

    Args:
        output: the file, whose directories are made; None for the standard output.

    Raises:
        InputError: the file exists, or cannot be written.
        BrokenPipeError: the reader of the standard output went away.
    """
    with ExitStack() as stack:
        if output is None:
            if sys.stdout is None:
                raise InputError(
                    "standard output is closed; give a file with --output",
                    id="standard-output-closed",
                )
            file: BinaryIO = sys.stdout.buffer
            end = file.flush
        else:
            require_directory(output.parent)
            refuse_existing(output)
            with _write_errors(output):
                # Under another name, until it is complete: a killed process leaves no half file.
                staged = stack.enter_context(written_at_once(output, replace=False))
                file = staged.open("xb")
            end = file.close
        try:
            yield LineWriter(file, output)
        except BaseException:
            # There is an error already, and it is the first one that counts.
            with suppress(InputError, BrokenPipeError), _write_errors(output):
                end()
            raise
        with _write_errors(output):
            end()
            stack.close()


def refuse_existing(output: Path) -> None:
    if output.exists() or output.is_symlink():
        raise InputError(
            f"{output} exists; choose another --output, or remove it", id="output-not-empty"
        )


@contextmanager
def _write_errors(output: Path | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if output is None:  # or Python would try once more when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        if isinstance(error, FileExistsError) and output is not None:
            refuse_existing(output)
        raise InputError(
            f"cannot write {output or 'standard output'}: {error.strerror}",
            id="output-not-writable",
        ) from error


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
        answer: a stream of answers to a stream of lines; takes the number of lines to read ahead.
        form: the line to write for an answer and its number, counted from 1.
        chunk_lines: lines to read ahead; None for `CHUNK_ROWS`, or 1 if someone types them.
    """
    chunk = chunk_lines or (1 if lines.interactive else CHUNK_ROWS)
    number = 0
    with line_writer(output) as writer:
        for number, value in enumerate(answer(lines, chunk), 1):
            writer.write(form(number, value))
            if number % chunk == 0:
                writer.flush()
                progress.update("lines", number, None)
    progress.update("lines", number, number)
