"""The journey of a checkpoint, from `compress run`'s options to a finished report.

Every step is one call into one module; each leaves a JSON file in `OUT/.compress`, from which a
stopped run goes on.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from compressor import __version__, gate
from compressor.architectures import Architecture
from compressor.budget import Budget, check_possible, parse_budget, parse_floors, prune_in_steps
from compressor.checkpoint import Checkpoint, open_checkpoint
from compressor.errors import InputError, UsageError
from compressor.evaluation import compare, score_classification, score_translation
from compressor.export.metadata import label_names, max_source_tokens
from compressor.heads import HeadMask, HeadScores
from compressor.importance import DATA_FREE, Scoring, score_heads
from compressor.recipe import Recipe
from compressor.report import write_reports
from compressor.report.model_card import render_card
from compressor.report.schema import Comparison, Report, Source, Throughput, Variant
from compressor.report.schema import Scoring as ScoringFacts
from compressor.runtime.session import choose_device
from compressor.stages import (
    PRECISION,
    Probe,
    build_dense,
    build_variant,
    make_probe,
    scores_from_json,
    scores_to_json,
)
from compressor.talk import SILENT, Talk
from compressor.tasks import Example, Rows, count_truncated, read_rows, task_module
from compressor.tasks.answers import answers
from compressor.throughput import Subject, benchmark
from compressor.throughput.hardware import describe, versions
from compressor.workspace import Workspace, fingerprint, open_workspace, write_manifest

MINIMUM_ROWS = 8


@dataclass(frozen=True)
class Plan:
    """One budget and where its artifact goes."""

    name: str
    budget: Budget
    directory: Path


@dataclass(frozen=True)
class Journey:
    """All that the stages share."""

    recipe: Recipe
    checkpoint: Checkpoint
    full: HeadMask
    floors: Mapping[str, int]
    plans: Sequence[Plan]
    calibration: Rows | None
    test: Rows | None
    examples: list[Example]  # of the calibration rows, or of the test rows without those
    task: ModuleType
    device: str
    workspace: Workspace
    talk: Talk

    @property
    def rows(self) -> Rows:
        """The rows that `examples` were made from."""
        rows = self.calibration or self.test
        assert rows is not None
        return rows


def run(recipe: Recipe, output: Path, command: str = "", talk: Talk = SILENT) -> Report:
    """Compress one checkpoint to one or more budgets; write artifacts and reports to `output`.

    With one budget `output` is the artifact; with several, each gets a directory below it.

    Raises:
        CompressError: see `compressor.errors`; nothing is half written, and calling again with
            the same recipe goes on from the last finished stage.
    """
    rules = gate.parse_rules(recipe.max_drop, recipe.min_speedup)
    _require_measurements(recipe, rules)
    journey = _prepare(recipe, output, talk)
    stage = journey.workspace.stage
    started = stage("started", "reading inputs", lambda: {"created": _now(), "command": command})
    probe = make_probe(journey.rows, journey.examples, journey.checkpoint.model, journey.task)
    dense = _dense(journey, probe)
    scores: HeadScores | None = None
    variants = []
    for plan in journey.plans:
        mask, scores = _choose_heads(journey, plan)
        variants.append(_build(journey, plan, mask, scores, probe))
    _evaluate(journey, dense, variants)
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
        scoring=_scoring_facts(scores),
        dense=dense,
        variants=variants,
        throughput=_throughput(journey, dense, variants) if recipe.bench else None,
        hardware=describe(),
        versions=versions(),
    )
    report = report.model_copy(update={"gate": gate.check(report, rules)})
    _finish(journey, report, output)
    return report


def _require_measurements(recipe: Recipe, rules: Sequence[gate.Rule]) -> None:
    """Refuse, before anything is computed, rules about what this run will not measure."""
    for rule in rules:
        if isinstance(rule, gate.MaxDrop) and recipe.test is None:
            raise UsageError(f"--max-drop {rule.text} needs --test FILE to measure quality on")
        if isinstance(rule, gate.MinSpeedup):
            if not recipe.bench:
                raise UsageError(f"--min-speedup {rule.text} needs throughput; drop --no-bench")
            if rule.batch_size not in (None, *recipe.batch_size):
                raise UsageError(
                    f"--min-speedup {rule.text}: batch size {rule.batch_size} is not measured; "
                    "add it to --batch-size"
                )


def _prepare(recipe: Recipe, output: Path, talk: Talk) -> Journey:
    """Check everything that can be checked before the first long computation."""
    device = choose_device(recipe.device)
    checkpoint = open_checkpoint(
        recipe.model,
        revision=recipe.revision,
        allow_pickle=recipe.allow_pickle,
        trust_remote_code=recipe.trust_remote_code,
    )
    if checkpoint.heads:
        raise InputError(
            f"{recipe.model} has lost heads already; give the checkpoint it was made from "
            f"({checkpoint.heads.get('model')})"
        )
    if recipe.task not in (None, checkpoint.entry.task):
        raise UsageError(
            f"--task {recipe.task} does not fit {recipe.model}, a {checkpoint.entry.task} model"
        )
    full = HeadMask.full(checkpoint.layers)
    floors = parse_floors(recipe.floor, full)
    plans = plan_budgets(recipe, full, output)
    for plan in plans:
        check_possible(plan.budget, floors, full)
    calibration, test = read_data(recipe, checkpoint)
    task = task_module(checkpoint.entry.task)
    rows = calibration or test
    assert rows is not None
    examples = task.encode(rows, checkpoint.tokenizer, max_source_tokens(checkpoint))
    cut = count_truncated(examples)
    if cut:
        talk.say(f"{cut} of {len(examples)} rows are longer than the model allows and were cut")
    identity = {
        **recipe.model_dump(exclude={"max_drop", "min_speedup"}),
        "device": device,
        "version": __version__,
        "weights": fingerprint(p for p in checkpoint.directory.iterdir() if p.is_file()),
        "calibration_sha256": calibration and calibration.sha256,
        "test_sha256": test and test.sha256,
    }
    workspace = open_workspace(output, identity, talk.say)
    return Journey(
        recipe, checkpoint, full, floors, plans, calibration, test, examples, task, device,
        workspace, talk,
    )  # fmt: skip


def plan_budgets(recipe: Recipe, full: HeadMask, output: Path) -> list[Plan]:
    """One plan for each `keep` and `remove` of the recipe.

    Raises:
        UsageError: none given, the same one twice, or one the model cannot meet.
    """
    budgets = [parse_budget("keep", text, full) for text in recipe.keep]
    budgets += [parse_budget("remove", text, full) for text in recipe.remove]
    if not budgets:
        raise UsageError("say how many heads to keep, for example --keep 0.5 or --remove 12")
    slugs = [budget.slug for budget in budgets]
    if len(set(slugs)) < len(slugs):
        raise UsageError(
            f"the same budget is asked for twice: {', '.join(b.text for b in budgets)}"
        )
    if len(budgets) == 1:
        return [Plan(slugs[0], budgets[0], output)]
    return [Plan(s, b, output / s) for s, b in zip(slugs, budgets, strict=True)]


def read_data(recipe: Recipe, checkpoint: Checkpoint) -> tuple[Rows | None, Rows | None]:
    """Calibration and test rows, as far as they are given.

    Raises:
        UsageError: the method needs calibration rows, or there are no rows at all.
        InputError: malformed data, with file and line.
    """
    if recipe.calibration is None and recipe.method not in DATA_FREE:
        raise UsageError(f"--method {recipe.method} needs --calibration FILE")
    if recipe.calibration is None and recipe.test is None:
        raise UsageError("give --calibration FILE or --test FILE: builds are checked on its rows")
    entry: Architecture = checkpoint.entry
    columns = {
        name: getattr(recipe, name)
        for name in (
            "source_column", "target_column", "text_column", "text_pair_column", "label_column",
        )
    }  # fmt: skip
    labels = label_names(checkpoint.model.config) if entry.task == "classification" else None

    def read(spec: str | None, limit: int | None) -> Rows | None:
        if spec is None:
            return None
        return read_rows(
            entry.task, spec, labels=labels, minimum=MINIMUM_ROWS, limit=limit, **columns
        )

    return (
        read(recipe.calibration, recipe.calibration_rows),
        read(recipe.test, recipe.test_rows),
    )


def _dense(journey: Journey, probe: Probe) -> Variant:
    directory = journey.workspace.state / "dense"
    data = journey.workspace.stage(
        "dense",
        "exporting the dense model to compare with",
        lambda: build_dense(journey.checkpoint, probe, directory),
    )
    return Variant.model_validate(data | {"directory": directory.as_posix()})


def _choose_heads(journey: Journey, plan: Plan) -> tuple[HeadMask, HeadScores]:
    """Scores and the mask that follows from them; the first scores serve all budgets."""
    recipe, full = journey.recipe, journey.full

    def score(mask: HeadMask) -> HeadScores:
        if mask != full:
            return _score(journey, mask)
        first = journey.workspace.stage(
            "scores",
            f"scoring {full.total()} heads with {recipe.method}",
            lambda: scores_to_json(_score(journey, full)),
        )
        return scores_from_json(first)

    def choose() -> dict[str, Any]:
        mask, scores = prune_in_steps(full, plan.budget, journey.floors, recipe.steps, score)
        return {"kept": mask.to_json(), **scores_to_json(scores)}

    data = journey.workspace.stage(
        f"heads-{plan.name}", f"choosing heads to {plan.budget.text}", choose
    )
    heads = {name: len(flags) for name, flags in full.keep.items()}
    return HeadMask.from_json(data["kept"], heads), scores_from_json(data)


def _score(journey: Journey, mask: HeadMask) -> HeadScores:
    """Score the heads of what `mask` leaves, with the recipe's method."""
    return score_checkpoint_heads(
        journey.recipe, journey.checkpoint, journey.examples, mask, journey.device, journey.talk
    )


