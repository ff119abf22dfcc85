"""What a run starts from, opened and checked before the first long computation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from compressor import parallel
from compressor.budgets import Budget, Limits
from compressor.budgets.units import UnitCosts
from compressor.errors import InputError, UsageError
from compressor.export.precision_names import BASE, precisions_to_export
from compressor.export.source_text import cut_vocabulary, embedding_rows
from compressor.export.vocabulary import tokens_of_text
from compressor.model.checkpoint import Checkpoint
from compressor.model.location import checkpoint_files
from compressor.model.sublayers import Mask, Sublayer, units_of
from compressor.parallel import launch
from compressor.pipeline.build import export_bytes
from compressor.pipeline.engines import engines_to_measure, require_engines
from compressor.pipeline.inputs import (
    DataRows,
    ModelAndRows,
    hold_out,
    pick_device,
    read,
    warn_of_shared_rows,
    with_rows,
)
from compressor.pipeline.recover import open_text, require_trainable
from compressor.pipeline.unit_costs import unit_costs
from compressor.progress import SILENT, Progress
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
    directory: Path


@dataclass(frozen=True)
class TargetTokens:
    """The tokens that decoders of pruned models score.

    Args:
        source: the text that they occur in; None where none is given.
        tokens: None where all are scored.
    """

    source: Source | None
    tokens: list[int] | None


@dataclass(frozen=True)
class RunSetup:
    """A run's recipe, resolved, and what it opened.

    Args:
        dense: the model as given, to compare with.
        source: what units are removed from: the same, or with the tokens of a text alone.
        text: to distill from.
        translations: SHA-256 of the dense model's translations of the text; empty for none.
        engines: to export for, and to compare with.
        precisions: to export, float32 first.
    """

    recipe: Recipe
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
        """About how much a run writes; at most, as if pruned models were as large as the dense."""
        model, text = self.dense.checkpoint.model, self.text
        graphs, weights = export_bytes(model, self.precisions), export_bytes(model, [BASE])
        unpacked = text.lines.size if text and text.lines.is_packed else 0
        return graphs + len(self.artifacts) * (graphs + weights) + unpacked

    def identity(self, progress: Progress) -> dict[str, Any]:
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
            **{
                f"{name}_text_sha256": path
                and sha256_of(path, partial(progress.update, f"MiB of {path.name} hashed"))
                for name, path in texts.items()
            },
            "tokenizers": dict(data.fitted.tokenizers),
        }
        advice = "give all ranks the same options, model and data"
        launch.require_same(identity, advice, InputError, "ranks-differ-in-inputs")
        return identity


def prepare(recipe: Recipe, dense: Checkpoint, output: Path, progress: Progress) -> RunSetup:
    """Read the rows of a resolved recipe, and check all that can be checked in advance."""
    task = TASKS[dense.task]
    recipe = check_model(recipe, dense, task)
    source_text, target_text = texts_to_keep(recipe.export, recipe.data, task, dense.name, progress)
    data = read(recipe.data, dense, task, progress, recipe.evaluation.tokenizers)
    if data.test is not None:
        for rule in gate_rules(recipe.gate):
            rule.require_rows(data.test)
    device, engines = pick_device(recipe.device, progress), recipe.export.engines
    require_engines(engines, task, device)
    limits = recipe.budget.limits(Mask.full(dense.layers))
    artifacts = plan_artifacts(recipe, limits, output)
    if recipe.budget.searches_rows:
        data = hold_out(data, recipe.seed)
    warn_of_shared_rows(data, progress)
    checkpoint = dense if source_text is None else _with_tokens_of(source_text, dense, progress)
    source = with_rows(data, checkpoint, progress)
    costs = unit_costs(checkpoint, task, source.examples)
    for artifact in artifacts:
        artifact.budget.require_enough_may_go(limits, costs)
    require_trainable(recipe.recovery, len(source.examples), learns=recipe.method.learns)
    require_rows_for_ranks(len(source.examples))
    return RunSetup(
        recipe=recipe,
        output=output,
        dense=source if checkpoint is dense else with_rows(data, dense, SILENT),
        source=source,
        data=data,
        limits=limits,
        costs=costs,
        artifacts=artifacts,
        text=open_text(recipe.recovery, data.fitted, task, checkpoint, recipe.data, progress),
        translations="",
        source_text=source_text,
        target_text=target_text,
        tokens=TargetTokens(None, task.graphs.output_tokens(checkpoint)),
        device=device,
        engines=engines_to_measure(engines, task, device, recipe.throughput is not None),
        precisions=precisions_to_export(recipe.export.precision, device),
    )


def plan_artifacts(recipe: Recipe, limits: Limits, output: Path) -> list[ArtifactPlan]:
    """One plan for each budget, if the model can meet it; several get a directory each."""
    budgets: Sequence[Budget] = recipe.budget.each()
    names = [budget.slug for budget in budgets]
    if len(set(names)) < len(names):
        raise UsageError(
            f"the same budget is asked for twice: {', '.join(b.text for b in budgets)}",
            id="budget-twice",
        )
    for budget in budgets:
        budget.require_possible(limits)
        if recipe.method.learns:
            keep, _ = budget.to_learn(limits.full)
            recipe.method.check_size(keep or {}, limits.full)
    recipe.method.check_units(limits.units)
    return [
        ArtifactPlan(name, budget, output if len(budgets) == 1 else output / name)
        for name, budget in zip(names, budgets, strict=True)
    ]


def _with_tokens_of(text: TextFile, dense: Checkpoint, progress: Progress) -> Checkpoint:
    """The checkpoint with the tokens of a text alone."""
    progress.message(f"cutting {text.path.name} into tokens …")
    smaller = cut_vocabulary(dense, text)
    kept, total = (embedding_rows(x.model)[0] for x in (smaller, dense))
    progress.message(f"  {kept:,} of {total:,} tokens are kept")
    return smaller


def target_tokens(file: TextFile, *, checkpoint: Checkpoint, progress: Progress) -> TargetTokens:
    """The tokens of a text in the target language, which decoders of pruned models shall score."""
    source = source_of_text(file)
    seen = tokens_of_text(
        file, checkpoint.tokenizer, lambda done: progress.update("target text", done, source.rows)
    )
    return TargetTokens(source, TASKS[checkpoint.task].graphs.output_tokens(checkpoint, seen))


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
    return Source(files=rows.files, rows=len(rows.sources), sha256=rows.sha256)


def source_of_text(file: TextFile) -> Source:
    """A file of texts, for reports."""
    path = file.path
    return Source(files=[path.as_posix()], rows=file.count(), sha256=sha256_of(path))
