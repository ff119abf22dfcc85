"""Lines in, lines out: an artifact as a filter in a shell pipeline, at constant memory."""

from __future__ import annotations

import codecs
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import BinaryIO, Self, TypeVar

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
        InputError: a file is not there, or is a directory; while reading, text that is not UTF-8
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
    """Writes lines, as UTF-8 that end with LF, to the standard output or to a new file.

    Directories that the file needs are made.
    To be used in a `with` block, at whose end the file appears if there was no error.

    Args:
        output: the file; None for the standard output.

    Raises:
        InputError: the file exists, or cannot be written.
        BrokenPipeError: the reader of the standard output went away.
    """

    def __init__(self, output: Path | None) -> None:
        self._output = output
        self._whole: AbstractContextManager[Path] | None = None
        if output is None and sys.stdout is None:
            raise InputError(
                "standard output is closed; give a file with --output", id="standard-output-closed"
            )

    def write(self, line: str) -> None:
        """One line; line ends within it become spaces, so that line numbers stay what they are."""
        flat = line.replace("\r", " ").replace("\n", " ")
        with self._failures():
            self._file.write(flat.encode("utf-8") + b"\n")

    def flush(self) -> None:
        """Let the reader see what was written so far."""
        with self._failures():
            self._file.flush()

    def __enter__(self) -> Self:
        opened = False
        try:
            with _interrupt_waits():
                self._file = self._opened()
                opened = True
        except KeyboardInterrupt:
            if opened:  # `__exit__` is not called for what happens here
                self.__exit__(*sys.exc_info())
            raise
        return self

    def _opened(self) -> BinaryIO:
        if self._output is None:
            return sys.stdout.buffer
        require_directory(self._output.parent)
        self._refuse_existing()
        with self._failures():
            # Under another name, until it is complete: a killed process leaves no half file.
            self._whole = written_at_once(self._output, replace=False)
            return self._whole.__enter__().open("xb")

    def _refuse_existing(self) -> None:
        if self._output is not None and (self._output.exists() or self._output.is_symlink()):
            raise InputError(
                f"{self._output} exists; choose another --output, or remove it",
                id="output-not-empty",
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            with self._failures():
                self._file.flush() if self._output is None else self._file.close()
                if self._whole is not None and kind is None:
                    self._whole.__exit__(None, None, None)
        except (InputError, BrokenPipeError) as failure:
            self._give_up(failure)
            if kind is None:  # otherwise there is an error already, the first one
                raise
        else:
            if error is not None:
                self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """Remove what was written, if it is a file."""
        if self._whole is not None:
            with suppress(type(error)):
                self._whole.__exit__(type(error), error, error.__traceback__)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._output is None:  # or Python would try once more when it ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._file.fileno())
            if isinstance(error, BrokenPipeError):
                raise
            if isinstance(error, FileExistsError):
                self._refuse_existing()
            raise InputError(
                f"cannot write {self._output or 'standard output'}: {error.strerror}",
                id="output-not-writable",
            ) from error


@contextmanager
def _interrupt_waits() -> Iterator[None]:
    """Hold Ctrl-C back until the block is done, so that what it makes is known, and can go again.

    Without it, Ctrl-C could come between the making of a file and the note that we made it.
    """
    usual = signal.getsignal(signal.SIGINT)
    if not callable(usual) or threading.current_thread() is not threading.main_thread():
        yield  # nothing would interrupt here
        return
    pressed: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: pressed.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if pressed:
            usual(*pressed[0])


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
        output: see `LineWriter`.
        chunk_lines: lines to read ahead; None for `CHUNK_ROWS`, or 1 if someone types them.
        progress: hears how many lines are done.
    """
    chunk = chunk_lines or (1 if lines.interactive else CHUNK_ROWS)
    number = 0
    with LineWriter(output) as writer:
        for number, found in enumerate(answer(lines, chunk), 1):
            writer.write(form(number, found))
            if number % chunk == 0:
                writer.flush()
                progress.update("lines", number, None)
    progress.update("lines", number, number)
