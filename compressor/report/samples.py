"""A few test rows with the answers of all models, for a reader to compare.

They are taken at even distances from the test rows, whatever the models answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from compressor.report.schema import Sample
from compressor.tasks import Rows

_MOST_TEXT = 400  # characters


def sample_rows(rows: Rows, samples: int) -> list[Sample]:
    """The test rows that a report shows, long texts shortened."""
    columns = [rows.sources, *([] if rows.pairs is None else [rows.pairs])]
    return [
        Sample(
            texts=[_shorten(column[number]) for column in columns],
            reference=_shorten(rows.targets[number]),
        )
        for number in _numbers(rows.count, samples)
    ]


def sample_answers(answers: Sequence[str], samples: int) -> list[str]:
    """The answers to these rows, out of the answers to all."""
    return [_shorten(answers[number]) for number in _numbers(len(answers), samples)]


def _numbers(count: int, samples: int) -> list[int]:
    if count <= samples:
        return list(range(count))
    return [(2 * number + 1) * count // (2 * samples) for number in range(samples)]


def _shorten(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"
