"""What a run starts from, opened and checked before the first long computation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from compressor import parallel
from compressor.budgets import Budget, Limits
from compressor.budgets.units import UnitCosts
from compressor.errors import InputError
from compressor.export.precision_names import BASE, precisions_to_export
from compressor.export.source_text import cut_vocabulary, embedding_rows
from compressor.model.checkpoint import Checkpoint
from compressor.model.location import checkpoint_files
from compressor.model.sublayers import Mask, Sublayer, units_of
from compressor.parallel import launch
from compressor.pipeline import inputs
from compressor.pipeline.inspection import unit_costs
from compressor.pipeline.recover import open_text, require_trainable
from compressor.progress import Progress
from compressor.recovery import earlier_artifact
from compressor.request.recipe import Recipe
from compressor.request.sections import Card, Gate
from compressor.request.validate import check_model, gate_rules, texts_to_keep
from compressor.results import Source
from compressor.storage.hashes import fingerprint, sha256_of, sha256_of_text
from compressor.storage.version import __version__
from compressor.tasks import TASKS, Rows
from compressor.tasks.texts import TextFile
from compressor.training.data import Text


@dataclass(frozen=True)
class ArtifactPlan:
    """One of the run's budgets, and where its artifact goes."""

    name: str
    budget: Budget
    directory: Path = field(compare=False)


@dataclass(frozen=True)
class RunSetup:
    """A run's recipe, resolved, and what it opened."""

    recipe: Recipe
    output: Path
    dense: inputs.ModelAndRows  # the model as given, to compare with
    source: inputs.ModelAndRows  # what units are removed from; maybe with fewer tokens
    data: inputs.DataRows
    limits: Limits
    costs: UnitCosts
    artifacts: Sequence[ArtifactPlan]
    text: Text | None  # to distill from
    source_text: TextFile | None
    target_text: TextFile | None
    tokens: list[int] | None  # that decoders of pruned models score; None for all
    engines: Sequence[str]  # to export for, and to compare with
    precisions: Sequence[str]  # to export, float32 first

    @property
    def device(self) -> str:
        return self.source.device

    @property
    def sha256(self) -> str:
        """SHA-256 of the results of the first steps, which later ones depend on."""
        return sha256_of_text(json.dumps([self.tokens, sorted(self.limits.dropped)]))

    @property
    def sublayers(self) -> list[Sublayer]:
        """Those whose units may go."""
        layers = self.source.checkpoint.layers
        return [x for x in layers if units_of(x.kind) in self.limits.units]

    def written_bytes(self) -> int:
        """About how much a run writes; at most, as if pruned models were as large as the dense."""
        model, text = self.dense.checkpoint.model, self.text
        graphs, weights = (inputs.export_bytes(model, x) for x in (self.precisions, [BASE]))
        unpacked = text.lines.size if text and text.lines.is_packed else 0
        return graphs + len(self.artifacts) * (graphs + weights) + unpacked

    def identity(self) -> dict[str, Any]:
        """What must be the same for a stopped run to go on: options, and all inputs' SHA-256."""
        recipe, data = self.recipe, self.data
        free = {*Card.model_fields, *Gate.model_fields, "verify"}
        start = earlier_artifact(recipe.recovery)
        rows = {"calibration": data.calibration, "test": data.test, "search": data.search}
        texts = {
            "source": self.source_text and self.source_text.path,
            "target": self.target_text and self.target_text.path,
            "distill": self.text and self.text.lines.path,
        }
        identity = {
            **{name: value for name, value in recipe.options.items() if name not in free},
            "device": self.device,
            "version": __version__,
            "weights": fingerprint(checkpoint_files(self.dense.checkpoint.directory)),
            "start_weights": start and fingerprint(checkpoint_files(start)),
            **{f"{name}_sha256": x and x.sha256 for name, x in rows.items()},
            **{f"{name}_text_sha256": path and sha256_of(path) for name, path in texts.items()},
            "tokenizers": dict(data.fitted.tokenizers),
        }
        advice = "give all ranks the same options, model and data"
        launch.require_same(identity, advice, InputError, "ranks-differ-in-inputs")
        return identity


