"""The one place that prints: stdout carries the result, stderr messages and progress."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

# Seconds between two lines of progress: on a terminal, where they are rewritten in place, and else.
_REDRAW_SECONDS, _PLAIN_SECONDS = 0.2, 15
_CLEAR = "\r\033[K"
_NOBODY_READS = (errno.EPIPE, errno.EBADF, errno.EINVAL)
_NEVER = float("-inf")


@dataclass
class Console:
    """Where messages and results go; a `compressor.progress.Progress`."""

    quiet: bool = False  # no messages and no progress, only the result and errors
    verbose: bool = False  # also details
    as_json: bool = False  # the result is one JSON object on stdout
    silent: bool = False  # nothing at all is written; of several processes of a run one writes
    unwritten: str = ""  # why the result could not be written; empty also if no one reads stdout
    doing: str = ""  # the last message that ended with an ellipsis
    # What progress is shown of, with the count and the time at which that began.
    _task: tuple[str, int, float] = field(default=("", 0, 0.0), repr=False)
    _done: int = field(default=0, repr=False)
    _drawn: float = field(default=_NEVER, repr=False)  # when progress was last written
    _has_line: bool = field(default=False, repr=False)  # to be rewritten

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
        """Progress: a line that is rewritten on a terminal, a plain one now and then elsewhere."""
        if self.quiet or self.silent:
            return
        on_terminal, now = _is_terminal(sys.stderr), time.monotonic()
        if what != self._task[0] or done < self._done:
            self._task = (what, done, now)
            self._drawn = _NEVER if on_terminal else self._drawn
        self._done, is_last = done, total is not None and done >= total
        wait = _REDRAW_SECONDS if on_terminal else _PLAIN_SECONDS
        if not is_last and now - self._drawn < wait:
            return
        self._drawn = now
        text = f"  {what} {done}" if total is None else f"  {what} {done}/{total}"
        if on_terminal:
            text += self._rate(done, total, now)
            text = text[: shutil.get_terminal_size().columns - 1]
            _write(_CLEAR + text + ("\n" if is_last else ""))
            self._has_line = not is_last
        else:
            self._print(text)

    def _rate(self, done: int, total: int | None, now: float) -> str:
        """`, 12.3/s, 0:01:20 left`, as far as they are known."""
        _, first, began = self._task
        if done <= first or now <= began:
            return ""
        speed = (done - first) / (now - began)
        text = f", {speed:,.1f}/s" if speed >= 1 else f", {1 / speed:,.1f} s each"
        if total is not None and done < total:
            text += f", {timedelta(seconds=int((total - done) / speed))} left"
        return text

    def counts_lines(self, to_stdout: bool) -> bool:
        """Whether to show progress of a command that streams lines: to a terminal, or with `-v`."""
        # On a terminal that has the lines, too, it would stand between them.
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
        if self._has_line:
            self._has_line, self._drawn = False, _NEVER
            _write(_CLEAR)


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
