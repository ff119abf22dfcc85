"""What an exported model answers to rows; runs on the runtime alone, without torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from compressor.progress import Progress
from compressor.runtime import Classifier, Translator
from compressor.tasks import Rows, get_task

_CHUNK_ROWS = 512  # rows between two reports of progress


def answers(
    directory: Path,
    rows: Rows,
    device: str,
    num_beams: int | None,
    progress: Progress,
    precision: str | None = None,
) -> list[str]:
    """Translations, or label names, of all rows in their order; files are not checked for damage.

    Args:
        precision: of the artifact's graphs; None takes its default.
    """
    answer = _open(directory, rows, device, num_beams, precision)
    texts: list[str] = []
    for start in range(0, len(rows.sources), _CHUNK_ROWS):
        texts += answer(slice(start, start + _CHUNK_ROWS))
        progress.update("rows", len(texts), len(rows.sources))
    return texts


def _open(
    directory: Path, rows: Rows, device: str, num_beams: int | None, precision: str | None
) -> Callable[[slice], list[str]]:
    """A function from a slice of the rows to the answers."""
    if get_task(rows.task).generates:
        translator = Translator(directory, device=device, precision=precision, verify=False)
        return lambda part: translator.translate(rows.sources[part], num_beams=num_beams)
    classifier = Classifier(directory, device=device, precision=precision, verify=False)
    pairs = rows.pairs
    return lambda part: classifier.classify(
        rows.sources[part], None if pairs is None else pairs[part]
    )
