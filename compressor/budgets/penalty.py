"""`--penalty`: as many units as a penalty on open gates leaves."""

from __future__ import annotations

from typing import ClassVar

from compressor.budgets.base import Budget, Choice, Evaluator
from compressor.model.sublayers import Mask, Units
from compressor.options.declare import option


class Penalty(Budget):
    """As many heads as a penalty on open gates leaves (hard concrete gates)."""

    penalty: float = option(
        gt=0,
        allow_inf_nan=False,
        selects=True,
        help="hard-concrete: lambda, nats per open head, instead of heads to keep.",
    )

    by_penalty: ClassVar[bool] = True

    @property
    def text(self) -> str:
        return f"penalty {self.penalty:g}"

    def units(self, full: Mask) -> frozenset[Units]:
        return frozenset({"heads"})  # per open head, as in Voita et al. 2019 (docs/gates.md)

    def to_learn(self, full: Mask) -> tuple[dict[str, int] | None, float | None]:
        return None, self.penalty

    def choose(self, evaluator: Evaluator) -> Choice:
        raise AssertionError("gates choose, by the penalty of `to_learn`")
