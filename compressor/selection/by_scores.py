"""Units by scores alone: those that are scored, and those that a number of units keeps."""

from __future__ import annotations

from compressor.budgets import Counts
from compressor.budgets.base import Prune
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
    """Scores of all heads or neurons of a dense model, or of both.

    Args:
        method: how to score.
        prune: which units.
        opened: the model, and the rows to score on.
        context: how to compute.
    """
    layers = opened.checkpoint.layers
    sublayers = [x for x in layers if prune in ("both", units_of(x.kind))]
    return score(Mask.full(layers), method, sublayers, opened=opened, context=context)


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
    return select(scores, full, budget.amounts(full), limits.floors, limits.multiples)
