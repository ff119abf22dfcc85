"""Refusing options that do not go together: what several requests check."""

from __future__ import annotations

from collections.abc import Sequence

from compressor.errors import UsageError
from compressor.importance import UnitMethod
from compressor.options.sections import CalibrationData
from compressor.recovery import RecoveryMethod

CLASH, USELESS = "options-exclude-each-other", "option-without-use"


def refuse(is_wrong: bool, id: str, message: str) -> None:
    """Raise `UsageError` with an id and a message, if something is wrong."""
    if is_wrong:
        raise UsageError(message, id=id)


def require_rows(
    method: UnitMethod | None, recovery: Sequence[RecoveryMethod], data: CalibrationData
) -> None:
    """Raise `UsageError` if a method or a recovery needs calibration rows and none are given."""
    if data.calibration is not None:
        return
    missing, wanted = "calibration-missing", "needs --calibration FILE; give one"
    if method is not None:
        refuse(method.needs_rows, missing, f"--method {method.name} {wanted}")
    names = "+".join(step.name for step in recovery)
    refuse(bool(recovery), missing, f"--recover {names} {wanted}, or --recover none")
