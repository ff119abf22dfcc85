"""The errors a user can cause or meet, each with the exit status the command line gives it.

A message is one sentence: what is wrong (with the value), where, and what to do about it.
Anything that is not a `CompressError` is a bug (exit status 70).
"""

from __future__ import annotations


class CompressError(Exception):
    """Base of all expected errors; never raised itself."""

    exit_code = 70


class UsageError(CompressError):
    """Options or a recipe that make no sense."""

    exit_code = 2


class EnvironmentProblem(CompressError):
    """A device, provider or package that was asked for is not there."""

    exit_code = 3


class InputError(CompressError):
    """A missing or malformed file, unsupported architecture, or unusable data."""

    exit_code = 4


class VerificationError(CompressError):
    """The smaller model does not do what it must: pruned != masked, or ONNX != PyTorch."""

    exit_code = 5
