"""The stages in which models answer the test rows and are compared with the dense one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compressor.evaluation import compare, score_classification, score_translation
from compressor.export.metadata import label_names
from compressor.journey import Journey
from compressor.report.schema import Comparison, Variant
from compressor.tasks import Rows
from compressor.tasks.answers import answers


def evaluate(journey: Journey, dense: Variant, variants: list[Variant]) -> None:
    """Quality of every model on the test rows through the same runtime, with comparisons."""
    rows, task = journey.test, journey.checkpoint.entry.task
    if rows is None:
        journey.talk.say("quality is not measured: no --test FILE was given")
        return
    outputs = {}
    for model in (dense, *variants):
        outputs[model.name] = answer_rows(journey, model, rows)
        if task == "translation":
            model.quality = score_translation(outputs[model.name], rows.targets)
        else:
            labels = label_names(journey.checkpoint.model.config)
            model.quality = score_classification(outputs[model.name], rows.targets, labels)
    for model in variants:
        pair = outputs["dense"], outputs[model.name]
        model.comparisons = _compare(journey, model.name, "dense", pair, rows)
        if model.base not in ("", "dense"):
            pair = outputs[model.base], outputs[model.name]
            model.base_comparisons = _compare(journey, model.name, model.base, pair, rows)


def answer_rows(journey: Journey, model: Variant, rows: Rows) -> list[str]:
    """What an exported model answers to the rows; a resumable stage."""
    recipe = journey.recipe
    return journey.workspace.stage(
        f"answers-{model.name}",
        f"evaluating {model.name} on {len(rows.sources)} rows",
        lambda: answers(
            Path(model.directory),
            rows,
            journey.device,
            recipe.num_beams,
            journey.talk,
            model.precision,
        ),
    )


def _compare(
    journey: Journey, name: str, base: str, outputs: tuple[list[str], list[str]], rows: Rows
) -> list[Comparison]:
    recipe = journey.recipe

    def compute() -> list[dict[str, Any]]:
        found = compare(
            rows.task, *outputs, rows.targets, resamples=recipe.resamples, seed=recipe.seed
        )
        return [comparison.model_dump() for comparison in found]

    title = f"comparing {name} with {base} ({recipe.resamples} resamples)"
    stage = f"significance-{name}" if base == "dense" else f"significance-{name}-base"
    data = journey.workspace.stage(stage, title, compute)
    return [Comparison.model_validate(found) for found in data]
