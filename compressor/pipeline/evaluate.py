"""Models answer the test rows, are compared with the dense one, and are timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compressor.evaluation import compare, score_answers
from compressor.evaluation.answers import answers
from compressor.pipeline.default_precision import choose_default
from compressor.pipeline.stages import DENSE, stage
from compressor.request.sections import Benchmark
from compressor.results import Comparison, Throughput, Variant
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
    outputs = {name: answer_rows(workspace, m, rows, answering) for name, m in models.items()}
    scored = {
        name: model.model_copy(
            update={"quality": score_answers(rows.task, outputs[name], rows.targets, rows.labels)}
        )
        for name, model in models.items()
    }

    def compared(model: Variant, base: str) -> list[Comparison]:
        return _compare(workspace, model, models[base], outputs, rows, resamples, seed)

    for name, model in scored.items():
        if name == dense.name:
            continue
        update = {"comparisons": compared(model, DENSE)}
        if model.base not in ("", DENSE):  # another precision of a pruned model
            update["base_comparisons"] = compared(model, model.base)
        scored[name] = model.model_copy(update=update)
    return scored.pop(dense.name), list(scored.values())


@stage("answers")
def answer_rows(
    workspace: Workspace, model: Variant, rows: Rows, answering: Answering
) -> list[str]:
    """What an exported model answers to the test rows."""
    return _answer(workspace, model, rows, answering)


@stage("search-answers")
def answer_search_rows(
    workspace: Workspace, model: Variant, rows: Rows, answering: Answering
) -> list[str]:
    """What an exported model answers to the rows that a search looks at."""
    return _answer(workspace, model, rows, answering)


def _answer(workspace: Workspace, model: Variant, rows: Rows, answering: Answering) -> list[str]:
    return answers(
        Path(model.directory), rows, answering.device, answering.num_beams, workspace.progress,
        model.precision,
    )  # fmt: skip


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
    return compare(
        rows.task, outputs[base.name], outputs[model.name], rows.targets, resamples, seed
    )


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
        [Subject(m.name, Path(m.directory), m.counts, m.precision) for m in models],
        config=config,
        rows=rows,
        batch_sizes=settings.batch_size,
        lengths=settings.lengths,
        target_length=settings.target_length,
        device=device,
        threads=settings.threads,
        seconds=settings.seconds,
        progress=workspace.progress.message,
    )


def choose_defaults(builds: Sequence[Variant], throughput: Throughput | None) -> list[Variant]:
    """The models, each marked whether its artifact runs it where no precision is named."""
    chosen = {
        base.name: choose_default([b for b in builds if b.family == base.name], throughput)
        for base in builds
        if not base.base
    }
    return [
        build.model_copy(update={"default": build.precision == chosen[build.family]})
        if build.family in chosen
        else build
        for build in builds
    ]
