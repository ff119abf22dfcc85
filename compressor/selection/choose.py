"""Which units go: a budget chooses by scores and by what it has measured, or a mask is learned.

Every measurement is a step of its own, from which a stopped search goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.budgets import Budget, Limits
from compressor.importance import UnitMethod
from compressor.importance.scoring import score
from compressor.learned_masks import LearnedMask
from compressor.learned_masks.units import learn_units
from compressor.model.sublayers import Mask, Scores, units_of
from compressor.model.surgery import prune, restore_shape
from compressor.recovery.layers import RunLayers
from compressor.recovery.planning import RecoveryPlan, recover
from compressor.recovery.probes import RunTrainings
from compressor.recovery.pruned import keep_weights
from compressor.report.search_section import unproven
from compressor.selection.judge import RunJudge
from compressor.selection.values import ArtifactPlan, Measuring, Prunable
from compressor.steps.context import Context
from compressor.steps.results import QualitySearch
from compressor.steps.values import ChosenUnits, DecoderTokens, Exported
from compressor.throughput.timer import RunTimer

if TYPE_CHECKING:
    from torch import nn


def select_units(
    artifact: ArtifactPlan,
    limits: Limits,
    recovery: RecoveryPlan,
    scored: DecoderTokens,
    dense: Exported,
    measuring: Measuring,
    *,
    opened: Prunable,
    context: Context,
) -> ChosenUnits:
    """The units that an artifact keeps, learned or chosen by its budget.

    Args:
        artifact: its name, its budget and how units are scored.
        limits: what may go, without the layers that were dropped before.
        recovery: of candidates, and between steps.
        scored: tokens that decoders of candidates score.
        dense: the exported dense model, which candidates are compared with.
        measuring: how candidates are measured.
        opened: the model, and its rows.
        context: how to compute.

    Raises:
        UsageError: the budget cannot be met.
    """
    steps, budget = context.steps, artifact.budget
    method = artifact.method
    how: dict[str, Any] = {
        "title": budget.action(method.name if method.learns else ""),
        "shared": True,
        "into": steps.state / artifact.name,
        "context": context,
    }
    if isinstance(method, LearnedMask):
        inputs_of_mask = artifact.name, budget, method, limits
        chosen = steps.do(learn_units, *inputs_of_mask, opened=opened.source, **how)
    else:
        scores = dense_scores(limits.start, method, opened, context)
        inputs = artifact, scores, limits, recovery, scored, dense, measuring
        chosen = steps.do(choose, *inputs, opened=opened, **how)
    if chosen.text:
        context.progress.message(f"  {chosen.text}")
    return chosen


def dense_scores(start: Mask, method: UnitMethod, opened: Prunable, context: Context) -> Scores:
    """Scores of all units of the dense model that may go; a step.

    Args:
        start: all units but those of dropped layers.
        method: that scores.
        opened: the model, and its rows.
        context: how to compute.
    """
    sublayers = opened.limits.sublayers(opened.source.checkpoint.layers)
    full = Mask.full(sublayers)
    names = sorted({units_of(kind) for kind in full.kinds()})
    counted = [f"{full.total(name):,} {name}" for name in names]
    units = " and ".join([*counted, *(["tokens"] if start.total("tokens") else [])])
    return context.steps.do(
        score,
        start,
        method,
        sublayers,
        title=f"scoring {units} with {method.name}",
        shared=True,
        opened=opened.source,
        context=context,
    )


def choose(
    artifact: ArtifactPlan,
    scores: Scores,
    limits: Limits,
    recovery: RecoveryPlan,
    scored: DecoderTokens,
    dense: Exported,
    measuring: Measuring,
    *,
    directory: Path,
    opened: Prunable,
    context: Context,
) -> ChosenUnits:
    """Let a budget choose units; it gets what its `choose` names as parameters.

    Args:
        artifact: its name, its budget and how units are scored.
        scores: of the dense model, without the layers that the limits drop.
        limits: what may go.
        recovery: of candidates, and between steps.
        scored: tokens that decoders of candidates score.
        dense: the exported dense model, which candidates are compared with.
        measuring: how candidates are measured.
        directory: for weights that were recovered between steps.
        opened: the model, and its rows.
        context: how to compute.
    """
    # Scores of the dense model are part of choosing, too.
    timed = replace(context, began=time.monotonic() - scores.cost.get("seconds", 0.0))
    budget, method = artifact.budget, artifact.method
    source, trains = opened.source, any(step.trains for step in recovery.methods)
    scorer = RunScorer(limits.start, scores, method, recovery, opened, context)
    offers: Mapping[str, Callable[[], Any]] = {
        "limits": lambda: limits,
        "costs": lambda: opened.costs,
        "scorer": lambda: scorer,
        "timer": lambda: timer_of(budget, scored, dense, measuring, opened, context),
        "judge": lambda: RunJudge(artifact, recovery, scored, dense, measuring, opened, context),
        "layers": lambda: RunLayers(recovery, source, context),
        "trainings": lambda: RunTrainings(recovery, source, timed) if trains else None,
        "report": lambda: context.progress.message,
    }
    choice = budget.choose(**{name: offers[name]() for name in signature(budget.choose).parameters})
    if isinstance(choice.search, QualitySearch):
        warning = unproven(choice.search)
        if warning:
            context.progress.message(f"warning: {warning}")
    weights, text = None, choice.text
    if scorer.model is not source.checkpoint.model:
        weights = keep_weights(scorer.model, directory)
        text = f"{budget.scorings} steps, recovered after each"
    return ChosenUnits(
        name=artifact.name,
        budget=budget.text,
        mask=choice.mask,
        scores=choice.scores,
        text=text,
        search=choice.search,
        weights=weights,
    )


def timer_of(
    budget: Budget,
    scored: DecoderTokens,
    dense: Exported,
    measuring: Measuring,
    opened: Prunable,
    context: Context,
) -> RunTimer:
    """The timer of a budget's candidates."""
    assert measuring.timing is not None
    engine = budget.timed_engine or dense.model.engine
    return RunTimer(
        dense=dense,
        scored=scored,
        engine=engine,
        precision=measuring.precision,
        settings=measuring.timing,
        opened=opened.source,
        rows=opened.data.timed,
        context=context,
    )


