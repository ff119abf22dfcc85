"""What a run starts from, opened and checked before the first long computation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from compressor.export.candidate_table import require_few
from compressor.export.exported import export_bytes
from compressor.export.precision_names import precision_timed, precisions_to_export
from compressor.model.kept_tokens import require_cuttable
from compressor.model.location import checkpoint_files
from compressor.options import inputs
from compressor.options.recipe import Recipe
from compressor.options.validate import check_device, check_model
from compressor.progress import Progress
from compressor.recovery import RecoveryMethod, earlier_artifact
from compressor.recovery.planning import RecoveryPlan, open_recovery
from compressor.report.card_facts import CardFacts, read_card
from compressor.report.rule import Inconclusive, Rule
from compressor.report.run_report import require_own_outputs
from compressor.selection.values import (
    Measuring,
    Prunable,
    RemovalPlan,
    plan_removal,
)
from compressor.steps.context import Context
from compressor.steps.store import open_steps
from compressor.storage.hashes import fingerprint, sha256_of
from compressor.storage.names import BASE
from compressor.storage.version import __version__
from compressor.tasks import TASKS
from compressor.tasks.engines import engines_to_measure, pick_device, require_engines
from compressor.tasks.opened import Inputs, ModelAndRows, with_rows


@dataclass(frozen=True)
class Plan:
    """What a run is to do, resolved for the model and the device."""

    output: Path
    device: str
    seed: int
    options: Mapping[str, Any]  # which must be the same for a stopped run to go on
    languages: Sequence[str]  # codes of further ones that a cut vocabulary keeps
    removal: RemovalPlan
    recovery: Sequence[RecoveryMethod]
    engines: Sequence[str]  # to export for, and to compare with
    precisions: Sequence[str]  # to export, float32 first
    candidates: int | None  # of a source token, that decoders score; None: they score all tokens
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
    prunable: Prunable  # what units are removed from
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
    device = pick_device(recipe.device, progress)
    check_device(recipe, device)
    checkpoint = inputs.load(recipe.model)
    check_model(recipe, checkpoint)
    tokens = not checkpoint.needs_all_tokens
    recipe = recipe.resolved(device, TASKS[checkpoint.task], tokens=tokens)
    given = inputs.open_inputs(recipe, checkpoint, progress)
    plan = plan_run(recipe, given, device, output)
    if given.source_text is not None:
        require_cuttable(checkpoint, plan.languages)
    return plan, open_model(plan, given, progress)


def plan_run(recipe: Recipe, given: Inputs, device: str, output: Path) -> Plan:
    """Say what a recipe means for a model and a device, and check that it can be done.

    Args:
        recipe: with what device and model decide; no later function gets it.
        given: what it names, opened.
        device: to compute on.
        output: the directory of the run.
    """
    options, rules = recipe.options_that_count(), recipe.gate.rules()
    if given.data.test is not None:
        for rule in rules:
            rule.require_rows(given.data.test)
    candidates = recipe.export.candidates
    if candidates is not None:
        require_few(candidates, given.checkpoint)
    task = TASKS[given.checkpoint.task]
    engines = recipe.export.engines
    timing = recipe.throughput
    precisions = precisions_to_export(recipe.export.precision, device)
    require_engines(engines, task, device)
    measured = engines_to_measure(engines, task, device, timing is not None)
    removal = plan_removal(recipe.budget, recipe.method, given.checkpoint.mask, output)
    of_artifacts = {x.directory: recipe.to_yaml(x.budget) for x in removal.artifacts}
    return Plan(
        output=output,
        device=device,
        seed=recipe.seed,
        options=options,
        languages=recipe.export.keep_languages,
        removal=removal,
        recovery=recipe.recovery,
        engines=measured,
        precisions=precisions,
        candidates=candidates,
        measuring=Measuring(
            timing=None if timing is None else timing.settings(),
            precision=precision_timed(precisions, device),
            beams=recipe.evaluation.num_beams,
            resamples=recipe.evaluation.resamples,
        ),
        samples=recipe.evaluation.samples,
        rules=rules,
        inconclusive=recipe.gate.inconclusive,
        recipes={output: recipe.to_yaml()} | of_artifacts,
        card=recipe.card.over(read_card(given.checkpoint.directory)),
    )


def open_model(plan: Plan, given: Inputs, progress: Progress) -> Opened:
    """Encode the rows, and check what they and the model allow.

    Args:
        plan: what the run is to do.
        given: what it starts from.
        progress: receives messages.
    """
    data = given.data
    calibrated = data.calibration is not None
    dense = with_rows(given.checkpoint, data.fitted, calibrated=calibrated, progress=progress)
    prunable = plan.removal.prunable(dense, data)
    recovery = open_recovery(plan.recovery, dense, given.reading, progress, plan.removal.learns)
    return Opened(given, dense, prunable, recovery)


@contextmanager
def open_run(plan: Plan, opened: Opened, progress: Progress) -> Iterator[Context]:
    """The context of a run, which takes its output directory or goes on in it.

    Raises:
        InputError, UsageError, EnvironmentProblem: see `open_steps`; or a file of the user's stands
            where the last step writes.
    """
    same = identity(plan, opened)
    needed = partial(written_bytes, plan, opened)
    with open_steps(plan.output, same, progress, needed) as steps:
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
    return graphs + len(plan.removal.artifacts) * (graphs + models) + unpacked


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
