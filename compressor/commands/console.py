"""The one place that prints: stdout carries the result, stderr messages and progress."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compressor.commands.progress_line import ProgressLine

# Seconds between two lines of progress where they are not rewritten in place.
_PLAIN_SECONDS = 15
_NOBODY_READS = (errno.EPIPE, errno.EBADF, errno.EINVAL)


@dataclass
class Console:
    """Where messages and results go; a `compressor.progress.Progress`.

    Args:
        quiet: no messages and no progress, only the result and errors.
        verbose: also details.
        as_json: the result is one JSON object on stdout.
        silent: nothing at all is written; of several processes of a run one writes.
        unwritten: why the result could not be written; empty if it was, or no one reads stdout.
        doing: the last message that ended with an ellipsis.
    """

    quiet: bool = False
    verbose: bool = False
    as_json: bool = False
    silent: bool = False
    unwritten: str = ""
    doing: str = ""
    _line: ProgressLine | None = field(default=None, repr=False)
    _last: float = field(default=float("-inf"), repr=False)  # when progress was last printed

    def message(self, text: str) -> None:
        """Something the user should know."""
        if text.endswith("…"):
            self.doing = text.removesuffix("…").strip()
        if not self.quiet:
            self._print(text)

    def detail(self, text: str) -> None:
        """A message for `-v`."""
        if self.verbose:
            self.message(text)

    def update(self, what: str, done: int, total: int | None) -> None:
        """Progress: one line that is rewritten on a terminal, a plain line now and then elsewhere.

        Args:
            total: where it will end; None if unknown.
        """
        if self.quiet or self.silent:
            return
        if _is_terminal(sys.stderr):
            if self._line is None:
                from compressor.commands.progress_line import ProgressLine

                self._line = ProgressLine(sys.stderr)
            _write(self._line.update(what, done, total))
            return
        now, last = time.monotonic(), total is not None and done >= total
        if last or now - self._last >= _PLAIN_SECONDS:
            self._last = now
            self._print(f"  {what} {done}" if total is None else f"  {what} {done}/{total}")

    def counts_lines(self, to_stdout: bool) -> bool:
        """Whether to show progress for a command that streams lines: to a terminal, or with `-v`.

        Args:
            to_stdout: the lines go to stdout. If that is a terminal, progress would stand between
                them, so there is none.
        """
        if to_stdout and _is_terminal(sys.stdout):
            return False
        return self.verbose or _is_terminal(sys.stderr)

    def result(self, text: str, data: Mapping[str, Any]) -> None:
        """The answer, once per command: `text`, or `data` with `--json`."""
        self._clear_line()
        if self.as_json:
            text = json.dumps({"ok": True, **data}, ensure_ascii=False, allow_nan=False)
        self._answer(text)

    def error(self, message: str, status: int, id: str) -> None:
        """A failure in one sentence on stderr, and as the JSON object with `--json`."""
        self._print(f"error: {message}")
        if self.as_json:
            failure = {"ok": False, "error": message, "id": id, "exit_status": status}
            self._answer(json.dumps(failure))

    def _answer(self, text: str) -> None:
        """Write to stdout. A closed stdout changes neither the work nor the exit status."""
        if self.silent or sys.stdout is None:  # the process was started without it
            return
        try:
            print(text, flush=True)
        except UnicodeEncodeError:  # the terminal's encoding lacks a character
            encoding = sys.stdout.encoding
            print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
        except ValueError:
            return  # it was closed
        except OSError as error:
            leave_stdout()
            if error.errno not in _NOBODY_READS:
                self.unwritten = f"cannot write the result to standard output: {error.strerror}"

    def _print(self, text: str) -> None:
        if not self.silent:
            self._clear_line()
            _write(text + "\n")

    def _clear_line(self) -> None:
        if self._line is not None and self._line.visible:
            _write(self._line.clear())


def leave_stdout() -> None:
    """Write no more to a stdout that failed; or Python would try once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()  # None where the process was started without it


def _write(text: str) -> None:
    """Write to stderr. A closed stderr changes neither the work nor the exit status."""
    if sys.stderr is None:
        return
    try:
        print(text, end="", file=sys.stderr, flush=True)
    except (OSError, ValueError):  # the reader went away, or the stream is closed
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end


console = Console()
