"""What an exported model answers to rows; runs on the runtime alone, without torch."""

from __future__ import annotations

from pathlib import Path

from compressor.progress import Progress
from compressor.tasks import TASKS, Rows

_CHUNK_ROWS = 512  # rows between two reports of progress


def answers(
    directory: Path,
    rows: Rows,
    device: str,
    num_beams: int | None,
    progress: Progress,
    precision: str | None = None,
    engine: str = "onnxruntime",
) -> list[str]:
    """The answers to all rows in their order; files are not checked for damage.

    Args:
        precision: of the artifact's graphs; None takes its default.
        engine: that computes.
    """
    task = TASKS[rows.task]
    runtime = task.open(directory, device=device, precision=precision, engine=engine)
    texts: list[str] = []
    settings = task.answer_settings(rows)
    for start in range(0, len(rows.sources), _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        pairs = None if rows.pairs is None else rows.pairs[part]
        texts += task.answer(runtime, rows.sources[part], pairs, num_beams, **settings)
        progress.update("rows", len(texts), len(rows.sources))
    return texts
