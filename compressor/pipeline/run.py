"""The context of a checkpoint, from `compress run`'s options to a finished report.

Every step is one call into one module; each leaves a JSON file in `OUT/.compress`, from which a
stopped run goes on.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compressor import __version__
from compressor.export.precision_names import BASE
from compressor.export.precisions import set_default
from compressor.model.sublayers import Scores
from compressor.pipeline.build import (
    Choice,
    Probe,
    build_dense,
    build_precision,
    build_variant,
    make_probe,
)
from compressor.pipeline.context import (
    Context,
    prepare,
    require_measurements,
)
from compressor.pipeline.default_precision import choose_default
from compressor.pipeline.evaluate import evaluate
from compressor.pipeline.plan import Plan
from compressor.pipeline.recipe import Recipe
from compressor.pipeline.search import search_heads
from compressor.pipeline.select import choose_heads, forget, repair
from compressor.pipeline.workspace import write_manifest
from compressor.progress import SILENT, Progress
from compressor.report import facts, write_reports
from compressor.report import rules as gate
from compressor.report.combine import only, share_scoring
from compressor.report.model_card import render_card
from compressor.report.schema import Report
from compressor.results import QualitySearch, Source, SpeedSearch, Throughput, Variant
from compressor.results import Scoring as ScoringFacts
from compressor.tasks import Rows
from compressor.throughput import Subject, benchmark
from compressor.throughput.hardware import describe, versions


def run(recipe: Recipe, output: Path, command: str = "", progress: Progress = SILENT) -> Report:
    """Compress one checkpoint to one or more budgets; write artifacts and reports to `output`.

    With one budget `output` is the artifact; with several, each gets a directory below it.

    Raises:
        CompressError: see `compressor.errors`; nothing is half written, and calling again with
            the same recipe goes on from the last finished stage.
    """
    rules = gate.parse_rules(recipe.drop_rules, recipe.min_speedup)
    require_measurements(recipe, rules)
    context = prepare(recipe, output, progress, rules)
    stage = context.workspace.stage
    started = stage("started", "reading inputs", lambda: {"created": _now(), "command": command})
    probe = make_probe(context.rows, context.examples, context.checkpoint.model, context.task)
    dense = _dense(context, probe)
    builds = _precisions(context, dense, probe)
    search: SpeedSearch | QualitySearch | None = None
    for plan in context.plans:
        if plan.budget.measured:
            choice = search_heads(context, plan, dense, probe)
        else:
            choice = choose_heads(context, plan)
        search = choice.search
        variant = _build(context, plan, choice, probe)
        builds += [variant, *_precisions(context, variant, probe)]
        variant.scoring = _scoring_facts(choice.scores)
    evaluate(context, dense, builds)
    throughput = _throughput(context, dense, builds) if recipe.bench else None
    _choose_defaults(builds, throughput)
    scoring, variants = share_scoring(builds)
    report = Report(
        tool_version=__version__,
        created=started["created"],
        command=started["command"],
        task=context.checkpoint.entry.task,
        model=context.checkpoint.name,
        revision=context.checkpoint.revision,
        model_type=str(context.checkpoint.model.config.model_type),  # type: ignore[union-attr]
        seed=recipe.seed,
        calibration=_source(context.calibration),
        test=_source(context.test),
        shared_rows=context.shared_rows,
        scoring=scoring,
        dense=dense,
        variants=variants,
        throughput=throughput,
        search=search,
        target_text=context.target_text,
        hardware=describe(),
        versions=versions(),
    )
    report = report.model_copy(update={"gate": gate.check(report, rules)})
    _finish(context, report, output)
    return report


def _dense(context: Context, probe: Probe) -> Variant:
    directory = context.workspace.state / "dense"
    builds = [name for plan in context.plans for name in _family(context, plan.name)]
    data = context.workspace.build(
        "dense",
        "exporting the dense model to compare with",
        lambda: build_dense(context.checkpoint, probe, directory),
        directory,
        [*_after(context, "dense"), *(f"significance-{name}" for name in builds)],
    )
    return Variant.model_validate(data | {"directory": directory.as_posix()})


def _build(context: Context, plan: Plan, choice: Choice, probe: Probe) -> Variant:
    recipe, mask = context.recipe, choice.mask

    def compute() -> dict[str, Any]:
        return build_variant(
            context.checkpoint,
            choice,
            plan.budget,
            recipe.seed,
            probe,
            plan.name,
            plan.directory,
            lambda model: repair(context, model, plan.name),
            context.tokens,
        )

    repairing = "" if recipe.recover == "none" else f", repairing ({recipe.recover})"
    title = f"removing {mask.total() - mask.count()} of {mask.total()} heads{repairing}, exporting"
    data = context.workspace.build(
        f"build-{plan.name}",
        f"{title}, checking",
        compute,
        plan.directory,
        _after(context, plan.name),
    )
    forget(context, f"distill-{plan.name}")
    return Variant.model_validate(data | {"directory": plan.directory.as_posix()})


def _precisions(context: Context, base: Variant, probe: Probe) -> list[Variant]:
    """The other precisions of a model; a stage each."""

    def build(precision: str) -> Variant:
        name = f"{base.name}-{precision}"
        data = context.workspace.build(
            f"build-{name}",
            f"exporting {base.name} in {precision}, checking",
            lambda: build_precision(context.checkpoint, base, precision, probe, context.device),
            Path(base.directory),
            _measured(name),
        )
        return Variant.model_validate(data | {"directory": base.directory})

    return [build(precision) for precision in context.precisions if precision != base.precision]


def _family(context: Context, name: str) -> list[str]:
    """A model's name, and those of its other precisions."""
    return [name, *(f"{name}-{p}" for p in context.precisions if p != BASE)]


