"""The journey of a checkpoint, from `compress run`'s options to a finished report.

Every step is one call into one room and returns a value. Steps that take long are stages
(`compressor.pipeline.stages`): each leaves a record in `OUT/.compress`, from which a stopped run
goes on.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from compressor import __version__
from compressor.budgets.counts import QualityBudget, SpeedBudget
from compressor.budgets.path import removal_path
from compressor.errors import InputError
from compressor.export import export_model
from compressor.export.precision_names import BASE
from compressor.export.precisions import set_default
from compressor.model.memory import release, trim_memory
from compressor.model.saving import round_to, save_checkpoint
from compressor.model.sublayers import Scores, units_of
from compressor.model.surgery import prune, verify_surgery
from compressor.pipeline.build import (
    describe,
    export_bytes,
    export_dense,
    export_precisions,
    pruning_facts,
    verify_reload,
    written_bytes,
)
from compressor.pipeline.context import Context, source_of
from compressor.pipeline.distill_text import translate_text
from compressor.pipeline.evaluate import benchmark, choose_defaults, evaluate
from compressor.pipeline.gate import gate_rules
from compressor.pipeline.load import TargetTokens, load, prepare, read, target_tokens
from compressor.pipeline.max_drop import search_quality
from compressor.pipeline.search import search_speed
from compressor.pipeline.select import Choice, choose, chosen_model, learn, recover, score
from compressor.pipeline.stages import stage
from compressor.progress import SILENT, Progress
from compressor.report import DEFAULT_RENDERERS, RENDERERS, facts, render_reports, rules
from compressor.report.combine import only, share_scoring
from compressor.report.model_card import render_card
from compressor.report.schema import Report
from compressor.request.plan import Plan, own_recipe
from compressor.request.recipe import Recipe
from compressor.request.validate import check_model, check_recipe
from compressor.results import Scoring, Throughput, Variant
from compressor.runtime.artifact import GRAPH_DIRECTORY
from compressor.storage.disk import translate_disk_errors
from compressor.storage.files import require_directory
from compressor.storage.hashes import sha256_of
from compressor.storage.manifest import GRAPHS_FILE, MANIFEST, manifest_of
from compressor.storage.outputs import require_written_by_run, write_manifest, write_outputs
from compressor.storage.workspace import STATE
from compressor.tasks import get_task
from compressor.throughput.hardware import describe as describe_hardware
from compressor.throughput.hardware import versions

RECIPE, CARD = "recipe.yaml", "README.md"


def run(recipe: Recipe, output: Path, command: str = "", progress: Progress = SILENT) -> Report:
    """Compress one checkpoint to one or more budgets; write artifacts and reports to `output`.

    With one budget `output` is the artifact; with several, each gets a directory below it.

    Raises:
        CompressError: see `compressor.errors`; nothing is half written, and calling again with
            the same recipe goes on from the last finished stage.
    """
    require_directory(output)
    gate = gate_rules(recipe.gate)
    check_recipe(recipe, gate)
    checkpoint = load(recipe.model)
    task = get_task(checkpoint.entry.task)
    check_model(recipe, checkpoint, task, gate)
    data = read(recipe.data, checkpoint, task)
    least = partial(export_bytes, checkpoint.model, [BASE])
    with translate_disk_errors(output, least, lambda: "beginning"):
        context = prepare(recipe, checkpoint, task, data, output, progress)
    workspace = context.workspace
    with (
        translate_disk_errors(output, lambda: written_bytes(context), lambda: workspace.doing),
        workspace,
    ):
        return _compress(context, gate, output, command)


def _compress(context: Context, gate: Sequence[rules.Rule], output: Path, command: str) -> Report:
    """The journey, when all that can be checked before has been checked."""
    recipe, progress = context.recipe, context.progress
    _require_own_outputs(context, output)
    started = _start(context, command)
    tokens = target_tokens(context)

    dense = export_dense(context, context.workspace.state / "dense")
    builds = export_precisions(context, dense)
    translate_text(context, dense)
    choices = []
    for plan in context.plans:
        choice = _choose(context, plan, dense, tokens)
        if choice.text:
            progress.message(f"  {choice.text}")
        pruned = _build(context, plan, choice, tokens)
        choices.append(choice)
        builds += [_scored(pruned, choice.scores), *export_precisions(context, pruned)]

    dense, builds = evaluate(context, dense, builds)
    throughput = benchmark(context, dense, builds) if recipe.throughput else None
    builds = choose_defaults(builds, throughput)
    report = _report(context, started, dense, builds, choices[-1], throughput, tokens)
    report = report.model_copy(update={"gate": rules.check(report, gate, recipe.gate.inconclusive)})
    _write(context, report, output)
    return report


@stage("started")
def _start(context: Context, command: str) -> dict[str, str]:
    """When and how the run was first started."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"created": now, "command": command}


