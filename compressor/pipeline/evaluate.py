"""Models answer the test rows, are compared with the dense one, and are timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compressor.evaluation import compare_rows, score_rows
from compressor.evaluation.answers import answers
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.precision_names import BASE, ON_DEVICE
from compressor.model.sublayers import renumbered
from compressor.pipeline.engines import delivered
from compressor.pipeline.stages import DENSE, stage
from compressor.report import facts
from compressor.report.samples import sample_answers
from compressor.request.sections import Benchmark
from compressor.results import Comparison, Quality, Throughput, Variant
from compressor.storage.workspace import Workspace
from compressor.tasks import Rows
from compressor.throughput import Subject
from compressor.throughput import benchmark as time_models


@dataclass(frozen=True)
class Answering:
    """How exported models answer rows.

    Args:
        num_beams: beam width of generated answers; None for the checkpoint's own.
    """

    device: str
    num_beams: int | None = None


@dataclass(frozen=True)
class Measured:
    """The quality of a model's answers, and their differences from those of other models."""

    quality: Quality
    comparisons: Mapping[str, list[Comparison]]
    samples: list[str]  # a few of its answers


def measure(
    rows: Rows,
    bases: Mapping[str, Sequence[str]],
    answer: Callable[[str], list[str]],
    compare: Callable[[str, str, Mapping[str, list[str]]], list[Comparison]],
) -> dict[str, Measured]:
    """Score the answers of models to the same rows, and compare them.

    Args:
        rows: read with the labels that the models know.
        bases: model -> models to compare it with.
        answer: of a model to all rows.
        compare: a model's answers with another's, out of all.
    """
    outputs = {name: answer(name) for name in bases}
    return {
        name: Measured(
            score_rows(rows, outputs[name]),
            {other: compare(name, other, outputs) for other in others},
            sample_answers(outputs[name]),
        )
        for name, others in bases.items()
    }


def evaluate(
    workspace: Workspace,
    dense: Variant,
    builds: Sequence[Variant],
    rows: Rows | None,
    answering: Answering,
    resamples: int,
    seed: int,
) -> tuple[Variant, list[Variant]]:
    """The models with their quality on the test rows, through the same runtime, and compared.

    Args:
        rows: test rows, read with the checkpoint's labels.
        resamples, seed: of the bootstrap.

    Returns:
        The dense model and the others; as they were handed in where there are no test rows.
    """
    if rows is None:
        workspace.progress.message("quality is not measured: no --test FILE was given")
        return dense, list(builds)
    models = {model.name: model for model in (dense, *builds)}
    # Another precision of a pruned model is compared with that, too.
    bases = {m.name: [DENSE] + [m.base] * (m.base not in ("", DENSE)) for m in builds}
    measured = measure(
        rows,
        {dense.name: [], **bases},
        lambda name: answer_rows(workspace, models[name], rows, answering),
        lambda name, base, outputs: _compare(
            workspace, models[name], models[base], outputs, rows, resamples, seed
        ),
    )
    evaluated = []
    for name, model in models.items():
        found = measured[name]
        update: dict[str, Any] = {"quality": found.quality, "samples": found.samples}
        if name != dense.name:
            update["comparisons"] = found.comparisons[DENSE]
        if model.base not in ("", DENSE):
            update["base_comparisons"] = found.comparisons[model.base]
        evaluated.append(model.model_copy(update=update))
    return evaluated[0], evaluated[1:]


def _answer(workspace: Workspace, model: Variant, rows: Rows, answering: Answering) -> list[str]:
    """What an exported model answers to rows."""
    return answers(
        Path(model.directory), rows, answering.device, answering.num_beams, workspace.progress,
        model.precision, model.engine,
    )  # fmt: skip


answer_rows = stage("answers")(_answer)  # the test rows
answer_search_rows = stage("search-answers")(_answer)  # the rows that a search looks at


@stage("comparison")
def _compare(
    workspace: Workspace,
    model: Variant,
    base: Variant,
    outputs: Mapping[str, list[str]],
    rows: Rows,
    resamples: int,
    seed: int,
) -> list[Comparison]:
    """Paired differences of a model from another in every metric."""
    return compare_rows(rows, outputs[base.name], outputs[model.name], resamples, seed)


@stage("throughput")
def benchmark(
    workspace: Workspace,
    models: Sequence[Variant],
    rows: Rows,
    config: dict[str, Any],
    settings: Benchmark,
    device: str,
) -> Throughput:
    """Interleaved timings of all models at all batch sizes.

    Args:
        models: the dense one first.
        config: of the dense model.
    """
    return time_models(
        [
            Subject(
                m.name,
                Path(m.directory),
                renumbered(m.counts, m.dropped_layers),
                m.precision,
                m.engine,
                m.family == DENSE,
            )
            for m in models
        ],
        config=config,
        rows=rows,
        device=device,
        progress=workspace.progress.message,
        **settings.settings(),
    )


def choose_defaults(builds: Sequence[Variant], throughput: Throughput | None) -> list[Variant]:
    """The models, each marked whether its artifact runs it where no precision is named."""
    chosen = {
        base.name: choose_default(
            # Those that onnxruntime runs, float32 first.
            [x for x in builds if x.family == base.name and x.engine == ONNXRUNTIME],
            throughput,
        )
        for base in builds
        if not base.base
    }
    return [
        build.model_copy(update={"default": build.precision == chosen[build.family]})
        if build.family in chosen and build.engine == ONNXRUNTIME
        else build
        for build in builds
    ]


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
    return max([base, *sound], key=lambda build: speed(build, throughput)).precision


def speed(build: Variant, throughput: Throughput) -> float:
    """Logarithm of the geometric mean of sentences per second over all batch sizes."""
    rows = [row for row in throughput.rows if row.variant == build.name]
    return sum(math.log(row.sentences_per_second) for row in rows) / max(len(rows), 1)


def fastest_engines(builds: Sequence[Variant], throughput: Throughput | None) -> dict[str, str]:
    """Of each precision of one model, the engine that `engine="auto"` stands for.

    The fastest by `speed` of those that lose no quality significantly against float32; none where
    no other engine than onnxruntime was timed.

    Args:
        builds: one model in its precisions and engines.
    """
    served = set(delivered([build.engine for build in builds]))
    builds = [build for build in builds if build.engine in served]
    if throughput is None or len({build.engine for build in builds}) == 1:
        return {}
    sound: dict[str, list[Variant]] = {}
    for build in builds:
        if build.precision == BASE or build.engine == ONNXRUNTIME or facts.keeps_quality(build):
            sound.setdefault(build.precision, []).append(build)
    return {
        precision: max(same, key=lambda build: speed(build, throughput)).engine
        for precision, same in sound.items()
    }
