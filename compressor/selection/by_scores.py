"""Units by scores alone: those that are scored, and those that a number of units keeps."""

from __future__ import annotations

from compressor.budgets import Counts
from compressor.budgets.competing import UNITS_TO_PRUNE, Prune
from compressor.budgets.units import select
from compressor.importance import UnitMethod
from compressor.importance.scoring import score
from compressor.model.sublayers import Mask, Scores, Sublayer, units_of
from compressor.report.scores_file import require_units
from compressor.steps.context import Context
from compressor.tasks.opened import ModelAndRows


def score_units(
    method: UnitMethod, prune: Prune, *, opened: ModelAndRows, context: Context
) -> Scores:
    """Scores of all heads, neurons or tokens of a dense model.

    Args:
        method: how to score.
        prune: which units.
        opened: the model, and the rows to score on.
        context: how to compute.
    """
    layers, units = opened.checkpoint.layers, UNITS_TO_PRUNE[prune]
    method.check_units(units)
    sublayers = [layer for layer in layers if units_of(layer.kind) in units]
    full = Mask.full(layers)
    start = full.with_tokens() if "tokens" in units else full
    return score(start, method, sublayers, opened=opened, context=context)


def units_by_scores(budget: Counts, scores: Scores, layers: list[Sublayer]) -> Mask:
    """The units that a budget keeps by scores.

    Args:
        budget: how many units.
        scores: of the dense model.
        layers: its sublayers.

    Raises:
        UsageError: the budget is about units without scores, or cannot be met.
    """
    full = Mask.full(layers)
    require_units(scores, budget.units(full), budget.text)
    limits = budget.limits(full)
    budget.require_possible(limits)
    return select(scores, limits.full, budget.amounts(limits.full), limits.floors, limits.multiples)