@stage("choice")
def _choose(context: Context, plan: Plan, dense: Variant, tokens: TargetTokens) -> Choice:
    """Which units a plan keeps."""
    if context.recipe.learns:
        return learn(context, plan)
    scores = score(context)
    if isinstance(plan.budget, SpeedBudget):
        return search_speed(context, plan.budget, scores, dense)
    if isinstance(plan.budget, QualityBudget):
        build = partial(build_artifact, tokens=tokens)
        floors, multiples = context.floors, context.multiples
        path = removal_path(scores, context.full, floors, context.costs, multiples)
        return search_quality(context, plan, plan.budget, scores, path, dense, build)
    return choose(context, plan, scores)


@stage("build")
def _build(context: Context, plan: Plan, choice: Choice, tokens: TargetTokens) -> Variant:
    """The artifact of a plan."""
    with context.workspace.making(plan.directory) as making:
        found = build_artifact(context, plan, choice, making, tokens)
    return found.model_copy(update={"directory": plan.directory.as_posix()})


def build_artifact(
    context: Context, plan: Plan, choice: Choice, directory: Path, tokens: TargetTokens
) -> Variant:
    """Remove units, repair, save, export; every step is checked against the one before."""
    checkpoint, probe, mask = context.checkpoint, context.probe, choice.mask
    source = chosen_model(context, plan)
    pruned = prune(source, checkpoint.layers, mask)
    inputs = [batch.inputs() for batch in probe.batches]
    checks = [verify_surgery(source, pruned, checkpoint.layers, mask, inputs)]
    recovered = recover(context, pruned, plan.name)
    model, recovery = recovered.model, recovered.text or "none"
    trim_memory()
    round_to(model, checkpoint.dtype)
    record = pruning_facts(checkpoint, mask, choice.scores, plan.budget.text, context.recipe.seed)
    record |= {"selection": choice.text, "recovery": recovery}
    save_checkpoint(checkpoint, model, record, directory)
    checks.append(verify_reload(model, directory))
    checks += export_model(
        checkpoint, model, mask, probe.batches, probe.texts, directory, tokens.tokens
    )
    stored = (directory / "model.safetensors").stat().st_size
    scored = None if tokens.tokens is None else len(tokens.tokens)
    share = context.costs.share(mask, scored)
    found = describe(
        plan.name, model, mask, share, plan.budget.text, directory, stored, checks, choice.text,
        recovery,
    )  # fmt: skip
    release(model)
    return found


def _scored(model: Variant, scores: Scores) -> Variant:
    heads = {name: v for name, v in scores.values.items() if units_of(name) == "heads"}
    values = {name: list(found) for name, found in heads.items()}
    scoring = Scoring(
        method=scores.method, signature=scores.signature, cost=dict(scores.cost), values=values
    )
    return model.model_copy(update={"scoring": scoring})


def _report(
    context: Context,
    started: dict[str, str],
    dense: Variant,
    builds: Sequence[Variant],
    choice: Choice,
    throughput: Throughput | None,
    tokens: TargetTokens,
) -> Report:
    """All that a run found out; the gate's outcomes are not in it yet."""
    checkpoint, data = context.checkpoint, context.data
    scoring, variants = share_scoring(builds)
    return Report(
        tool_version=__version__,
        created=started["created"],
        command=started["command"],
        task=checkpoint.entry.task,
        model=checkpoint.name,
        revision=checkpoint.revision,
        model_type=str(checkpoint.model.config.model_type),  # type: ignore[union-attr]
        seed=context.recipe.seed,
        calibration=source_of(data.calibration) if data.calibration else None,
        test=source_of(data.test) if data.test else None,
        shared_rows=data.shared,
        scoring=scoring,
        dense=dense,
        variants=variants,
        throughput=throughput,
        search=choice.search,
        target_text=tokens.source,
        hardware=describe_hardware(),
        versions=versions(),
    )


