"""Models answer the test rows, are compared with the dense one, and are timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from compressor.evaluation import compare, score_answers
from compressor.evaluation.answers import answers
from compressor.pipeline.context import Context
from compressor.pipeline.default_precision import choose_default
from compressor.pipeline.stages import DENSE, stage
from compressor.results import Comparison, Throughput, Variant
from compressor.tasks import Rows
from compressor.throughput import Subject
from compressor.throughput import benchmark as time_models


def evaluate(
    context: Context, dense: Variant, builds: Sequence[Variant]
) -> tuple[Variant, list[Variant]]:
    """The models with their quality on the test rows, through the same runtime, and compared.

    Returns:
        The dense model and the others; as they were handed in where there are no test rows.
    """
    rows = context.data.test
    if rows is None:
        context.progress.message("quality is not measured: no --test FILE was given")
        return dense, list(builds)
    labels = context.task.label_names(context.checkpoint.model.config)
    models = {model.name: model for model in (dense, *builds)}
    outputs = {name: answer_rows(context, model) for name, model in models.items()}
    scored = {
        name: model.model_copy(
            update={"quality": score_answers(rows.task, outputs[name], rows.targets, labels)}
        )
        for name, model in models.items()
    }
    return scored.pop(dense.name), [
        model.model_copy(update=_comparisons(context, model, models, outputs))
        for model in scored.values()
    ]


def _comparisons(
    context: Context,
    model: Variant,
    models: Mapping[str, Variant],
    outputs: Mapping[str, list[str]],
) -> dict[str, list[Comparison]]:
    """With the dense model, and of other precisions with the float32 one they were made from."""
    found = {"comparisons": _compare(context, model, models[DENSE], outputs)}
    if model.base not in ("", DENSE):
        found["base_comparisons"] = _compare(context, model, models[model.base], outputs)
    return found


@stage("answers")
def answer_rows(context: Context, model: Variant) -> list[str]:
    """What an exported model answers to the test rows."""
    return _answer(context, model, context.data.test)


@stage("search-answers")
def answer_search_rows(context: Context, model: Variant) -> list[str]:
    """What an exported model answers to the rows that a search looks at."""
    return _answer(context, model, context.data.search)


def _answer(context: Context, model: Variant, rows: Rows | None) -> list[str]:
    assert rows is not None
    return answers(
        Path(model.directory),
        rows,
        context.device,
        context.recipe.evaluation.num_beams,
        context.progress,
        model.precision,
    )


@stage("comparison")
def _compare(
    context: Context, model: Variant, base: Variant, outputs: Mapping[str, list[str]]
) -> list[Comparison]:
    """Paired differences of a model from another in every metric."""
    rows, recipe = context.data.test, context.recipe
    assert rows is not None
    return compare(
        rows.task, outputs[base.name], outputs[model.name], rows.targets,
        resamples=recipe.evaluation.resamples, seed=recipe.seed,
    )  # fmt: skip


@stage("throughput")
def benchmark(context: Context, dense: Variant, builds: Sequence[Variant]) -> Throughput:
    """Interleaved timings of all models at all batch sizes."""
    settings = context.recipe.throughput
    assert settings is not None
    subjects = [
        Subject(
            model.name,
            Path(model.directory),
            model.counts,
            model.precision,
        )
        for model in (dense, *builds)
    ]
    return time_models(
        subjects,
        config=context.checkpoint.model.config.to_dict(),  # type: ignore[union-attr,operator]
        rows=context.data.timed,
        batch_sizes=settings.batch_size,
        lengths=settings.lengths,
        target_length=settings.target_length,
        device=context.device,
        threads=settings.threads,
        seconds=settings.seconds,
        progress=context.progress.message,
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
