"""Outputs of an exported model for rows; uses the runtime alone, without torch."""

from __future__ import annotations

from pathlib import Path

from compressor import parallel
from compressor.progress import Progress
from compressor.runtime.text import one_warning_of_cut
from compressor.storage.names import ONNXRUNTIME
from compressor.tasks import TASKS, Rows

_CHUNK_ROWS = 512  # rows between two reports of progress


def answers(
    directory: Path,
    rows: Rows,
    device: str,
    num_beams: int | None,
    progress: Progress,
    precision: str | None = None,
    engine: str = ONNXRUNTIME,
) -> list[str]:
    """Answer rows with an exported model.

    Ranks take chunks of rows in turn. Files are not checked for damage here.

    Args:
        directory: of the artifact.
        rows: of the artifact's task.
        device: `cpu` or `cuda`.
        num_beams: width of the beam search; None for the artifact's own.
        progress: receives the number of rows answered by this rank.
        precision: of the graphs; None for the artifact's default.
        engine: that runs them.

    Returns:
        The outputs for the rows of all ranks, in their order.
    """
    task = TASKS[rows.task]
    runtime = task.open(
        directory, device=device, threads=parallel.threads(), precision=precision, engine=engine
    )
    settings = task.answer_settings(rows)
    outputs: dict[int, list[str]] = {}  # number of the first row -> outputs
    done = 0
    starts = parallel.round_robin(range(0, rows.count, _CHUNK_ROWS))
    total = sum(min(_CHUNK_ROWS, rows.count - start) for start in starts)
    with one_warning_of_cut():
        for start in starts:
            part = slice(start, start + _CHUNK_ROWS)
            pairs = None if rows.pairs is None else rows.pairs[part]
            outputs[start] = task.answer(
                runtime, rows.sources[part], pairs, num_beams=num_beams, **settings
            )
            progress.update("rows", done := done + len(outputs[start]), total)
    for of_rank in parallel.gather(outputs):
        outputs |= of_rank
    return [text for start in sorted(outputs) for text in outputs[start]]
