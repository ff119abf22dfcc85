"""The errors a user can cause or meet, each with the exit status the command line gives it.

A message is one sentence: what is wrong (with the value), where, and what to do about it. The id
names the problem, whatever the wording; `--json` shows it, and tests ask for it.
Anything that is not a `CompressError` is a bug (exit status 70).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import partial
from typing import Any

MOST_CHARACTERS = 4_000  # of a message


class CompressError(Exception):
    """Base of all expected errors; never raised itself.

    Args:
        message: one sentence for the user; the middle of more than MOST_CHARACTERS is left out.
        id: the problem, in kebab-case, for example `tokenizer-unreadable`.
    """

    exit_code = 70

    def __init__(self, message: str, *, id: str) -> None:
        if len(message) > MOST_CHARACTERS:
            message = f"{message[: MOST_CHARACTERS // 2]} … {message[-MOST_CHARACTERS // 2 :]}"
        super().__init__(message)
        self.id = id

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with its id, to be raised in other processes too."""
        return partial(type(self), id=self.id), self.args


class CompressWarning(UserWarning):
    """Something the user should know; the command line shows it as a message."""


class UsageError(CompressError):
    """Options or a recipe that make no sense."""

    exit_code = 2


class EnvironmentProblem(CompressError):
    """A requested device, provider or package is missing."""

    exit_code = 3


class InputError(CompressError):
    """A missing or malformed file, unsupported architecture, or unusable data."""

    exit_code = 4


class VerificationError(CompressError):
    """A smaller model is wrong: pruned != masked, or ONNX != PyTorch."""

    exit_code = 5


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the intended name, such as `; did you mean 'taylor'?`.

    Args:
        name: mistyped.
        known: the names that there are.

    Returns:
        Text to append to a message; empty if none of `known` is close.
    """
    folded = {candidate.casefold(): candidate for candidate in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=1)
    return f"; did you mean {folded[near[0]]!r}?" if near else ""
