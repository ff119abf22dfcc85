"""The interface for progress of long work; silent unless a caller passes something else.

The command line's console is one implementation (`compressor.commands.console`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from compressor.errors import CompressWarning


class Progress(Protocol):
    """Receives messages and counts of finished work."""

    def message(self, text: str) -> None:
        """Report something that the user should know."""

    def detail(self, text: str) -> None:
        """Report something that only a user who asked for details wants to know."""

    def update(self, what: str, done: int, total: int | None) -> None:
        """Report how far some work is.

        Args:
            what: is counted, in the plural.
            done: number that is finished.
            total: number of all; None if it is unknown.
        """


class _Silent:
    """Reports nothing; the default when used as a library."""

    def message(self, text: str) -> None: ...
    def detail(self, text: str) -> None: ...
    def update(self, what: str, done: int, total: int | None) -> None: ...


SILENT = _Silent()


@contextmanager
def warnings_as_messages(progress: Progress) -> Iterator[None]:
    """Show our own warnings as messages, without their place in the code."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, CompressWarning):
            progress.message(f"warning: {message}")
        else:
            usual(message, category, *rest, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", CompressWarning)
        warnings.showwarning = show
        yield
