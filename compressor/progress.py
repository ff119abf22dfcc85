"""Where long work reports what it is doing; silent unless a caller passes something else.

The command line's console is one implementation (`compressor.commands.console`).
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives messages and counts of finished work."""

    def message(self, text: str) -> None:
        """Something the user should know."""

    def detail(self, text: str) -> None:
        """Something only a user who asked for details wants to know."""

    def update(self, what: str, done: int, total: int | None) -> None:
        """`done` of `total` are finished; `total` is None where nobody knows it."""


class Silent:
    """Reports nothing; the default when used as a library."""

    def message(self, text: str) -> None:
        pass

    def detail(self, text: str) -> None:
        pass

    def update(self, what: str, done: int, total: int | None) -> None:
        pass


SILENT = Silent()
