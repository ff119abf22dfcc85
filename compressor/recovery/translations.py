"""A translator's targets for distillation: the dense model's own translations of a text.

Sequence-level knowledge distillation (Kim & Rush 2016). They are made once and kept in a file, line
by line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from compressor import parallel
from compressor.training.text import TextLines

CHUNK_ROWS = 512  # lines that are sorted by length together, and lost at most by an interruption
GPU_CHUNK_ROWS = 8192  # takes a GPU seconds, in batches of hundreds of rows


def translate_lines(
    lines: TextLines,
    output: Path,
    translate: Callable[[Sequence[str]], list[str]],
    *,
    chunk_rows: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write a translation for each line; resume an earlier call that was interrupted.

    Args:
        lines: the text.
        output: is created when all lines are translated; until then finished chunks are in a file
            beside it, whose name ends with `.partial`.
        translate: translates some lines.
        chunk_rows: lines that are translated and written together; None for `CHUNK_ROWS`.
        progress: called with (lines done, total lines).
    """
    size = CHUNK_ROWS if chunk_rows is None else chunk_rows
    partial = output.with_name(f"{output.stem}-{size}.partial")
    done = parallel.on_main(lambda: _drop_unfinished(partial, size))
    rest = lines.after(done)
    while any(chunks := [list(islice(rest, size)) for _ in range(parallel.size())]):
        progress(done, lines.rows)
        mine = chunks[parallel.rank()]
        texts = [text for part in parallel.gather(translate(mine) if mine else []) for text in part]
        parallel.on_main(lambda texts=texts: _append(partial, texts))  # type: ignore[misc]
        done += len(texts)
    progress(done, lines.rows)
    parallel.on_main(lambda: os.replace(partial, output))


def _append(partial: Path, texts: Sequence[str]) -> None:
    """Append texts to a file, a line each, and wait until they are on the disk."""
    lines = [text.replace("\r", " ").replace("\n", " ") for text in texts]
    with partial.open("ab") as file:
        file.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
        file.flush()
        os.fsync(file.fileno())


def _drop_unfinished(partial: Path, size: int) -> int:
    """Truncate the file after its last complete chunk, or create it.

    Returns:
        The number of lines that are left in it.
    """
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.touch()
    rows = offset = whole = kept = 0
    with partial.open("rb") as file:
        for line in file:
            offset += len(line)
            if line.endswith(b"\n"):
                rows += 1
                if rows % size == 0:
                    whole, kept = offset, rows
    os.truncate(partial, whole)
    return kept
