"""The progress line of a terminal: what, done/total, rate and time left, rewritten in place."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

_REDRAW_SECONDS = 0.2
_CLEAR = "\r\033[K"


class ProgressLine:
    """Draws one line; `update` and `clear` return what to write to the terminal.

    Rich computes and lays out the line but does not run its live display: that hides the cursor,
    redraws from a thread, which would disturb timings, and must be stopped on every way out.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._console = Console(file=terminal, force_terminal=True)
        self._progress = Progress(
            TextColumn("  {task.description}", markup=False),
            BarColumn(bar_width=20, table_column=Column(no_wrap=True)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            _RateAndTimeLeft(table_column=Column(no_wrap=True)),
            console=self._console,
            auto_refresh=False,
        )
        self._drawn = float("-inf")
        self.visible = False

    def update(self, what: str, done: int, total: int | None) -> str:
        """The new line, ended where everything is done; empty if it was drawn just now."""
        tasks = self._progress.tasks
        if not tasks or tasks[0].description != what or done < tasks[0].completed:
            for task in tasks:
                self._progress.remove_task(task.id)
            self._progress.add_task(what, total=total)
            self._drawn = float("-inf")
        (task,) = self._progress.tasks
        self._progress.update(task.id, total=total, completed=done)
        now = time.monotonic()
        if not task.finished and now - self._drawn < _REDRAW_SECONDS:
            return ""
        self._drawn, self.visible = now, not task.finished
        with self._console.capture() as captured:
            self._console.print(self._progress.get_renderable())
        line = _CLEAR + captured.get().split("\n")[0].rstrip()
        if task.finished:
            self._progress.remove_task(task.id)
            line += "\n"
        return line

    def clear(self) -> str:
        """Removes the line, for other text to take its place until the next update."""
        self.visible, self._drawn = False, float("-inf")
        return _CLEAR


class _RateAndTimeLeft(ProgressColumn):
    """`12.3/s, 0:01:20 left`, as far as they are known."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        text = f"{speed:,.1f}/s" if speed >= 1 else f"{1 / speed:,.1f} s each"
        if not task.finished and task.time_remaining is not None:
            text += f", {timedelta(seconds=int(task.time_remaining))} left"
        return Text(text)
