"""Bases of the budgets for which units compete: what goes, and by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, Self

from compressor.budgets.base import Budget, Limits
from compressor.budgets.units import parse_layers, removal_groups
from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Scores, Units, units_of
from compressor.options.declare import option

Prune = Literal["heads", "neurons", "both", "tokens", "all"]
UNITS_TO_PRUNE: Mapping[Prune, frozenset[Units]] = {
    "heads": frozenset({"heads"}),
    "neurons": frozenset({"neurons"}),
    "both": frozenset({"heads", "neurons"}),
    "tokens": frozenset({"tokens"}),
    "all": frozenset({"heads", "neurons", "tokens"}),
}


class CompetingUnits(Budget):
    """Base of budgets for which heads, neurons and tokens compete."""

    prune: Prune | None = option(
        None,
        help="Which units go: heads, neurons, both (heads and neurons), tokens, or all. Tokens are "
        "what encoders hand on to the next layer, of tasks that read one token. Default: all on "
        "CPUs where model and method allow it, else both.",
    )
    drop_layers: str | None = option(
        None,
        help="Whole layers that go first, those whose skipping changes predictions least: "
        "decoder=2, or encoder=1,decoder=2; with --speedup also search.",
    )
    even_heads: bool = option(
        False,
        help="All attentions of the encoder keep equally many heads, all of the decoder too: "
        "CTranslate2 computes as many for each as the largest has.",
    )

    # Whole sublayers may go, which saves their fixed cost as well.
    default_floor: ClassVar[str] = "0"

    def layers_to_drop(self, full: Mask) -> dict[str, int]:
        """Stack -> how many of its layers go before units are chosen."""
        return {} if self.drop_layers is None else parse_layers(self.drop_layers, full)

    def limits(self, full: Mask) -> Limits:
        """What may go, with the layers that go first."""
        limits = super().limits(full)
        return replace(limits, to_drop=self.layers_to_drop(full), even=self.even_heads)

    @property
    def asks_for_tokens(self) -> str:
        """`--prune tokens`, `--prune all`, or a floor of tokens."""
        by_name = self.prune is not None and "tokens" in UNITS_TO_PRUNE[self.prune]
        return f"--prune {self.prune}" if by_name else super().asks_for_tokens

    def with_default_units(self, tokens: bool) -> Self:
        """A copy with heads and neurons, and with tokens where they can go or have a floor."""
        if self.prune is not None:
            return self
        all_units = tokens or self.asks_for_tokens
        return self.model_copy(update={"prune": "all" if all_units else "both"})

    def units(self, full: Mask) -> frozenset[Units]:
        """Heads, neurons, tokens, as `prune` says; without it heads and neurons."""
        return UNITS_TO_PRUNE[self.prune or "both"]


class SearchedUnits(CompetingUnits):
    """Base of budgets that measure models while they choose."""

    needs_scores: ClassVar[str] = "a budget that is measured"

    def action(self, method: str) -> str:
        """What it searches for, for messages."""
        return f"searching units for {self.text}"

    def require_possible(self, limits: Limits) -> None:
        """Raise `UsageError` if the floors keep all units."""
        scores = scores_of_none(limits)
        if not any(
            removal_groups(scores, limits.start, limits.floors, limits.multiples, limits.even)
        ):
            raise UsageError(
                f"{self.flag_text}: the floors keep all of {limits.start}; lower --floor or "
                "--multiple",
                id="floors-too-high",
            )


def scores_of_none(limits: Limits) -> Scores:
    """Scores of units that may go, none of which is more important than another."""
    totals = limits.start.totals()
    values = {name: (0.0,) * n for name, n in totals.items() if units_of(name) in limits.units}
    return Scores(values, "none", "", {})
