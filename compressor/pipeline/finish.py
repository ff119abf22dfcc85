"""The end of a run: models answer the test rows and are timed; reports, cards and manifests."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compressor import throughput as timing
from compressor.evaluation import compare_rows, score_rows
from compressor.evaluation.answers import answers
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.precision_names import BASE, ON_DEVICE
from compressor.export.precisions import set_default
from compressor.model.sublayers import renumbered
from compressor.options.sections import Benchmark
from compressor.pipeline.build import DENSE, delivered
from compressor.pipeline.setup import RunSetup, source_of, source_of_text
from compressor.report import DEFAULT_FORMATS, FORMATS, facts, render_reports
from compressor.report.card import render_card
from compressor.report.card_facts import read_card
from compressor.report.publish import (
    only,
    sample_answers,
    sample_rows,
    share_scoring,
    without_paths,
)
from compressor.report.schema import Report
from compressor.results import Comparison, QualitySearch, SpeedSearch, Throughput, Variant
from compressor.runtime.artifact import GRAPH_DIRECTORY
from compressor.steps import STATE, Steps
from compressor.storage.hashes import sha256_of
from compressor.storage.manifest import CARD, GRAPHS_FILE, MANIFEST, manifest_of
from compressor.storage.outputs import require_written_by_run, write_manifest, write_outputs
from compressor.storage.version import __version__
from compressor.tasks import Rows
from compressor.throughput import Subject, hardware

RECIPE = "recipe.yaml"


def start(*, command: str) -> dict[str, str]:
    """When and how the run was first started."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"created": now, "command": command}


def require_own_outputs(setup: RunSetup, steps: Steps) -> None:
    """Check, before anything is computed, that the last step will not meet files of the user's."""
    names = (RECIPE, CARD, MANIFEST, *(FORMATS[name].file for name in DEFAULT_FORMATS))
    directories = {setup.output, *(artifact.directory for artifact in setup.artifacts)}
    paths = [directory / name for directory in directories for name in names]
    require_written_by_run(setup.output, steps.state, paths)


def answer_rows(
    steps: Steps, model: Variant, rows: Rows, setup: RunSetup, what: str = "rows"
) -> list[str]:
    """An exported model's answers to rows, called `what` in messages."""
    title = f"evaluating {model.name} on {rows.count} {what}"
    return steps.do(answer, model, rows, title=title, shared=True, setup=setup, steps=steps)


def answer(model: Variant, rows: Rows, *, setup: RunSetup, steps: Steps) -> list[str]:
    directory, beams = Path(model.directory), setup.recipe.evaluation.num_beams
    return answers(
        directory, rows, setup.device, beams, steps.progress, model.precision, model.engine
    )


def evaluate(models: Sequence[Variant], setup: RunSetup, steps: Steps) -> list[Variant]:
    """The models, the dense one first, with their quality on the test rows, if there are any."""
    rows, settings = setup.data.test, setup.recipe.evaluation
    if rows is None:
        steps.progress.message("quality is not measured: no --test FILE was given")
        return list(models)
    outputs = {m.name: answer_rows(steps, m, rows, setup) for m in models}

    def compared(name: str, base: str) -> list[Comparison]:
        resamples, seed = settings.resamples, setup.recipe.seed
        title = f"comparing {name} with {base} ({resamples} resamples)"
        inputs = rows, outputs[base], outputs[name], resamples, seed
        return steps.do(compare_rows, *inputs, title=title)

    evaluated = []
    for model in models:
        texts = outputs[model.name]
        update: dict[str, Any] = {
            "quality": score_rows(rows, texts),
            "samples": sample_answers(texts, settings.samples),
        }
        if model.name != DENSE:
            update["comparisons"] = compared(model.name, DENSE)
        # Another precision of a pruned model is compared with that, too.
        if model.base not in ("", DENSE):
            update["base_comparisons"] = compared(model.name, model.base)
        evaluated.append(model.model_copy(update=update))
    return evaluated


def benchmark(models: Sequence[Variant], setup: RunSetup, steps: Steps) -> Throughput | None:
    """Interleaved timings of all models, the dense one first; None where none are asked for."""
    settings = setup.recipe.throughput
    if settings is None:
        return None
    title = f"measuring throughput at batch {settings.sizes}"
    return steps.do(time_models, models, settings, title=title, setup=setup, steps=steps)


def time_models(
    models: Sequence[Variant], settings: Benchmark, *, setup: RunSetup, steps: Steps
) -> Throughput:
    subjects = [
        Subject(
            m.name, Path(m.directory), renumbered(m.counts, m.dropped_layers), m.precision,
            m.engine, m.family == DENSE,
        )
        for m in models
    ]  # fmt: skip
    return timing.benchmark(
        subjects,
        config=setup.source.checkpoint.model.config.to_dict(),  # type: ignore[union-attr,operator]
        rows=setup.data.timed,
        device=setup.device,
        progress=steps.progress.message,
        **settings.settings(),
    )


def choose_defaults(builds: Sequence[Variant], throughput: Throughput | None) -> list[Variant]:
    """The pruned models, each marked whether its artifact runs it where no precision is named."""
    marked = []
    for build in builds:
        family = [x for x in builds if x.family == build.family and x.engine == ONNXRUNTIME]
        is_served = build.family != DENSE and build in family
        default = is_served and build.precision == choose_default(family, throughput)
        marked.append(build.model_copy(update={"default": default}))
    return marked


