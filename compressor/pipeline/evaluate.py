"""What models are worth: their answers to the test rows, their speed, and which is the default."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from compressor import throughput as timing
from compressor.evaluation import compare_rows, score_rows
from compressor.evaluation.answers import answers
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.precision_names import BASE, ON_DEVICE
from compressor.model.sublayers import renumbered
from compressor.options.sections import Benchmark, RunEvaluation
from compressor.pipeline.context import Context
from compressor.pipeline.export import pruned_engines
from compressor.pipeline.values import DENSE, Exported, Opened
from compressor.report import facts
from compressor.report.publish import sample_answers
from compressor.results import Comparison, Source, Throughput, Variant
from compressor.tasks import Rows


def answer_rows(
    exported: Exported, rows: Rows, beams: int | None, context: Context, what: str = "rows"
) -> list[str]:
    """An exported model's answers to rows; a step.

    Args:
        beams: the width of a translator's search; None for the artifact's own.
        what: the rows, in messages.
    """
    title = f"evaluating {exported.model.name} on {rows.count} {what}"
    return context.steps.do(
        answer, exported, rows, beams, title=title, shared=True, context=context
    )


def answer(exported: Exported, rows: Rows, beams: int | None, *, context: Context) -> list[str]:
    """An exported model's answers to rows, in their order."""
    model, progress = exported.model, context.progress
    return answers(
        exported.directory, rows, context.device, beams, progress, model.precision, model.engine
    )


def evaluate(
    models: Sequence[Exported], rows: Rows | None, settings: RunEvaluation, context: Context
) -> list[Variant]:
    """The models, the dense one first, with their quality on the test rows, if there are any."""
    if rows is None:
        context.progress.message("quality is not measured: no --test FILE was given")
        return [exported.located() for exported in models]
    beams, resamples = settings.num_beams, settings.resamples
    outputs = {x.model.name: answer_rows(x, rows, beams, context) for x in models}

    def compared(name: str, base: str) -> list[Comparison]:
        title = f"comparing {name} with {base} ({resamples} resamples)"
        inputs = rows, outputs[base], outputs[name], resamples, context.seed
        return context.steps.do(compare_rows, *inputs, title=title)

    evaluated = []
    for exported in models:
        model = exported.model
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
        evaluated.append(exported.located().model_copy(update=update))
    return evaluated


def benchmark(
    models: Sequence[Exported], settings: Benchmark | None, opened: Opened, context: Context
) -> Throughput | None:
    """Interleaved timings of all models, the dense one first; None where none are asked for."""
    if settings is None:
        return None
    title = f"measuring throughput at batch {settings.sizes}"
    return context.steps.do(
        time_models, models, settings, title=title, opened=opened, context=context
    )


def time_models(
    models: Sequence[Exported], settings: Benchmark, *, opened: Opened, context: Context
) -> Throughput:
    """Interleaved timings of all models, the dense one first."""
    subjects = [
        timing.Subject(
            model.name,
            exported.directory,
            renumbered(model.counts, model.dropped_layers),
            model.precision,
            model.engine,
            model.family == DENSE,
        )
        for exported in models
        for model in [exported.model]
    ]
    return timing.benchmark(
        subjects,
        config=opened.source.checkpoint.model.config.to_dict(),  # type: ignore[union-attr,operator]
        rows=opened.data.timed,
        device=context.device,
        progress=context.progress.message,
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
    served = set(pruned_engines([build.engine for build in builds]))
    builds = [build for build in builds if build.engine in served]
    if throughput is None or len({build.engine for build in builds}) == 1:
        return {}
    sound: dict[str, list[Variant]] = {}
    for build in builds:
        if build.precision == BASE or build.engine == ONNXRUNTIME or facts.keeps_quality(build):
            sound.setdefault(build.precision, []).append(build)
    return {precision: _fastest(same, throughput).engine for precision, same in sound.items()}


def source_of(rows: Rows) -> Source:
    """Rows, for reports."""
    return Source(files=rows.files, rows=rows.count, sha256=rows.sha256, read=rows.read)