def _texts(context: Context, report: Report, output: Path) -> dict[Path, str]:
    """What is written at the end for people: path -> text."""
    texts = {}
    for plan, variant in zip(context.plans, facts.pruned(report), strict=True):
        own = only(report, variant)
        texts[plan.directory / RECIPE] = own_recipe(context.recipe, plan).to_yaml()
        texts |= render_reports(own, plan.directory)
        texts[plan.directory / CARD] = render_card(own, variant.name)
    if len(context.plans) > 1:
        texts[output / RECIPE] = context.recipe.to_yaml()
        texts |= render_reports(report, output)
    return texts


def _directories(context: Context, output: Path) -> list[Path]:
    """The artifacts, and what holds them if there are several."""
    return sorted({*(plan.directory for plan in context.plans), output}, reverse=True)


def _write_dense_manifest(context: Context, provenance: dict[str, Any], output: Path) -> None:
    """The dense model's graphs can be opened as an artifact too."""
    directory = context.workspace.state / "dense"
    own = {
        (output / name).relative_to(directory).as_posix(): digest
        for name, digest in context.workspace.files.items()
        if (output / name).is_relative_to(directory) and Path(name).name != GRAPHS_FILE
    }
    graphs = directory / GRAPH_DIRECTORY / GRAPHS_FILE  # was found intact by `lost`
    own[graphs.relative_to(directory).as_posix()] = sha256_of(graphs)
    write_manifest(directory, provenance, own)


def _require_own_outputs(context: Context, output: Path) -> None:
    """Check, before anything is computed, that the last step will not meet files of the user's."""
    names = (RECIPE, CARD, MANIFEST, *(RENDERERS[name].file for name in DEFAULT_RENDERERS))
    paths = [directory / name for directory in _directories(context, output) for name in names]
    require_written_by_run(output, context.workspace.state, paths)


def _write(context: Context, report: Report, output: Path) -> None:
    """Reports, recipe, model card and manifest: of the whole run, and of each artifact."""
    workspace = context.workspace
    hashes = {
        name: digest for name, digest in workspace.files.items() if STATE not in Path(name).parts
    }
    described = {n: digest for n, digest in workspace.files.items() if Path(n).name == GRAPHS_FILE}
    changed = workspace.lost(described)
    if changed:
        raise InputError(
            f"{changed} was changed while the run was going on; run the same command again",
            id="output-changed",
        )
    for plan, variant in zip(context.plans, facts.pruned(report), strict=True):
        digest = set_default(plan.directory, facts.default_build(report, variant).precision)
        path = plan.directory / GRAPH_DIRECTORY / GRAPHS_FILE
        hashes[path.relative_to(output).as_posix()] = digest
    written = write_outputs(output, workspace.state, _texts(context, report, output))
    hashes |= {path.relative_to(output).as_posix(): digest for path, digest in written.items()}
    provenance: dict[str, Any] = {
        "tool": f"compress {__version__}",
        "created": report.created,
        "command": report.command,
        "seed": report.seed,
        "precisions": list(context.precisions),
        "calibration": report.calibration and report.calibration.model_dump(),
        "versions": report.versions,
        "hardware": report.hardware,
    }
    _write_dense_manifest(context, provenance, output)
    for directory in _directories(context, output):
        below = directory.relative_to(output)
        own = {
            Path(name).relative_to(below).as_posix(): digest
            for name, digest in hashes.items()
            if Path(name).is_relative_to(below)
        }
        manifest = json.dumps(manifest_of(directory, provenance, own), ensure_ascii=False, indent=1)
        found = write_outputs(output, workspace.state, {directory / MANIFEST: f"{manifest}\n"})
        hashes |= {path.relative_to(output).as_posix(): digest for path, digest in found.items()}