def choose_default(builds: Sequence[Variant], throughput: Throughput | None) -> str:
    """The precision that an artifact runs where none is named, of a model's builds, float32 first.

    The fastest of those that are for the device, met their tolerance and lose no quality
    significantly against float32; without test rows or timings float32.
    """
    base, *others = builds
    if throughput is None:
        return base.precision
    sound = [
        build
        for build in others
        # fp16 is computed in float32 on most CPUs: there it can be faster by luck alone.
        if build.precision in ON_DEVICE[throughput.device]
        and all(check.is_met for check in build.checks)
        and facts.keeps_quality(build)
    ]
    return _fastest([base, *sound], throughput).precision


def _fastest(builds: Sequence[Variant], throughput: Throughput) -> Variant:
    """By the geometric mean of sentences per second over all batch sizes."""

    def speed(build: Variant) -> float:
        rows = [row for row in throughput.rows if row.variant == build.name]
        return sum(math.log(row.sentences_per_second) for row in rows) / max(len(rows), 1)

    return max(builds, key=speed)


def fastest_engines(builds: Sequence[Variant], throughput: Throughput | None) -> dict[str, str]:
    """Precision -> the engine that `engine="auto"` stands for.

    The fastest build of one model, of those that lose no quality significantly against float32;
    none where no other engine than onnxruntime was timed.
    """
    served = set(delivered([build.engine for build in builds]))
    builds = [build for build in builds if build.engine in served]
    if throughput is None or len({build.engine for build in builds}) == 1:
        return {}
    sound: dict[str, list[Variant]] = {}
    for build in builds:
        if build.precision == BASE or build.engine == ONNXRUNTIME or facts.keeps_quality(build):
            sound.setdefault(build.precision, []).append(build)
    return {precision: _fastest(same, throughput).engine for precision, same in sound.items()}


def describe_run(
    setup: RunSetup,
    started: Mapping[str, str],
    dense: Variant,
    builds: Sequence[Variant],
    throughput: Throughput | None,
    search: SpeedSearch | QualitySearch | None,
) -> Report:
    """All results of a run, without the gate's outcomes."""
    checkpoint, data = setup.source.checkpoint, setup.data
    source_text, target_text = setup.source_text, setup.target_text
    scoring, variants = share_scoring(builds)
    samples = setup.recipe.evaluation.samples
    return Report(
        tool_version=__version__,
        created=started["created"],
        command=started["command"],
        task=checkpoint.task,
        model=checkpoint.name,
        revision=checkpoint.revision,
        model_type=str(checkpoint.model.config.model_type),  # type: ignore[union-attr]
        seed=setup.recipe.seed,
        calibration=source_of(data.calibration) if data.calibration else None,
        test=source_of(data.test) if data.test else None,
        notes=setup.dense.checkpoint.notes,
        samples=sample_rows(data.test, samples) if data.test else [],
        shared_rows=data.shared,
        scoring=scoring,
        dense=dense,
        variants=variants,
        throughput=throughput,
        search=search,
        source_text=None if source_text is None else source_of_text(source_text),
        target_text=None if target_text is None else source_of_text(target_text),
        hardware=hardware.describe(),
        versions=hardware.versions(),
    )


def publish(report: Report, setup: RunSetup, steps: Steps) -> None:
    """Write reports, recipes, cards and manifests; recipes alone name the machine's directories."""
    output, models = setup.output, facts.pruned(report)
    known = setup.recipe.card.over(read_card(setup.dense.checkpoint.directory))
    texts = {output / RECIPE: setup.recipe.to_yaml()}
    for artifact in setup.artifacts:
        texts[artifact.directory / RECIPE] = setup.recipe.to_yaml(artifact.budget)
    directories = {path.parent for path in texts}
    hashes = {n: digest for n, digest in steps.files.items() if STATE not in Path(n).parts}
    for model in models:
        directory = Path(model.directory)
        precision = facts.default_build(report, model).precision
        engines = fastest_engines(facts.builds(report, model), report.throughput)
        graphs = (directory / GRAPH_DIRECTORY / GRAPHS_FILE).relative_to(output).as_posix()
        hashes[graphs] = set_default(directory, precision, engines)
        own_report = without_paths(only(report, model), directory)
        texts |= render_reports(own_report, directory)
        texts[directory / CARD] = render_card(own_report, model.name, known)
    report = without_paths(report, output)
    if len(models) > 1:
        texts |= render_reports(report, output)

    def write(texts: Mapping[Path, str]) -> None:
        written = write_outputs(output, steps.state, texts)
        hashes.update({x.relative_to(output).as_posix(): sha256 for x, sha256 in written.items()})

    write(texts)
    provenance: dict[str, Any] = {
        "tool": f"compress {__version__}",
        "created": report.created,
        "command": report.command,
        "seed": report.seed,
        "precisions": list(setup.precisions),
        "calibration": report.calibration and report.calibration.model_dump(),
        "versions": report.versions,
        "hardware": report.hardware,
    }
    dense, graphs = steps.state / DENSE, f"{GRAPH_DIRECTORY}/{GRAPHS_FILE}"
    own_hashes = steps.files_below(dense) | {graphs: sha256_of(dense / graphs)}
    write_manifest(dense, provenance, own_hashes)  # its graphs can be opened as an artifact, too
    # What holds the artifacts comes last: its manifest lists theirs.
    for directory in sorted(directories, reverse=True):
        below = directory.relative_to(output)
        own_hashes = {
            Path(name).relative_to(below).as_posix(): digest
            for name, digest in hashes.items()
            if Path(name).is_relative_to(below)
        }
        manifest = manifest_of(directory, provenance, own_hashes)
        write({directory / MANIFEST: f"{json.dumps(manifest, ensure_ascii=False, indent=1)}\n"})
