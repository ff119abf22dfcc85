"""The stages in which models answer the test rows and are compared with the dense one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compressor.evaluation import compare, score_answers
from compressor.evaluation.answers import answers
from compressor.pipeline.context import Context
from compressor.results import Comparison, Variant
from compressor.tasks import Rows


def evaluate(context: Context, dense: Variant, variants: list[Variant]) -> None:
    """Quality of every model on the test rows through the same runtime, with comparisons."""
    rows = context.test
    labels = context.task.label_names(context.checkpoint.model.config)
    if rows is None:
        context.progress.message("quality is not measured: no --test FILE was given")
        return
    outputs = {}
    for model in (dense, *variants):
        outputs[model.name] = answer_rows(context, model, rows)
        model.quality = score_answers(rows.task, outputs[model.name], rows.targets, labels)
    for model in variants:
        pair = outputs["dense"], outputs[model.name]
        model.comparisons = _compare(context, model.name, "dense", pair, rows)
        if model.base not in ("", "dense"):
            pair = outputs[model.base], outputs[model.name]
            model.base_comparisons = _compare(context, model.name, model.base, pair, rows)


def answer_rows(context: Context, model: Variant, rows: Rows) -> list[str]:
    """What an exported model answers to the rows; a resumable stage."""
    recipe = context.recipe
    return context.workspace.stage(
        f"answers-{model.name}",
        f"evaluating {model.name} on {len(rows.sources)} rows",
        lambda: answers(
            Path(model.directory),
            rows,
            context.device,
            recipe.num_beams,
            context.progress,
            model.precision,
        ),
    )


def _compare(
    context: Context, name: str, base: str, outputs: tuple[list[str], list[str]], rows: Rows
) -> list[Comparison]:
    recipe = context.recipe

    def compute() -> list[dict[str, Any]]:
        found = compare(
            rows.task, *outputs, rows.targets, resamples=recipe.resamples, seed=recipe.seed
        )
        return [comparison.model_dump() for comparison in found]

    title = f"comparing {name} with {base} ({recipe.resamples} resamples)"
    stage = f"significance-{name}" if base == "dense" else f"significance-{name}-base"
    data = context.workspace.stage(stage, title, compute)
    return [Comparison.model_validate(found) for found in data]
