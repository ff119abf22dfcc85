"""The journey of a checkpoint, from `compress run`'s options to a finished report.

Every step is one call into one module; each leaves a JSON file in `OUT/.compress`, from which a
stopped run goes on.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compressor import __version__, gate
from compressor.choosing import choose_heads, forget, repair
from compressor.evaluating import evaluate
from compressor.export.precisions import set_default
from compressor.heads import HeadScores
from compressor.journey import (
    Journey,
    prepare,
    require_measurements,
)
from compressor.planning import Plan
from compressor.precisions import BASE, choose_default
from compressor.recipe import Recipe
from compressor.report import facts, write_reports
from compressor.report.combine import only, share_scoring
from compressor.report.model_card import render_card
from compressor.report.schema import (
    QualitySearch,
    Report,
    Source,
    SpeedSearch,
    Throughput,
    Variant,
)
from compressor.report.schema import Scoring as ScoringFacts
from compressor.searching import search_heads
from compressor.stages import (
    Choice,
    Probe,
    build_dense,
    build_precision,
    build_variant,
    make_probe,
)
from compressor.talk import SILENT, Talk
from compressor.tasks import Rows
from compressor.throughput import Subject, benchmark
from compressor.throughput.hardware import describe, versions
from compressor.workspace import write_manifest


def run(recipe: Recipe, output: Path, command: str = "", talk: Talk = SILENT) -> Report:
    """Compress one checkpoint to one or more budgets; write artifacts and reports to `output`.

    With one budget `output` is the artifact; with several, each gets a directory below it.

    Raises:
        CompressError: see `compressor.errors`; nothing is half written, and calling again with
            the same recipe goes on from the last finished stage.
    """
    rules = gate.parse_rules(recipe.drop_rules, recipe.min_speedup)
    require_measurements(recipe, rules)
    journey = prepare(recipe, output, talk, rules)
    stage = journey.workspace.stage
    started = stage("started", "reading inputs", lambda: {"created": _now(), "command": command})
    probe = make_probe(journey.rows, journey.examples, journey.checkpoint.model, journey.task)
    dense = _dense(journey, probe)
    builds = _precisions(journey, dense, probe)
    search: SpeedSearch | QualitySearch | None = None
    for plan in journey.plans:
        if plan.budget.measured:
            choice = search_heads(journey, plan, dense, probe)
        else:
            choice = choose_heads(journey, plan)
        search = choice.search
        variant = _build(journey, plan, choice, probe)
        builds += [variant, *_precisions(journey, variant, probe)]
        variant.scoring = _scoring_facts(choice.scores)
    evaluate(journey, dense, builds)
    throughput = _throughput(journey, dense, builds) if recipe.bench else None
    _choose_defaults(builds, throughput)
    scoring, variants = share_scoring(builds)
    report = Report(
        tool_version=__version__,
        created=started["created"],
        command=started["command"],
        task=journey.checkpoint.entry.task,
        model=journey.checkpoint.name,
        revision=journey.checkpoint.revision,
        model_type=str(journey.checkpoint.model.config.model_type),  # type: ignore[union-attr]
        seed=recipe.seed,
        calibration=_source(journey.calibration),
        test=_source(journey.test),
        shared_rows=journey.shared_rows,
        scoring=scoring,
        dense=dense,
        variants=variants,
        throughput=throughput,
        search=search,
        target_text=journey.target_text,
        hardware=describe(),
        versions=versions(),
    )
    report = report.model_copy(update={"gate": gate.check(report, rules)})
    _finish(journey, report, output)
    return report


def _dense(journey: Journey, probe: Probe) -> Variant:
    directory = journey.workspace.state / "dense"
    builds = [name for plan in journey.plans for name in _family(journey, plan.name)]
    data = journey.workspace.build(
        "dense",
        "exporting the dense model to compare with",
        lambda: build_dense(journey.checkpoint, probe, directory),
        directory,
        [*_after(journey, "dense"), *(f"significance-{name}" for name in builds)],
    )
    return Variant.model_validate(data | {"directory": directory.as_posix()})


def _build(journey: Journey, plan: Plan, choice: Choice, probe: Probe) -> Variant:
    recipe, mask = journey.recipe, choice.mask

    def compute() -> dict[str, Any]:
        return build_variant(
            journey.checkpoint,
            choice,
            plan.budget,
            recipe.seed,
            probe,
            plan.name,
            plan.directory,
            lambda model: repair(journey, model, mask, plan.name),
            journey.tokens,
        )

    repairing = "" if recipe.recover == "none" else f", repairing ({recipe.recover})"
    title = f"removing {mask.total() - mask.count()} of {mask.total()} heads{repairing}, exporting"
    data = journey.workspace.build(
        f"build-{plan.name}",
        f"{title}, checking",
        compute,
        plan.directory,
        _after(journey, plan.name),
    )
    forget(journey, f"distill-{plan.name}")
    return Variant.model_validate(data | {"directory": plan.directory.as_posix()})


def _precisions(journey: Journey, base: Variant, probe: Probe) -> list[Variant]:
    """The other precisions of a model; a stage each."""

    def build(precision: str) -> Variant:
        name = f"{base.name}-{precision}"
        data = journey.workspace.build(
            f"build-{name}",
            f"exporting {base.name} in {precision}, checking",
            lambda: build_precision(journey.checkpoint, base, precision, probe, journey.device),
            Path(base.directory),
            _measured(name),
        )
        return Variant.model_validate(data | {"directory": base.directory})

    return [build(precision) for precision in journey.precisions if precision != base.precision]


def _family(journey: Journey, name: str) -> list[str]:
    """A model's name, and those of its other precisions."""
    return [name, *(f"{name}-{p}" for p in journey.precisions if p != BASE)]


