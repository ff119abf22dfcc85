"""The sections of methods: one of a table's classes each, told apart by `name`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field

from compressor.importance import METHODS, ScoringMethod, UnitMethod
from compressor.learned_masks import LEARNED
from compressor.recovery import RECOVERIES, RecoveryMethod


def _one_of(*tables: Mapping[str, Any]) -> Any:
    members = tuple(member for table in tables for member in table.values())
    return Annotated[Union[members], Field(discriminator="name")]  # noqa: UP007


if TYPE_CHECKING:
    AnyMethod = UnitMethod
    AnyScoring = ScoringMethod
    AnyRecovery = RecoveryMethod
else:
    AnyMethod = _one_of(METHODS, LEARNED)
    AnyScoring = _one_of(METHODS)
    AnyRecovery = _one_of(RECOVERIES)

DEFAULT_METHOD = METHODS["second-order"]()
METHOD_HELP = f"How to score units: {', '.join(METHODS)}. Default: {DEFAULT_METHOD.name}."
METHOD_OR_MASK_HELP = (
    f"How to find the units to keep. Scores: {', '.join(METHODS)}. Learned masks: "
    f"{', '.join(LEARNED)}. Default: {DEFAULT_METHOD.name}."
)
RECOVER_HELP = (
    "Repair after the cut: reconstruct (least squares), none, distill (train on the dense model's "
    "predictions), or reconstruct+distill."
)
