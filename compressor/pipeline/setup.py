"""What a run starts from, opened and checked before the first long computation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compressor import parallel
from compressor.budgets import Limits
from compressor.budgets.path import UnitCosts
from compressor.errors import InputError
from compressor.export.precision_names import precisions_to_export
from compressor.model.checkpoint import Checkpoint
from compressor.model.location import checkpoint_files
from compressor.model.sublayers import Mask, Sublayer, units_of
from compressor.parallel import launch
from compressor.pipeline.build import written_bytes
from compressor.pipeline.engines import engines_to_measure, require_engines
from compressor.pipeline.inputs import (
    DataRows,
    ModelAndRows,
    TargetTokens,
    hold_out,
    open_text_option,
    pick_device,
    read,
    warn_of_shared_rows,
    with_rows,
    with_tokens_of,
)
from compressor.pipeline.recover import open_text, require_earlier, require_rows_to_train
from compressor.pipeline.unit_costs import unit_costs
from compressor.progress import SILENT, Progress
from compressor.request.plan import ArtifactPlan, RunPlan, plan_artifacts
from compressor.request.validate import check_model
from compressor.storage.hashes import sha256_of_text
from compressor.tasks import TASKS
from compressor.tasks.texts import SOURCE, TARGET, TextFile
from compressor.training.text import Text


@dataclass(frozen=True)
class RunSetup:
    """What a run starts from.

    Args:
        output: directory of the run.
        dense: the model as given, to compare with.
        source: what units are removed from: the same, or with the tokens of a text alone.
        text: to distill from.
        translations: SHA-256 of the dense model's translations of the text; empty for none.
        tokens: that decoders of pruned models score.
        engines: to export for, and to compare with.
        precisions: to export, float32 first.
    """

    plan: RunPlan
    output: Path
    dense: ModelAndRows
    source: ModelAndRows
    data: DataRows
    limits: Limits
    costs: UnitCosts
    artifacts: Sequence[ArtifactPlan]
    text: Text | None
    translations: str
    source_text: TextFile | None
    target_text: TextFile | None
    tokens: TargetTokens
    device: str
    engines: Sequence[str]
    precisions: Sequence[str]

    @property
    def sha256(self) -> str:
        """SHA-256 of the results of the first steps, which later ones depend on."""
        state = [self.tokens.tokens, sorted(self.limits.dropped), self.translations]
        return sha256_of_text(json.dumps(state))

    @property
    def sublayers(self) -> list[Sublayer]:
        """Those whose units may go."""
        layers = self.source.checkpoint.layers
        return [x for x in layers if units_of(x.kind) in self.limits.units]

    def written_bytes(self) -> int:
        """About how many bytes a run writes in all."""
        model = self.dense.checkpoint.model
        artifacts = written_bytes(model, self.precisions, len(self.artifacts))
        return artifacts + (self.text.lines.size if self.text and self.text.lines.is_packed else 0)

    def identity(self, progress: Progress) -> dict[str, Any]:
        """What must be the same for a stopped run to go on; see `RunPlan.identity`."""
        files = checkpoint_files(self.dense.checkpoint.directory)
        identity = self.plan.identity(self.device, files, self.data.sha256(), progress)
        identity["tokenizers"] = dict(self.data.tokenizers)
        advice = "give all ranks the same options, model and data"
        launch.require_same(identity, advice, InputError, "ranks-differ-in-inputs")
        return identity


def prepare(plan: RunPlan, dense: Checkpoint, output: Path, progress: Progress) -> RunSetup:
    """Read the rows, and check all that can be checked before the first long computation."""
    task = TASKS[dense.task]
    plan = check_model(plan, dense, task, progress)
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
    source = with_rows(data, checkpoint, progress)
    costs = unit_costs(checkpoint, task, source.examples)
    for artifact in artifacts:
        artifact.budget.require_enough_may_go(limits, costs)
    require_rows_to_train(plan.recovery, len(source.examples), learns=plan.method.learns)
    require_earlier(plan.recovery)
    require_rows_for_ranks(len(source.examples))
    return RunSetup(
        plan=plan,
        output=output,
        dense=source if checkpoint is dense else with_rows(data, dense, SILENT),
        source=source,
        data=data,
        limits=limits,
        costs=costs,
        artifacts=artifacts,
        text=open_text(plan.recovery, data.fitted, task, checkpoint, plan.data, progress),
        translations="",
        source_text=source_text,
        target_text=open_text_option(plan.target_text, TARGET, task, plan.data),
        tokens=TargetTokens(None, task.graphs.output_tokens(checkpoint)),
        device=device,
        engines=engines_to_measure(plan.engines, task, device, plan.throughput is not None),
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
