"""Metrics of texts that belong to no file of rows."""

from collections.abc import Mapping, Sequence

from compressor.evaluation import DEFAULT_SEED, compare_rows, score_rows
from compressor.steps.results import Comparison, Quality
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


def classified(lost: int, won: int, rows: int) -> Sequence[list[str]]:
    """Dense answers, pruned answers and labels; rows that nothing is said of, both have right."""
    gold = ["ab"[row % 2] for row in range(rows)]
    wrong = ["ba"[row % 2] for row in range(rows)]
    dense = gold[:lost] + wrong[lost : lost + won] + gold[lost + won :]
    return dense, wrong[:lost] + gold[lost:], gold