def _after(journey: Journey, name: str) -> list[str]:
    """Stages that hold only for the float32 files of a model."""
    family = _family(journey, name)
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


def _throughput(journey: Journey, dense: Variant, variants: list[Variant]) -> Throughput:
    recipe = journey.recipe
    subjects = [
        Subject(
            model.name,
            Path(model.directory),
            {n: len(k) for n, k in model.kept.items()},
            model.precision,
        )
        for model in (dense, *variants)
    ]
    data = journey.workspace.stage(
        "throughput",
        f"measuring throughput at batch {', '.join(map(str, recipe.batch_size))}",
        lambda: benchmark(
            subjects,
            config=journey.checkpoint.model.config.to_dict(),  # type: ignore[union-attr,operator]
            rows=journey.test or journey.rows,
            batch_sizes=recipe.batch_size,
            lengths=recipe.lengths,
            target_length=recipe.target_length,
            device=journey.device,
            threads=recipe.threads,
            seconds=recipe.bench_seconds,
            progress=journey.talk.say,
        ).model_dump(),
    )
    return Throughput.model_validate(data)


def _source(rows: Rows | None) -> Source | None:
    if rows is None:
        return None
    return Source(files=rows.files, rows=len(rows.sources), sha256=rows.sha256)


def _scoring_facts(scores: HeadScores) -> ScoringFacts:
    values = {name: list(found) for name, found in scores.values.items()}
    return ScoringFacts(
        method=scores.method, signature=scores.signature, cost=dict(scores.cost), values=values
    )


def _finish(journey: Journey, report: Report, output: Path) -> None:
    """Reports, recipe, model card and manifest: of the whole run, and of each artifact."""
    for plan, variant in zip(journey.plans, facts.pruned(report), strict=True):
        set_default(plan.directory, facts.default_build(report, variant).precision)
        own = _own_recipe(journey.recipe, plan)
        plan.directory.joinpath("recipe.yaml").write_text(own.to_yaml(), encoding="utf-8")
        own_report = only(report, variant)
        write_reports(own_report, plan.directory)
        card = render_card(own_report, variant.name)
        plan.directory.joinpath("README.md").write_text(card, encoding="utf-8")
    if len(journey.plans) > 1:
        output.joinpath("recipe.yaml").write_text(journey.recipe.to_yaml(), encoding="utf-8")
        write_reports(report, output)
    provenance: dict[str, Any] = {
        "tool": f"compress {__version__}",
        "created": report.created,
        "command": report.command,
        "seed": report.seed,
        "precisions": list(journey.precisions),
        "calibration": report.calibration and report.calibration.model_dump(),
        "versions": report.versions,
        "hardware": report.hardware,
    }
    for directory in {*(plan.directory for plan in journey.plans), output}:
        write_manifest(directory, provenance)


def _own_recipe(recipe: Recipe, plan: Plan) -> Recipe:
    """The recipe that makes this one artifact."""
    if not recipe.keep and not recipe.remove:
        return recipe  # there is only the one
    mode, _, amount = plan.budget.text.partition(" ")
    return recipe.model_copy(update={"keep": [], "remove": [], mode: [amount]})


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
