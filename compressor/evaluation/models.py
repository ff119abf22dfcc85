"""Answers of the exported models of a run to its test rows, and their quality."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compressor.evaluation.answers import answers
from compressor.evaluation.lengths import with_lengths
from compressor.evaluation.metric import score_rows
from compressor.evaluation.significance import compare_rows
from compressor.steps.context import Context
from compressor.steps.results import Comparison, Source, Variant
from compressor.steps.values import DENSE, Exported
from compressor.tasks import Rows

_MOST_TEXT = 400  # characters


def answer_rows(
    exported: Exported, rows: Rows, beams: int | None, context: Context, what: str = "rows"
) -> list[str]:
    """An exported model's answers to rows; a step.

    Args:
        exported: the model.
        rows: to answer.
        beams: the width of a translator's search; None for the artifact's own.
        context: where it runs.
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
    models: Sequence[Exported],
    rows: Rows | None,
    beams: int | None,
    resamples: int,
    samples: int,
    context: Context,
) -> list[Variant]:
    """The models, the dense one first, with their quality on the test rows, if there are any.

    Args:
        models: exported, of which all but the first are compared with it.
        rows: to test on.
        beams: the width of a translator's search; None for the artifact's own.
        resamples: of the bootstrap.
        samples: rows whose answers are kept to be shown.
        context: how they are run.
    """
    if rows is None:
        context.progress.message("quality is not measured: no --test FILE was given")
        return [exported.located() for exported in models]
    outputs = {x.model.name: answer_rows(x, rows, beams, context) for x in models}

    def compared(name: str, base: str) -> list[Comparison]:
        title = f"comparing {name} with {base} ({resamples} resamples)"
        inputs = rows, outputs[base], outputs[name], resamples, context.seed
        return context.steps.do(compare_rows, *inputs, title=title)

    evaluated = []
    for exported in models:
        model = exported.model
        texts = outputs[model.name]
        dense = None if model.name == DENSE else outputs[DENSE]
        update: dict[str, Any] = {
            "quality": with_lengths(score_rows(rows, texts), rows, texts, dense),
            "samples": sample_answers(texts, samples),
        }
        if model.name != DENSE:
            update["comparisons"] = compared(model.name, DENSE)
        # Another precision of a pruned model is compared with that, too.
        if model.base not in ("", DENSE):
            update["base_comparisons"] = compared(model.name, model.base)
        evaluated.append(exported.located().model_copy(update=update))
    return evaluated


def sample_answers(answers: Sequence[str], samples: int) -> list[str]:
    """The texts of rows at even distances, whatever the models answer."""
    count = len(answers)
    samples = min(count, samples)
    chosen = (answers[(2 * number + 1) * count // (2 * samples)] for number in range(samples))
    return [x if len(x) <= _MOST_TEXT else f"{x[: _MOST_TEXT - 1]}…" for x in chosen]


def source_of(rows: Rows) -> Source:
    """Rows, for reports."""
    return Source(files=rows.files, rows=rows.count, sha256=rows.sha256, read=rows.read)