def _after(context: Context, name: str) -> list[str]:
    """Stages that hold only for the float32 files of a model."""
    family = _family(context, name)
    measured = [stage for member in family for stage in _measured(member)]
    return [*(f"build-{member}" for member in family[1:]), *measured]


def _measured(name: str) -> list[str]:
    """Stages that hold what was measured on a model."""
    return [f"answers-{name}", f"significance-{name}", f"significance-{name}-base", "throughput"]


def _choose_defaults(builds: Sequence[Variant], throughput: Throughput | None) -> None:
    """Set what each artifact runs in where no precision is named, in the report's facts."""
    for base in [build for build in builds if not build.base]:
        family = [base, *(build for build in builds if build.base == base.name)]
        chosen = choose_default(family, throughput)
        for build in family:
            build.default = build.precision == chosen


def _throughput(context: Context, dense: Variant, variants: list[Variant]) -> Throughput:
    recipe = context.recipe
    subjects = [
        Subject(
            model.name,
            Path(model.directory),
            {n: len(k) for n, k in model.kept.items()},
            model.precision,
        )
        for model in (dense, *variants)
    ]
    data = context.workspace.stage(
        "throughput",
        f"measuring throughput at batch {', '.join(map(str, recipe.batch_size))}",
        lambda: benchmark(
            subjects,
            config=context.checkpoint.model.config.to_dict(),  # type: ignore[union-attr,operator]
            rows=context.test or context.rows,
            batch_sizes=recipe.batch_size,
            lengths=recipe.lengths,
            target_length=recipe.target_length,
            device=context.device,
            threads=recipe.threads,
            seconds=recipe.bench_seconds,
            progress=context.progress.message,
        ).model_dump(),
    )
    return Throughput.model_validate(data)


def _source(rows: Rows | None) -> Source | None:
    if rows is None:
        return None
    return Source(files=rows.files, rows=len(rows.sources), sha256=rows.sha256)


def _scoring_facts(scores: Scores) -> ScoringFacts:
    values = {name: list(found) for name, found in scores.values.items()}
    return ScoringFacts(
        method=scores.method, signature=scores.signature, cost=dict(scores.cost), values=values
    )


def _finish(context: Context, report: Report, output: Path) -> None:
    """Reports, recipe, model card and manifest: of the whole run, and of each artifact."""
    for plan, variant in zip(context.plans, facts.pruned(report), strict=True):
        set_default(plan.directory, facts.default_build(report, variant).precision)
        own = _own_recipe(context.recipe, plan)
        plan.directory.joinpath("recipe.yaml").write_text(own.to_yaml(), encoding="utf-8")
        own_report = only(report, variant)
        write_reports(own_report, plan.directory)
        card = render_card(own_report, variant.name)
        plan.directory.joinpath("README.md").write_text(card, encoding="utf-8")
    if len(context.plans) > 1:
        output.joinpath("recipe.yaml").write_text(context.recipe.to_yaml(), encoding="utf-8")
        write_reports(report, output)
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
    for directory in {*(plan.directory for plan in context.plans), output}:
        write_manifest(directory, provenance)


def _own_recipe(recipe: Recipe, plan: Plan) -> Recipe:
    """The recipe that makes this one artifact."""
    if not recipe.keep and not recipe.remove:
        return recipe  # there is only the one
    mode, _, amount = plan.budget.text.partition(" ")
    return recipe.model_copy(update={"keep": [], "remove": [], mode: [amount]})


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
