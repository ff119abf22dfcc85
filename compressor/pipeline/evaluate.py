"""Models answer the test rows, are compared with the dense one, and are timed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compressor import throughput as timing
from compressor.evaluation import compare_rows, score_rows
from compressor.evaluation.answers import answers
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.precision_names import BASE, ON_DEVICE
from compressor.model.sublayers import renumbered
from compressor.pipeline.build import DENSE, delivered
from compressor.pipeline.setup import RunSetup
from compressor.report import facts
from compressor.report.publish import sample_answers
from compressor.request.sections import Benchmark
from compressor.results import Comparison, Throughput, Variant
from compressor.steps import Steps
from compressor.tasks import Rows
from compressor.throughput import Subject


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
    """The precision that an artifact runs where none is named.

    The fastest, by the geometric mean of its sentences per second over all batch sizes, of those
    that are for the device, met their tolerance and lose no quality significantly against float32.
    Without test rows or timings it is float32.

    Args:
        builds: one model in its precisions, float32 first.
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
