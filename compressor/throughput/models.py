"""Speed of the exported models of a run, in turns with each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compressor.model.sublayers import renumbered
from compressor.steps.context import Context
from compressor.steps.results import Throughput
from compressor.steps.values import DENSE, Exported
from compressor.tasks import Rows
from compressor.throughput.bench import Subject, benchmark


def benchmark_models(
    models: Sequence[Exported],
    settings: Mapping[str, Any] | None,
    rows: Rows,
    config: Mapping[str, Any],
    context: Context,
) -> Throughput | None:
    """Interleaved timings of all models, the dense one first; None where none are asked for.

    Args:
        models: exported.
        settings: keywords of `benchmark`.
        rows: whose lengths are timed.
        config: of the dense model, as its `config.json` has it.
        context: where they are timed.
    """
    if settings is None:
        return None
    title = f"measuring throughput at batch {', '.join(map(str, settings['batch_sizes']))}"
    return context.steps.do(
        time_models, models, settings, title=title, rows=rows, config=config, context=context
    )


def time_models(
    models: Sequence[Exported],
    settings: Mapping[str, Any],
    *,
    rows: Rows,
    config: Mapping[str, Any],
    context: Context,
) -> Throughput:
    """Interleaved timings of all models, the dense one first."""
    subjects = [
        Subject(
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
    return benchmark(
        subjects,
        config=config,
        rows=rows,
        device=context.device,
        seed=context.seed,
        progress=context.progress.message,
        **settings,
    )
