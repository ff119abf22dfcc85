"""What a run starts from, opened and checked before the first long computation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from compressor.export.exported import export_bytes
from compressor.export.fewer_tokens import shorten_vocabulary
from compressor.export.precision_names import precision_timed, precisions_to_export
from compressor.model.location import checkpoint_files
from compressor.options import inputs
from compressor.options.requests import Recipe
from compressor.options.sections import Card, Gate
from compressor.options.validate import (
    check_model,
    check_recipe,
    gate_rules,
    resolve,
    texts_to_keep,
)
from compressor.progress import Progress
from compressor.recovery import earlier_artifact
from compressor.recovery.planning import RecoveryPlan, open_recovery
from compressor.report.card_facts import CardFacts, read_card
from compressor.report.rule import Inconclusive, Rule
from compressor.report.run_report import Inputs, require_own_outputs
from compressor.selection.values import (
    ArtifactPlan,
    Measuring,
    Prunable,
    plan_artifacts,
    require_enough,
)
from compressor.steps.context import Context
from compressor.steps.store import open_steps
from compressor.storage.hashes import fingerprint, sha256_of
from compressor.storage.names import BASE
from compressor.storage.version import __version__
from compressor.tasks import TASKS
from compressor.tasks.engines import engines_to_measure, pick_device, require_engines
from compressor.tasks.opened import (
    ModelAndRows,
    hold_out,
    require_rows_for_ranks,
    with_rows,
)
from compressor.throughput.inspection import unit_costs


@dataclass(frozen=True)
class Plan:
    """What a run is to do, resolved for the model and the device."""

    output: Path
    device: str
    seed: int
    options: Mapping[str, Any]  # which must be the same for a stopped run to go on
    artifacts: Sequence[ArtifactPlan]
    engines: Sequence[str]  # to export for, and to compare with
    precisions: Sequence[str]  # to export, float32 first
    measuring: Measuring
    samples: int  # test rows that the report shows
    rules: Sequence[Rule]  # of the gate
    inconclusive: Inconclusive  # what counts where an interval has their limit in it
    recipes: Mapping[Path, str]  # directory of the run, or of an artifact -> its recipe
    card: CardFacts


@dataclass(frozen=True)
class Opened:
    """What a run starts from, opened and checked."""

    inputs: Inputs
    dense: ModelAndRows  # the model as given, to compare with
    prunable: Prunable  # what units are removed from; maybe with fewer tokens
    recovery: RecoveryPlan  # its text is not ready yet

    @property
    def source(self) -> ModelAndRows:
        """The model that units are removed from."""
        return self.prunable.source


def prepare(recipe: Recipe, output: Path, progress: Progress) -> tuple[Plan, Opened]:
    """Open the model and the rows of a recipe, and check all that can be checked in advance.

    Args:
        recipe: as the user gave it, resolved against nothing yet.
        output: the directory of the run.
        progress: receives messages.
    """
    check_recipe(recipe)
    device = pick_device(recipe.device, progress)
    recipe = resolve(recipe, device)
    dense = inputs.load(recipe.model)
    task = TASKS[dense.task]
    recipe = check_model(recipe, dense, task)
    reading = inputs.reading(recipe.data, dense)
    source_text, target_text = texts_to_keep(recipe.export, reading, dense, progress)
    data = inputs.read(recipe.data, dense, task, progress, recipe.evaluation.tokenizers)
    rules = gate_rules(recipe.gate)
    if data.test is not None:
        for rule in rules:
            rule.require_rows(data.test)
    engines = recipe.export.engines
    require_engines(engines, task, device)
    limits = recipe.budget.limits(dense.mask)
    artifacts = plan_artifacts(recipe.budget, recipe.method, limits, output)
    measured = engines_to_measure(engines, task, device, recipe.throughput is not None)
    precisions = precisions_to_export(recipe.export.precision, device)
    if recipe.budget.searches_rows:
        data = hold_out(data, recipe.seed)
    inputs.warn_of_shared_rows(data, progress)
    languages = recipe.export.keep_languages
    checkpoint, checks = shorten_vocabulary(dense, source_text, target_text, languages, progress)
    rows, calibrated = data.fitted, data.calibration is not None
    source = with_rows(checkpoint, rows, calibrated=calibrated, progress=progress)
    whole = source
    if checkpoint is not dense:
        whole = with_rows(dense, rows, calibrated=calibrated)
    costs = unit_costs(checkpoint, task, source.examples)
    require_enough(artifacts, limits, costs)
    recovery = open_recovery(recipe.recovery, source, reading, progress, recipe.method.learns)
    require_rows_for_ranks(len(source.examples))
    plan = Plan(
        output=output,
        device=device,
        seed=recipe.seed,
        options=options_of_run(recipe),
        artifacts=artifacts,
        engines=measured,
        precisions=precisions,
        measuring=Measuring(
            timing=None if recipe.throughput is None else recipe.throughput.settings(),
            precision=precision_timed(precisions, device),
            beams=recipe.evaluation.num_beams,
            resamples=recipe.evaluation.resamples,
        ),
        samples=recipe.evaluation.samples,
        rules=rules,
        inconclusive=recipe.gate.inconclusive,
        recipes=recipes(recipe, artifacts, output),
        card=recipe.card.over(read_card(dense.directory)),
    )
    prunable = Prunable(source, data, limits, costs)
    inputs_of_run = Inputs(dense, data, source_text, target_text, checks)
    return plan, Opened(inputs_of_run, whole, prunable, recovery)


def options_of_run(recipe: Recipe) -> dict[str, Any]:
    """The options of a recipe that change results, with files by their names."""
    free = {*Card.model_fields, *Gate.model_fields, "verify"}
    options = recipe.options_by_file_names().items()
    return {name: value for name, value in options if name not in free}


def recipes(recipe: Recipe, artifacts: Sequence[ArtifactPlan], output: Path) -> dict[Path, str]:
    """The recipe of the run, and of the artifact of each budget, by directory."""
    of_artifacts = {x.directory: recipe.to_yaml(x.budget) for x in artifacts}
    return {output: recipe.to_yaml()} | of_artifacts


@contextmanager
def open_run(plan: Plan, opened: Opened, progress: Progress) -> Iterator[Context]:
    """The context of a run, which takes its output directory or goes on in it.

    Raises:
        InputError, UsageError, EnvironmentProblem: see `open_steps`; or a file of the user's stands
            where the last step writes.
    """
    needed = partial(written_bytes, plan, opened)
    with open_steps(plan.output, identity(plan, opened), progress, needed) as steps:
        context = Context(plan.device, plan.seed, progress, steps)
        require_own_outputs(plan.output, plan.recipes, context)
        yield context


def written_bytes(plan: Plan, opened: Opened) -> int:
    """About how much a run writes; at most, as if pruned models were as large as the dense."""
    model, text = opened.dense.checkpoint.model, opened.recovery.text
    graphs, weights = (export_bytes(model, x) for x in (plan.precisions, [BASE]))
    unpacked = text.lines.size if text and text.lines.is_packed else 0
    # Of each artifact the graphs, the checkpoint, and the weights that its recovery changed.
    models = 2 * weights if opened.recovery.methods else weights
    return graphs + len(plan.artifacts) * (graphs + models) + unpacked


def identity(plan: Plan, opened: Opened) -> dict[str, Any]:
    """What must be the same for a stopped run to go on: options, and all inputs' SHA-256."""
    data, text = opened.prunable.data, opened.recovery.text
    start = earlier_artifact(opened.recovery.methods)
    rows = {"calibration": data.calibration, "test": data.test, "search": data.search}
    texts = {
        "source": opened.inputs.source_text and opened.inputs.source_text.path,
        "target": opened.inputs.target_text and opened.inputs.target_text.path,
        "distill": text and text.lines.path,
    }
    return {
        **plan.options,
        "device": plan.device,
        "version": __version__,
        "weights": fingerprint(checkpoint_files(opened.dense.checkpoint.directory)),
        "start_weights": start and fingerprint(checkpoint_files(start)),
        **{f"{name}_sha256": x and x.sha256 for name, x in rows.items()},
        **{f"{name}_text_sha256": path and sha256_of(path) for name, path in texts.items()},
        "tokenizers": dict(data.fitted.tokenizers),
    }
