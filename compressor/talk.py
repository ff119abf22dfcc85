"""How long work tells what it is doing; the command line's console is one, silence the default."""

from __future__ import annotations

from typing import Protocol


class Talk(Protocol):
    """Receives messages and progress; never asks."""

    def say(self, message: str) -> None: ...

    def detail(self, message: str) -> None: ...

    def progress(self, what: str, done: int, total: int | None) -> None: ...


class Silent:
    """For use as a library."""

    def say(self, message: str) -> None:
        pass

    def detail(self, message: str) -> None:
        pass

    def progress(self, what: str, done: int, total: int | None) -> None:
        pass


SILENT = Silent()
