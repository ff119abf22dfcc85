"""Metrics of texts that belong to no file of rows."""

from collections.abc import Mapping, Sequence

from compressor.evaluation import DEFAULT_SEED, compare_rows, score_rows
from compressor.results import Comparison, Quality
from compressor.tasks import Rows


def rows_of(
    task: str,
    references: Sequence[str],
    labels: list[str] | None = None,
    tokenizers: Mapping[str, str] | None = None,
) -> Rows:
    """Rows that have references alone."""
    texts = [""] * len(references)
    return Rows(task, texts, None, [*references], [], "", labels, tokenizers=tokenizers or {})


def score_answers(
    task: str, answers: Sequence[str], references: Sequence[str], labels: list[str] | None = None
) -> Quality:
    return score_rows(rows_of(task, references, labels), answers)


def compare(
    task: str,
    dense: Sequence[str],
    pruned: Sequence[str],
    references: Sequence[str],
    resamples: int = 1000,
    seed: int = DEFAULT_SEED,
    tokenizers: Mapping[str, str] | None = None,
) -> list[Comparison]:
    rows = rows_of(task, references, tokenizers=tokenizers)
    return compare_rows(rows, dense, pruned, resamples, seed)
