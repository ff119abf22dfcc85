"""Which units go: a budget chooses by scores and by what it has measured, or a mask is learned.

Every measurement is a step of its own, from which a stopped search goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor import parallel
from compressor.budgets import Limits
from compressor.importance import UnitMethod
from compressor.importance.depth import divergence
from compressor.learned_masks import LearnedMask, LearningJob
from compressor.learned_masks import learn as learn_mask
from compressor.model.sublayers import Mask, Scores, units_of
from compressor.model.surgery import prune, restore_shape
from compressor.pipeline.build import keep_weights
from compressor.pipeline.context import Context
from compressor.pipeline.judge import RunJudge
from compressor.pipeline.recover import recover
from compressor.pipeline.score import find_layers, score
from compressor.pipeline.timing import RunTimer
from compressor.pipeline.values import (
    ArtifactPlan,
    ChosenUnits,
    Exported,
    ModelAndRows,
    Opened,
    Plan,
    RecoveryPlan,
)
from compressor.recovery import RecoveryMethod
from compressor.report.search_section import unproven
from compressor.results import QualitySearch

if TYPE_CHECKING:
    from torch import nn


def select_units(
    artifact: ArtifactPlan,
    limits: Limits,
    recovery: RecoveryPlan,
    tokens: list[int] | None,
    dense: Exported,
    plan: Plan,
    opened: Opened,
    context: Context,
) -> ChosenUnits:
    """The units that an artifact keeps, learned or chosen by its budget.

    Args:
        limits: what may go, without the layers that were dropped before.
        recovery: of candidates, and between steps.
        tokens: that decoders of candidates score; None for all.
        dense: the exported dense model, which candidates are compared with.

    Raises:
        UsageError: the budget cannot be met.
    """
    steps, budget = context.steps, artifact.budget
    method = plan.recipe.method
    how: dict[str, Any] = {
        "title": budget.action(method.name if method.learns else ""),
        "shared": True,
        "into": steps.state / artifact.name,
        "context": context,
    }
    if isinstance(method, LearnedMask):
        chosen = steps.do(learn, artifact, method, limits, opened=opened, **how)
    else:
        scores = scored(limits.start, method, opened, context)
        inputs = artifact, scores, limits, recovery, tokens, dense
        chosen = steps.do(choose, *inputs, plan=plan, opened=opened, **how)
    if chosen.text:
        context.progress.message(f"  {chosen.text}")
    return chosen


def scored(start: Mask, method: UnitMethod, opened: Opened, context: Context) -> Scores:
    """Scores of all units of the dense model that may go; a step.

    Args:
        start: all units but those of dropped layers.
    """
    full = Mask.full(opened.sublayers)
    names = sorted({units_of(kind) for kind in full.kinds()})
    units = " and ".join(f"{full.total(name):,} {name}" for name in names)
    return context.steps.do(
        score,
        start,
        method,
        opened.sublayers,
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
    tokens: list[int] | None,
    dense: Exported,
    *,
    directory: Path,
    plan: Plan,
    opened: Opened,
    context: Context,
) -> ChosenUnits:
    """What a budget chooses, which gets what it asks for (see `Budget.choose`).

    Args:
        scores: of the dense model, without the layers that the limits drop.
        directory: for weights that were recovered between steps.
    """
    budget, method = artifact.budget, plan.recipe.method
    scorer = RunScorer(limits.start, scores, method, recovery, opened, context)
    offers: Mapping[str, Callable[[], Any]] = {
        "limits": lambda: limits,
        "costs": lambda: opened.costs,
        "scorer": lambda: scorer,
        "timer": lambda: RunTimer(dense, plan, opened, context),
        "judge": lambda: RunJudge(artifact, recovery, tokens, dense, plan, opened, context),
        "layers": lambda: RunLayers(recovery, opened.source, context),
        "report": lambda: context.progress.message,
    }
    choice = budget.choose(**{name: offers[name]() for name in signature(budget.choose).parameters})
    if isinstance(choice.search, QualitySearch):
        warning = unproven(choice.search)
        if warning:
            context.progress.message(f"warning: {warning}")
    weights, text = None, choice.text
    if scorer.model is not opened.source.checkpoint.model:
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


class RunScorer:
    """Scores units by the run's method (`budgets.Scorer`)."""

    def __init__(
        self,
        start: Mask,
        scores: Scores,
        method: UnitMethod,
        recovery: RecoveryPlan,
        opened: Opened,
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
        return scored(start, self._method, self._opened, self._context)

    def rescored(self, mask: Mask) -> Scores:
        """See `Scorer`."""
        self._rescored += 1
        if self._recovery.methods:
            self.model = self._recovered(mask)
        return score(
            mask,
            self._method,
            self._opened.sublayers,
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


@dataclass(frozen=True)
class RunLayers:
    """Finds out what whole layers are worth (`budgets.Layers`)."""

    recovery: RecoveryPlan
    source: ModelAndRows
    context: Context

    def next_to_drop(self, stack: str, dropped: Sequence[str]) -> str:
        """See `Layers`."""
        title = f"finding the next layer to drop: {','.join([*dropped, stack])}"
        inputs = {stack: 1}, dropped
        found = self.context.steps.do(
            find_layers,
            *inputs,
            title=title,
            shared=True,
            opened=self.source,
            context=self.context,
        )
        return next(iter(found))

    def divergence(self, mask: Mask) -> float:
        """See `Layers`."""
        title = f"trying without layers: {','.join(sorted(mask.dropped)) or 'none'}"
        # Training would take as long as the run's own for every number of layers.
        methods = [method for method in self.recovery.methods if not method.trains]
        return self.context.steps.do(
            measure_divergence,
            mask,
            methods,
            title=title,
            shared=True,
            opened=self.source,
            context=self.context,
        )


def measure_divergence(
    mask: Mask, methods: Sequence[RecoveryMethod], *, opened: ModelAndRows, context: Context
) -> float:
    """Divergence from the dense model on held-out rows, in nats per loss term.

    The model with the mask's units is recovered on the other rows.
    """
    from compressor.training.data import hold_out

    dense, layers = opened.checkpoint.model, opened.checkpoint.layers
    learn, held = hold_out(opened.examples, context.seed)
    pruned = prune(dense, layers, mask)
    fitted = replace(opened, examples=learn)
    how = RecoveryPlan(methods)
    recovered = recover(how, pruned, mask, opened=fitted, context=context).model
    batches = opened.task.batches(parallel.shard(held), dense)
    device = context.device
    try:
        return divergence(recovered.to(device), dense.to(device), batches, opened.task, device)
    finally:
        dense.to("cpu")


def learn(
    artifact: ArtifactPlan,
    method: LearnedMask,
    limits: Limits,
    *,
    directory: Path,
    opened: Opened,
    context: Context,
) -> ChosenUnits:
    """What a learned mask keeps, of as many units as its budget wants.

    Args:
        directory: for weights that were trained with the mask.
    """
    source, progress = opened.source, context.progress
    keep, penalty = artifact.budget.to_learn(limits.full)
    job = LearningJob(
        model=source.checkpoint.model,
        layers=opened.sublayers,
        examples=source.examples,
        task=source.task,
        keep=keep,
        penalty=penalty,
        floors=limits.floors,
        multiples=limits.multiples,
        seed=context.seed,
        device=context.device,
        state=context.state_file("gates.safetensors"),
        report=progress.message,
        progress=partial(progress.update, "training steps"),
    )
    learned = learn_mask(method, job)
    mask = Mask({**limits.full.keep, **learned.mask.keep})
    trained = learned.model is not source.checkpoint.model
    weights = keep_weights(learned.model, directory) if trained else None
    name, budget = artifact.name, artifact.budget.text
    return ChosenUnits(name, budget, mask, learned.scores, learned.text, weights=weights)