def score_checkpoint_heads(
    recipe: Recipe,
    checkpoint: Checkpoint,
    examples: Sequence[Example],
    mask: HeadMask,
    device: str,
    talk: Talk,
) -> HeadScores:
    """Run the recipe's scoring method over encoded calibration rows on a device."""
    task, model = task_module(checkpoint.entry.task), checkpoint.model
    free = recipe.method in DATA_FREE
    scoring = Scoring(
        model=model.to(device),
        layers=checkpoint.layers,
        mask=mask,
        batches=[] if free else task.batches(examples, model),
        task=task,
        per=recipe.per,
        normalize=recipe.normalize,
        seed=recipe.seed,
        device=device,
        progress=lambda done, total: talk.progress("batches", done, total),
    )
    try:
        return score_heads(recipe.method, scoring)
    finally:
        model.to("cpu")


def _build(
    journey: Journey, plan: Plan, mask: HeadMask, scores: HeadScores, probe: Probe
) -> Variant:
    data = journey.workspace.stage(
        f"build-{plan.name}",
        f"removing {mask.total() - mask.count()} of {mask.total()} heads, exporting, checking",
        lambda: build_variant(
            journey.checkpoint, mask, scores, plan.budget, journey.recipe.seed, probe, plan.name,
            plan.directory,
        ),
    )  # fmt: skip
    return Variant.model_validate(data | {"directory": plan.directory.as_posix()})


