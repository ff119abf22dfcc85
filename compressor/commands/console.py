"""The one place that prints: stdout carries the result, stderr the progress."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Console:
    """Where messages and results go.

    Args:
        quiet: no messages, only the result.
        verbose: also what takes less than a line to ignore.
        as_json: the result is one JSON object on stdout.
    """

    quiet: bool = False
    verbose: bool = False
    as_json: bool = False
    _line_open: bool = field(default=False, repr=False)
    _last: float = field(default=0.0, repr=False)

    def message(self, text: str) -> None:
        """A message for the person watching."""
        if not self.quiet:
            self._end_line()
            print(text, file=sys.stderr, flush=True)

    def detail(self, message: str) -> None:
        """A message for the person who asked for more (`-v`)."""
        if self.verbose:
            self.message(message)

    def update(self, what: str, done: int, total: int | None) -> None:
        """A counter: one line that rewrites itself on a terminal, sparse lines elsewhere.

        Args:
            total: where it will end; None if nobody knows.
        """
        if self.quiet:
            return
        now, last = time.monotonic(), total is not None and done >= total
        terminal = sys.stderr.isatty()
        if not last and now - self._last < (0.2 if terminal else 15):
            return
        self._last = now
        line = f"  {what} {done}" if total is None else f"  {what} {done}/{total}"
        if terminal:
            print(f"\r\033[K{line}", end="\n" if last else "", file=sys.stderr, flush=True)
            self._line_open = not last
        else:
            print(line, file=sys.stderr, flush=True)

    def counts_lines(self, to_stdout: bool) -> bool:
        """Whether to count the lines that a command streams: for someone who watches, or `-v`.

        Args:
            to_stdout: they go to stdout. On a terminal the counter would stand between them.
        """
        if to_stdout and sys.stdout is not None and sys.stdout.isatty():
            return False
        return self.verbose or sys.stderr.isatty()

    def result(self, text: str, data: Mapping[str, Any]) -> None:
        """The answer, once per command: `text`, or `data` with `--json`."""
        self._end_line()
        if self.as_json:
            print(json.dumps({"ok": True, **data}, ensure_ascii=False, allow_nan=False))
        else:
            print(text)

    def error(self, message: str, status: int) -> None:
        """A failure in one sentence on stderr, and as the JSON object with `--json`."""
        self._end_line()
        print(f"error: {message}", file=sys.stderr, flush=True)
        if self.as_json:
            print(json.dumps({"ok": False, "error": message, "exit_status": status}))

    def _end_line(self) -> None:
        if self._line_open:
            print(file=sys.stderr)
            self._line_open = False


console = Console()
