"""Which units go: a budget chooses by scores, or a mask is learned with weights that belong to it.

Scores give a mask at once or in steps; with a recovery method the model is repaired between the
steps, so that the next scores are those of the model that is really left. Weights that differ from
the checkpoint's are kept beside the stage's result, so that a stopped run goes on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_file, save_file

from compressor import parallel
from compressor.budgets import Choice, Limits, Trials
from compressor.budgets.base import Cut, Tried
from compressor.budgets.path import PathCut, UnitCosts
from compressor.budgets.units import latest_scores
from compressor.learned_masks import learn as learn_mask
from compressor.learned_masks.method import LearnedMask, LearningJob
from compressor.model.checkpoint import Checkpoint
from compressor.model.restore_shape import restore_shape
from compressor.model.sublayers import Mask, Scores
from compressor.model.surgery import prune
from compressor.pipeline.inputs import Fitted
from compressor.pipeline.judge import Judge
from compressor.pipeline.layers import divergence_after_repair, find_layers
from compressor.pipeline.repair import Repair
from compressor.pipeline.score import Scorer, score
from compressor.pipeline.stages import stage, weights_file
from compressor.pipeline.time_masks import Timer, time_mask, time_units
from compressor.report.max_drop import unproven
from compressor.request.plan import ArtifactPlan
from compressor.results import QualityProbe, QualitySearch, Source, Throughput, Timing
from compressor.storage.files import written_at_once
from compressor.storage.workspace import Workspace
from compressor.tasks import TASKS

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class RunTrials:
    """What a run does for the budget of one plan; see `compressor.budgets.base.Trials`.

    Args:
        timer: times choices; None where the run measures no throughput.
        artifact_judge: compares built models; None where there are no rows to search on.
    """

    workspace: Workspace
    plan: ArtifactPlan
    limits: Limits
    costs: UnitCosts
    scorer: Scorer
    repair: Repair
    timer: Timer | None
    artifact_judge: Judge | None

    def message(self, text: str) -> None:
        self.workspace.progress.message(text)

    def scores(self) -> Scores:
        return score(self.workspace, self.scorer, self.limits.start)

    def cut_in_steps(self, cuts: Sequence[Cut]) -> Choice:
        """See `Trials`; the weights of a model that was repaired between steps are kept."""
        scores = self.scores()
        first, *later = cuts
        repairs = bool(later) and bool(self.repair.steps)
        layers, dense = self.scorer.checkpoint.layers, self.scorer.checkpoint.model
        mask, model = first(scores, self.limits.start), dense
        for number, cut in enumerate(later, 1):
            if repairs:
                # The next scores need the dense model's shape, in which masks name units.
                pruned = prune(model, layers, mask)
                repaired = self.repair.run(pruned, mask, f"{self.plan.name}-step-{number}")
                model = restore_shape(dense, repaired.model, layers, mask)
            latest = self.scorer.score(mask, model)
            scores = latest_scores(scores, latest, mask)
            mask = cut(latest, mask)
        if model is not dense:
            path = weights_file(self.workspace, "choice", plan=self.plan)
            parallel.on_main(lambda: _save_weights(model, path))
        steps = self.plan.budget.scorings
        return Choice(mask, scores, f"{steps} steps, repaired after each" if repairs else "")

    def time_units(self, kinds: Sequence[str], counts: Sequence[int], at_batch: int) -> Throughput:
        assert self.timer is not None
        text = ", ".join(map(str, counts))
        return time_units(self.workspace, self.timer, "+".join(kinds), text, counts, at_batch)

    def time_mask(self, mask: Mask, number: int, at_batch: int) -> Timing:
        assert self.timer is not None
        return time_mask(self.workspace, self.timer, mask, number, at_batch)

    @property
    def _judge(self) -> Judge:
        assert self.artifact_judge is not None
        return self.artifact_judge

    def layer_to_drop(self, stack: str, gone: Sequence[str]) -> str:
        return next_layer(self.workspace, self, stack, gone, ",".join([*gone, stack]))

    def try_layers(self, gone: Sequence[str], choose: Callable[[Trials], Choice]) -> Tried:
        return try_layers(self.workspace, self, gone, ",".join(gone) or "none", choose)

    def require_sight(self, asked: str, drop: float) -> None:
        self._judge.require_sight(asked, drop)

    def least_provable_drop(self, error: float) -> float:
        return self._judge.least_provable_drop(error)

    def search_rows(self) -> tuple[Source, int, str]:
        return self._judge.described()

    def warn_if_unproven(self, search: QualitySearch) -> None:
        warning = unproven(search)
        if warning:
            self.message(f"warning: {warning}")

    def judge(self, cut: PathCut, drop: float, error: float) -> QualityProbe:
        return self._judge.judge(self.plan, self.scores(), cut, drop, error)

    def judge_held_out(self, cut: PathCut, drop: float, error: float) -> QualityProbe:
        return self._judge.judge_held_out(self.plan, self.scores(), cut, drop, error)


@stage("choice")
def choose(workspace: Workspace, plan: ArtifactPlan, trials: RunTrials) -> Choice:
    """The units that a plan keeps: as its budget chooses by scores, or by a learned mask."""
    method = trials.scorer.method
    if isinstance(method, LearnedMask):
        return _learn(workspace, plan, trials, method)
    return plan.budget.choose(trials)


def _learn(
    workspace: Workspace, plan: ArtifactPlan, trials: RunTrials, method: LearnedMask
) -> Choice:
    """What a learned mask keeps; weights that were trained with it are kept beside the result."""
    scorer, progress = trials.scorer, workspace.progress
    checkpoint = scorer.checkpoint
    keep, penalty = plan.budget.to_learn(trials.limits.full)
    learned = learn_mask(
        method,
        LearningJob(
            model=checkpoint.model,
            layers=scorer.sublayers,
            examples=scorer.fitted.examples,
            task=TASKS[checkpoint.task],
            keep=keep,
            penalty=penalty,
            floors=trials.limits.floors,
            multiples=trials.limits.multiples,
            seed=scorer.seed,
            device=scorer.device,
            state=workspace.state / f"gates-{plan.name}.safetensors",
            report=progress.message,
            progress=lambda done, total: progress.update("training steps", done, total),
        ),
    )
    if learned.model is not checkpoint.model:
        path = weights_file(workspace, "choice", plan=plan)
        parallel.on_main(lambda: _save_weights(learned.model, path))
    mask = Mask({**trials.limits.full.keep, **learned.mask.keep})
    return Choice(mask, learned.scores, learned.text)


@stage("layers")
def drop_layers(
    workspace: Workspace,
    checkpoint: Checkpoint,
    fitted: Fitted,
    numbers: Mapping[str, int],
    device: str,
) -> dict[str, float]:
    """The layers that go, and the divergence in nats per loss term when each is gone.

    Args:
        numbers: stack -> how many of its layers go.
    """
    found = find_layers(checkpoint, fitted, numbers, device, workspace.progress)
    for name, divergence in found.items():
        workspace.progress.message(f"  without {name}: divergence {divergence:.3f}, unrepaired")
    return found


@stage("next-layer")
def next_layer(
    workspace: Workspace, trials: RunTrials, stack: str, gone: Sequence[str], layers: str
) -> str:
    """The layer of a stack that goes next.

    Args:
        layers: those gone, and the stack, for messages.
    """
    scorer = trials.scorer
    found = find_layers(
        scorer.checkpoint, scorer.fitted, {stack: 1}, scorer.device, workspace.progress, gone
    )
    return next(iter(found))


@stage("layers-try")
def try_layers(
    workspace: Workspace,
    trials: RunTrials,
    gone: Sequence[str],
    layers: str,
    choose: Callable[[Trials], Choice],
) -> Tried:
    """A choice of units after some layers were dropped, and what it costs.

    Args:
        layers: those gone, for messages.
    """
    limits = replace(trials.limits, dropped=frozenset(gone))
    choice = choose(TrialWithoutLayers(**vars(trials) | {"limits": limits}))
    return Tried(choice, divergence_after_repair(trials.repair, choice.mask))


class TrialWithoutLayers(RunTrials):
    """One try of `try_layers`, whose parts are no stages of their own."""

    def scores(self) -> Scores:
        return self.scorer.score(self.limits.start)

    def time_mask(self, mask: Mask, number: int, at_batch: int) -> Timing:
        timer = self.timer
        assert timer is not None
        return parallel.on_main(lambda: timer.time_one(self.workspace, mask, at_batch))


def chosen_model(workspace: Workspace, plan: ArtifactPlan, checkpoint: Checkpoint) -> nn.Module:
    """What a plan's units are cut from: the checkpoint's model, or the weights of its choice."""
    path = weights_file(workspace, "choice", plan=plan)
    if not path.exists():
        return checkpoint.model
    model = copy.deepcopy(checkpoint.model)
    model.load_state_dict(load_file(path))
    return model


def _save_weights(model: nn.Module, path: Path) -> None:
    # Tied weights share memory, which the file format refuses: every name gets a copy.
    tensors = {n: t.to("cpu", copy=True).contiguous() for n, t in model.state_dict().items()}
    with written_at_once(path) as staged:
        save_file(tensors, staged)