def _evaluate(journey: Journey, dense: Variant, variants: list[Variant]) -> None:
    """Quality of every model on the test rows through the same runtime, with comparisons."""
    rows, recipe = journey.test, journey.recipe
    if rows is None:
        journey.talk.say("quality is not measured: no --test FILE was given")
        return
    task = journey.checkpoint.entry.task
    outputs = {}
    for model in (dense, *variants):
        outputs[model.name] = journey.workspace.stage(
            f"answers-{model.name}",
            f"evaluating {model.name} on {len(rows.sources)} rows",
            lambda directory=Path(model.directory): answers(
                directory, rows, journey.device, recipe.num_beams, journey.talk
            ),
        )
        if task == "translation":
            model.quality = score_translation(outputs[model.name], rows.targets)
        else:
            labels = label_names(journey.checkpoint.model.config)
            model.quality = score_classification(outputs[model.name], rows.targets, labels)
    for model in variants:
        data = journey.workspace.stage(
            f"significance-{model.name}",
            f"comparing {model.name} with dense ({recipe.resamples} resamples)",
            lambda name=model.name: [
                found.model_dump()
                for found in compare(
                    task, outputs["dense"], outputs[name], rows.targets,
                    resamples=recipe.resamples, seed=recipe.seed,
                )
            ],
        )  # fmt: skip
        model.comparisons = [Comparison.model_validate(found) for found in data]


def _throughput(journey: Journey, dense: Variant, variants: list[Variant]) -> Throughput:
    recipe = journey.recipe
    subjects = [
        Subject(model.name, Path(model.directory), {n: len(k) for n, k in model.kept.items()})
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


def _scoring_facts(scores: HeadScores | None) -> ScoringFacts | None:
    if scores is None:
        return None
    values = {name: list(found) for name, found in scores.values.items()}
    return ScoringFacts(
        method=scores.method, signature=scores.signature, cost=dict(scores.cost), values=values
    )


def _finish(journey: Journey, report: Report, output: Path) -> None:
    """Reports, recipe, model card and manifest: of the whole run, and of each artifact."""
    for plan, variant in zip(journey.plans, report.variants, strict=True):
        own = _own_recipe(journey.recipe, plan)
        plan.directory.joinpath("recipe.yaml").write_text(own.to_yaml(), encoding="utf-8")
        own_report = _report_of(report, variant)
        write_reports(own_report, plan.directory)
        card = render_card(own_report, variant.name)
        plan.directory.joinpath("README.md").write_text(card, encoding="utf-8")
    if len(journey.plans) > 1:
        output.joinpath("recipe.yaml").write_text(journey.recipe.to_yaml(), encoding="utf-8")
        write_reports(report, output)
    facts: dict[str, Any] = {
        "tool": f"compress {__version__}",
        "created": report.created,
        "command": report.command,
        "seed": report.seed,
        "precision": PRECISION,
        "calibration": report.calibration and report.calibration.model_dump(),
        "versions": report.versions,
        "hardware": report.hardware,
    }
    for directory in {*(plan.directory for plan in journey.plans), output}:
        write_manifest(directory, facts)


def _report_of(report: Report, variant: Variant) -> Report:
    """The report with the dense model and one variant alone."""
    timed = report.throughput
    if timed is not None:
        rows = [row for row in timed.rows if row.variant in ("dense", variant.name)]
        timed = timed.model_copy(update={"rows": rows})
    gates = [outcome for outcome in report.gate if outcome.variant == variant.name]
    return report.model_copy(update={"variants": [variant], "throughput": timed, "gate": gates})


def _own_recipe(recipe: Recipe, plan: Plan) -> Recipe:
    """The recipe that makes this one artifact."""
    mode, _, amount = plan.budget.text.partition(" ")
    return recipe.model_copy(update={"keep": [], "remove": [], mode: [amount]})


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
