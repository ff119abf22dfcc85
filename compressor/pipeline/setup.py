"""What a run starts from, opened and checked before the first long computation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
from compressor.model.sublayers import Mask
from compressor.options.requests import Recipe
from compressor.options.sections import Card, Gate
from compressor.options.validate import check_model, gate_rules, resolve, texts_to_keep
from compressor.parallel import launch
from compressor.pipeline import inputs
from compressor.pipeline.context import Context
from compressor.pipeline.inspection import unit_costs
from compressor.pipeline.publish import require_own_outputs
from compressor.pipeline.recover import open_text, require_trainable
from compressor.pipeline.values import ArtifactPlan, Opened, Plan
from compressor.progress import Progress
from compressor.recovery import earlier_artifact
from compressor.steps import open_steps
from compressor.storage.hashes import fingerprint, sha256_of
from compressor.storage.version import __version__
from compressor.tasks import TASKS
from compressor.tasks.texts import TextFile


def prepare(recipe: Recipe, output: Path, progress: Progress) -> tuple[Plan, Opened]:
    """Open the model and the rows of a recipe, and check all that can be checked in advance.

    Args:
        recipe: as the user gave it, resolved against nothing yet.
        output: the directory of the run.
    """
    recipe = resolve(recipe)
    dense = inputs.load(recipe.model)
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
    plan = Plan(
        recipe=recipe,
        output=output,
        device=device,
        artifacts=plan_artifacts(recipe, limits, output),
        engines=inputs.engines_to_measure(engines, task, device, recipe.throughput is not None),
        precisions=precisions_to_export(recipe.export.precision, device),
    )
    if recipe.budget.searches_rows:
        data = inputs.hold_out(data, recipe.seed)
    inputs.warn_of_shared_rows(data, progress)
    checkpoint = dense if source_text is None else _cut(dense, source_text, progress)
    rows, calibrated = data.fitted, data.calibration is not None
    source = inputs.with_rows(checkpoint, rows, calibrated=calibrated, progress=progress)
    whole = source
    if checkpoint is not dense:
        whole = inputs.with_rows(dense, rows, calibrated=calibrated)
    costs = unit_costs(checkpoint, task, source.examples)
    require_enough(plan, limits, costs, len(source.examples))
    opened = Opened(
        dense=whole,
        source=source,
        data=data,
        limits=limits,
        costs=costs,
        text=open_text(recipe.recovery, rows, checkpoint, recipe.data, progress),
        source_text=source_text,
        target_text=target_text,
    )
    return plan, opened


def _cut(dense: Checkpoint, text: TextFile, progress: Progress) -> Checkpoint:
    """The checkpoint with the tokens of a text alone."""
    progress.message(f"cutting {text.path.name} into tokens …")
    checkpoint = cut_vocabulary(dense, text)
    kept, total = (embedding_rows(x.model)[0] for x in (checkpoint, dense))
    progress.message(f"  {kept:,} of {total:,} tokens are kept")
    return checkpoint


@contextmanager
def open_run(plan: Plan, opened: Opened, progress: Progress) -> Iterator[Context]:
    """The context of a run, which takes its output directory or goes on in it.

    Raises:
        InputError, UsageError, EnvironmentProblem: see `open_steps`; or a file of the user's stands
            where the last step writes.
    """
    needed = partial(written_bytes, plan, opened)
    with open_steps(plan.output, identity(plan, opened), progress, needed) as steps:
        context = Context(plan.device, plan.recipe.seed, progress, steps)
        parallel.on_main(lambda: require_own_outputs(plan, context))
        yield context


def require_enough(plan: Plan, limits: Limits, costs: UnitCosts, rows: int) -> None:
    """Check that enough may go for the budgets, and that there are rows enough to train on.

    Args:
        limits: what may go.
        costs: its multiply-adds.
        rows: that the model is scored and recovered on.

    Raises:
        UsageError: the model is too large for a budget with all removed that may be.
        InputError: there are too few rows.
    """
    for artifact in plan.artifacts:
        artifact.budget.require_enough_may_go(limits, costs)
    require_trainable(plan.recipe.recovery, rows, learns=plan.recipe.method.learns)
    require_rows_for_ranks(rows)


def written_bytes(plan: Plan, opened: Opened) -> int:
    """About how much a run writes; at most, as if pruned models were as large as the dense."""
    model, text = opened.dense.checkpoint.model, opened.text
    graphs, weights = (inputs.export_bytes(model, x) for x in (plan.precisions, [BASE]))
    unpacked = text.lines.size if text and text.lines.is_packed else 0
    # Of each artifact the graphs, the checkpoint, and the weights that its recovery changed.
    models = 2 * weights if plan.recipe.recovery else weights
    return graphs + len(plan.artifacts) * (graphs + models) + unpacked


def identity(plan: Plan, opened: Opened) -> dict[str, Any]:
    """What must be the same for a stopped run to go on: options, and all inputs' SHA-256."""
    recipe, data = plan.recipe, opened.data
    free = {*Card.model_fields, *Gate.model_fields, "verify"}
    start = earlier_artifact(recipe.recovery)
    rows = {"calibration": data.calibration, "test": data.test, "search": data.search}
    texts = {
        "source": opened.source_text and opened.source_text.path,
        "target": opened.target_text and opened.target_text.path,
        "distill": opened.text and opened.text.lines.path,
    }
    found = {
        **{
            name: value
            for name, value in recipe.options_by_file_names().items()
            if name not in free
        },
        "device": plan.device,
        "version": __version__,
        "weights": fingerprint(checkpoint_files(opened.dense.checkpoint.directory)),
        "start_weights": start and fingerprint(checkpoint_files(start)),
        **{f"{name}_sha256": x and x.sha256 for name, x in rows.items()},
        **{f"{name}_text_sha256": path and sha256_of(path) for name, path in texts.items()},
        "tokenizers": dict(data.fitted.tokenizers),
    }
    advice = "give all ranks the same options, model and data"
    launch.require_same(found, advice, InputError, "ranks-differ-in-inputs")
    return found


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
