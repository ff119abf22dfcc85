"""What a run starts from, and how it makes the artifact of each budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compressor import parallel
from compressor.budgets import Choice, Limits
from compressor.budgets.path import UnitCosts
from compressor.errors import InputError
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.precision_names import precision_timed, precisions_to_export
from compressor.model.checkpoint import Checkpoint
from compressor.model.sublayers import Mask, units_of
from compressor.pipeline.build import Builder, build, export_dense, export_precision, written_bytes
from compressor.pipeline.choose import RunTrials, choose, drop_layers
from compressor.pipeline.engines import engine_builds, engines_to_measure, require_engines
from compressor.pipeline.evaluate import Answering
from compressor.pipeline.inputs import (
    DataRows,
    EncodedInputs,
    encoded,
    hold_out,
    open_text_option,
    pick_device,
    read,
    target_tokens,
    warn_of_shared_rows,
    with_tokens_of,
)
from compressor.pipeline.judge import Judge
from compressor.pipeline.repair import (
    Repair,
    open_text,
    require_earlier,
    require_rows_to_train,
    unpacked_bytes,
    with_translations,
    with_unpacked_text,
)
from compressor.pipeline.score import Scorer
from compressor.pipeline.time_masks import Timer
from compressor.pipeline.unit_costs import unit_costs
from compressor.progress import SILENT, Progress
from compressor.request.plan import ArtifactPlan, RunPlan, plan_artifacts
from compressor.results import Variant
from compressor.storage.workspace import STATE, Workspace
from compressor.tasks import TASKS
from compressor.tasks.texts import SOURCE, TARGET, TextFile


@dataclass(frozen=True)
class Inputs:
    """What a run starts from, opened and checked before the first long computation.

    Args:
        dense: as given, to compare with.
        encoded: what units are removed from, and the rows to score, repair and check on.
        repair: without the translations of its text.
        precisions: to export, float32 first.
    """

    dense: EncodedInputs
    encoded: EncodedInputs
    data: DataRows
    limits: Limits
    costs: UnitCosts
    artifacts: Sequence[ArtifactPlan]
    repair: Repair
    source_text: TextFile | None
    target_text: TextFile | None
    device: str
    precisions: Sequence[str]


def written_by_run(inputs: Inputs) -> int:
    """About how many bytes a run writes in all."""
    model = inputs.dense.checkpoint.model
    artifacts = written_bytes(model, inputs.precisions, len(inputs.artifacts))
    return artifacts + unpacked_bytes(inputs.repair.text)


def prepare(plan: RunPlan, dense: Checkpoint, output: Path, progress: Progress) -> Inputs:
    """Open and check all that can be checked before the first long computation."""
    task = TASKS[dense.task]
    data = read(plan.data, dense, task, progress, plan.evaluation.tokenizers)
    if data.test is not None:
        for rule in plan.rules:
            rule.require_rows(data.test)
    device = pick_device(plan.device, progress)
    require_engines(plan.engines, task, device)
    limits = plan.budget.limits(Mask.full(dense.layers))
    artifacts = plan_artifacts(plan, limits, output)
    if plan.budget.searches_rows:
        data = hold_out(data, plan.seed)
    warn_of_shared_rows(data, progress)
    source_text = open_text_option(plan.source_text, SOURCE, task, plan.data)
    checkpoint = with_tokens_of(source_text, dense, progress)
    source = encoded(data, checkpoint, task, progress)
    costs = unit_costs(checkpoint, task, source.fitted.examples)
    for artifact in artifacts:
        artifact.budget.require_enough_may_go(limits, costs)
    require_rows_to_train(plan.recovery, len(source.fitted.examples), learns=plan.method.learns)
    require_earlier(plan.recovery)
    require_rows_for_ranks(len(source.fitted.examples))
    text = open_text(plan.recovery, data.fitted, task, checkpoint, plan.data, progress)
    repair = Repair(
        plan.recovery, checkpoint, source.fitted.examples, plan.seed, device, progress,
        output / STATE, text,
    )  # fmt: skip
    return Inputs(
        dense=source if checkpoint is dense else encoded(data, dense, task, SILENT),
        encoded=source,
        data=data,
        limits=limits,
        costs=costs,
        artifacts=artifacts,
        repair=repair,
        source_text=source_text,
        target_text=open_text_option(plan.target_text, TARGET, task, plan.data),
        device=device,
        precisions=precisions_to_export(plan.precision, device),
    )


def require_rows_for_ranks(rows: int) -> None:
    """Raise `InputError` if a rank would have no row, also when half of the rows are held out."""
    if rows < 2 * parallel.size():
        raise InputError(
            f"{rows} calibration rows are too few for {parallel.size()} processes, which take two "
            "each at least; give more rows, or start fewer processes",
            id="fewer-rows-than-ranks",
        )


@dataclass(frozen=True)
class ArtifactMaker:
    """What the artifacts of all budgets share, and how each is made.

    Args:
        dense: the exported dense model.
        trials: of each budget.
    """

    inputs: Inputs
    workspace: Workspace
    dense: Variant
    builder: Builder
    trials: Sequence[RunTrials]

    def artifact(self, trials: RunTrials) -> tuple[Choice, list[Variant]]:
        """Choose the units of a budget and build its artifact, in float32 and otherwise."""
        choice = choose(self.workspace, trials.plan, trials)
        if choice.text:
            self.workspace.progress.message(f"  {choice.text}")
        pruned = build(self.workspace, trials.plan, choice, self.builder)
        return choice, [pruned, *self.builds_of(pruned, self.inputs.encoded)]

    def builds_of(self, model: Variant, of: EncodedInputs) -> list[Variant]:
        """Other precisions, and other engines, of a model in float32."""
        workspace, device = self.workspace, self.inputs.device
        return [
            export_precision(workspace, model, name, of.checkpoint, of.fitted, of.probe, device)
            for name in self.inputs.precisions[1:]
        ] + engine_builds(model, self.builder.engines, device)


def begin(plan: RunPlan, inputs: Inputs, workspace: Workspace) -> ArtifactMaker:
    """Compute what comes before the artifacts: tokens, layers to drop, the dense model, texts."""
    source, given = inputs.encoded, inputs.dense
    tokens = target_tokens(workspace, source.checkpoint, inputs.target_text)
    inputs = replace(inputs, limits=without_layers(inputs, workspace))
    directory = workspace.state / "dense"
    task, timed = TASKS[given.checkpoint.task], plan.throughput is not None
    engines = engines_to_measure(plan.engines, task, inputs.device, timed)
    dense = export_dense(workspace, given.checkpoint, given.probe, inputs.costs, directory, engines)
    repair = with_translations(with_unpacked_text(inputs.repair, workspace), workspace, dense)
    builder = Builder(workspace, repair, source.probe, tokens, inputs.costs, engines)
    trials = make_trials(plan, inputs, workspace, dense, builder)
    return ArtifactMaker(inputs, workspace, dense, builder, trials)


def without_layers(inputs: Inputs, workspace: Workspace) -> Limits:
    """What may be removed, without the layers that go first."""
    limits = inputs.limits
    if not limits.to_drop:
        return limits
    source = inputs.encoded
    found = drop_layers(workspace, source.checkpoint, source.fitted, limits.to_drop, inputs.device)
    return replace(limits, dropped=frozenset(found))


def make_trials(
    plan: RunPlan, inputs: Inputs, workspace: Workspace, dense: Variant, builder: Builder
) -> list[RunTrials]:
    """What the budget of each plan may have measured."""
    checkpoint, fitted = inputs.encoded.checkpoint, inputs.encoded.fitted
    data, device, seed = inputs.data, inputs.device, plan.seed
    sublayers = [x for x in checkpoint.layers if units_of(x.kind) in inputs.limits.units]
    progress = workspace.progress
    scorer = Scorer(plan.method, checkpoint, sublayers, fitted, seed, device, progress)
    timer, judge = None, None
    if plan.throughput is not None:
        timer = Timer(
            checkpoint, Path(dense.directory), data.timed, plan.throughput, device,
            plan.budget.timed_engine or ONNXRUNTIME, precision_timed(inputs.precisions, device),
        )  # fmt: skip
    if data.search is not None and data.test is not None:
        answering = Answering(device, plan.evaluation.num_beams)
        resamples = plan.evaluation.resamples
        candidates = replace(builder, engines=(ONNXRUNTIME,))  # which are not delivered
        judge = Judge(
            workspace, data.search, data.test, dense, candidates.build, answering, resamples, seed
        )
    return [
        RunTrials(
            workspace, artifact, inputs.limits, builder.costs, scorer, builder.repair, timer, judge
        )
        for artifact in inputs.artifacts
    ]
