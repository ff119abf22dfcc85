"""What a decoder that became too small fails at first: long sentences, and the length of answers.

Corpus scores hide both, since most rows are short.
"""

from __future__ import annotations

from collections.abc import Sequence

from compressor.evaluation.metric import score_rows
from compressor.evaluation.words import words
from compressor.steps.results import LongSources, Quality
from compressor.tasks import TASKS, Rows
from compressor.tasks.rows import some_rows

ENOUGH_ROWS = 20  # fewer long rows get no score


def with_lengths(
    quality: Quality, rows: Rows, outputs: Sequence[str], dense: Sequence[str] | None
) -> Quality:
    """Add to a model's quality what its answers to long rows, and their lengths, are like.

    Args:
        quality: of the outputs.
        rows: with references.
        outputs: of the model, one per row.
        dense: the dense model's; None where these are.

    Returns:
        The quality, as it was for tasks that do not ask for it.
    """
    most = TASKS[rows.task].long_source_words
    if most is None:
        return quality
    long = [number for number, text in enumerate(rows.sources) if len(words(text)) > most]
    score = None
    if len(long) >= ENOUGH_ROWS:
        judged = score_rows(some_rows(rows, long), [outputs[n] for n in long], most=1)
        (score,) = judged.metrics.values()
    update = {
        "long_sources": LongSources(words=most, rows=len(long), score=score),
        "other_lengths": None if dense is None else _share_of_other_lengths(outputs, dense),
    }
    return quality.model_copy(update=update)


def _share_of_other_lengths(outputs: Sequence[str], dense: Sequence[str]) -> float:
    """Share of outputs with over 30 % more or fewer words than those of the dense model."""
    pairs = [(len(words(x)), len(words(y))) for x, y in zip(outputs, dense, strict=True)]
    # In whole numbers: 13 words differ from 10 by exactly 30 %.
    return sum(10 * abs(count - usual) > 3 * usual for count, usual in pairs) / len(pairs)