def prepare(recipe: Recipe, dense: Checkpoint, output: Path, progress: Progress) -> RunSetup:
    """Read the rows of a resolved recipe, and check all that can be checked in advance."""
    task = TASKS[dense.task]
    recipe = check_model(recipe, dense, task)
    source_text, target_text = texts_to_keep(recipe.export, recipe.data, dense, progress)
    data = inputs.read(recipe.data, dense, task, progress, recipe.evaluation.tokenizers)
    if data.test is not None:
        for rule in gate_rules(recipe.gate):
            rule.require_rows(data.test)
    device, engines = inputs.pick_device(recipe.device, progress), recipe.export.engines
    inputs.require_engines(engines, task, device)
    limits = recipe.budget.limits(Mask.full(dense.layers))
    artifacts = plan_artifacts(recipe, limits, output)
    if recipe.budget.searches_rows:
        data = inputs.hold_out(data, recipe.seed)
    inputs.warn_of_shared_rows(data, progress)
    checkpoint = dense
    if source_text is not None:
        progress.message(f"cutting {source_text.path.name} into tokens …")
        checkpoint = cut_vocabulary(dense, source_text)
        kept, total = (embedding_rows(x.model)[0] for x in (checkpoint, dense))
        progress.message(f"  {kept:,} of {total:,} tokens are kept")
    with_rows = partial(
        inputs.with_rows, rows=data.fitted, calibrated=data.calibration is not None,
        device=device, seed=recipe.seed,
    )  # fmt: skip
    source = with_rows(checkpoint, progress=progress)
    costs = unit_costs(checkpoint, task, source.examples)
    for artifact in artifacts:
        artifact.budget.require_enough_may_go(limits, costs)
    require_trainable(recipe.recovery, len(source.examples), learns=recipe.method.learns)
    require_rows_for_ranks(len(source.examples))
    return RunSetup(
        recipe=recipe, output=output, source=source, data=data,
        dense=source if checkpoint is dense else with_rows(dense),
        limits=limits, costs=costs, artifacts=artifacts,
        text=open_text(recipe.recovery, data.fitted, checkpoint, recipe.data, progress),
        source_text=source_text, target_text=target_text,
        tokens=task.graphs.output_tokens(checkpoint),
        engines=inputs.engines_to_measure(engines, task, device, recipe.throughput is not None),
        precisions=precisions_to_export(recipe.export.precision, device),
    )  # fmt: skip


def plan_artifacts(recipe: Recipe, limits: Limits, output: Path) -> list[ArtifactPlan]:
    """One plan for each budget, if the model can meet it; several get a directory each."""
    budgets: dict[str, Budget] = {budget.slug: budget for budget in recipe.budget.each()}
    for budget in budgets.values():
        budget.require_possible(limits)
        if recipe.method.learns:
            keep, _ = budget.to_learn(limits.full)
            recipe.method.check_size(keep or {}, limits.full)
    recipe.method.check_units(limits.units)
    return [
        ArtifactPlan(name, budget, output if len(budgets) == 1 else output / name)
        for name, budget in budgets.items()
    ]


def require_rows_for_ranks(rows: int) -> None:
    """Raise `InputError` if a rank would have no row, also when half of the rows are held out."""
    if rows < 2 * parallel.size():
        raise InputError(
            f"{rows} calibration rows are too few for {parallel.size()} processes, which take two "
            "each at least; give more rows, or start fewer processes",
            id="fewer-rows-than-ranks",
        )


def source_of(rows: Rows) -> Source:
    """Rows, for reports."""
    return Source(files=rows.files, rows=rows.count, sha256=rows.sha256, read=rows.read)


def source_of_text(file: TextFile) -> Source:
    """A file of texts, for reports."""
    path = file.path
    return Source(files=[path.as_posix()], rows=file.count(), sha256=sha256_of(path))
