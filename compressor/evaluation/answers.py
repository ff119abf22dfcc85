"""What an exported model answers to rows; runs on the runtime alone, without torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from compressor.progress import Progress
from compressor.runtime import Classifier, Translator
from compressor.tasks import Rows, get_task

ROWS_PER_SIGN = 512  # rows between two signs of life


def answers(
    directory: Path,
    rows: Rows,
    device: str,
    num_beams: int | None,
    progress: Progress,
    precision: str | None = None,
) -> list[str]:
    """Translations, or label names, of all rows in their order.

    Args:
        precision: of the artifact's graphs; None takes its default.
    """
    answer = _answerer(directory, rows, device, num_beams, precision)
    found: list[str] = []
    for start in range(0, len(rows.sources), ROWS_PER_SIGN):
        found += answer(slice(start, start + ROWS_PER_SIGN))
        progress.update("rows", len(found), len(rows.sources))
    return found


def _answerer(
    directory: Path, rows: Rows, device: str, num_beams: int | None, precision: str | None
) -> Callable[[slice], list[str]]:
    if get_task(rows.task).generates:
        translator = Translator(directory, device=device, precision=precision)
        return lambda part: translator.translate(rows.sources[part], num_beams=num_beams)
    classifier = Classifier(directory, device=device, precision=precision)
    pairs = rows.pairs
    return lambda part: classifier.classify(
        rows.sources[part], None if pairs is None else pairs[part]
    )