class RunScorer:
    """Scores units by the run's method (`budgets.Scorer`)."""

    def __init__(
        self,
        start: Mask,
        scores: Scores,
        method: UnitMethod,
        recovery: RecoveryPlan,
        opened: Prunable,
        context: Context,
    ) -> None:
        self.model = opened.source.checkpoint.model  # that was scored last
        self._start = start
        self._scores = scores  # of the dense model with these units
        self._method = method
        self._recovery = recovery
        self._opened = opened
        self._context = context
        self._rescored = 0  # how often

    def scores(self, start: Mask) -> Scores:
        """See `Scorer`."""
        if start == self._start:
            return self._scores
        return dense_scores(start, self._method, self._opened, self._context)

    def rescored(self, mask: Mask) -> Scores:
        """See `Scorer`."""
        self._rescored += 1
        if self._recovery.methods:
            self.model = self._recovered(mask)
        return score(
            mask,
            self._method,
            self._opened.limits.sublayers(self._opened.source.checkpoint.layers),
            opened=self._opened.source,
            context=self._context,
            model=self.model,
        )

    def _recovered(self, mask: Mask) -> nn.Module:
        """The model without the units that are gone, recovered, in the dense model's shape."""
        source, context = self._opened.source, self._context
        layers, dense = source.checkpoint.layers, source.checkpoint.model
        pruned = prune(self.model, layers, mask)
        state = context.state_file(f"recovery-step-{self._rescored}.safetensors")
        how = self._recovery
        recovered = recover(how, pruned, mask, opened=source, context=context, state=state)
        # The next scores need the dense model's shape, in which masks name units.
        return restore_shape(dense, recovered.model, layers, mask)
