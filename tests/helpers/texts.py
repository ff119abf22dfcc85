"""Files of text to distill from."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

from compressor.tasks import TASKS
from compressor.tasks.rows import Reading
from compressor.training.text import Text, TextLines
from tests.helpers.tiny import LABELS, word_tokenizer
from tests.helpers.toy import sentence

LABEL_NAMES = [f"LABEL_{i}" for i in range(LABELS)]


def write(path: Path, lines: list[str], end: str = "\n") -> Path:
    path.write_bytes("".join(f"{line}{end}" for line in lines).encode("utf-8"))
    return path


def some_lines(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [sentence(rng) for _ in range(count)]


def translated(folder: Path, count: int, seed: int = 1) -> Text:
    """Lines, and other lines as their translations."""
    source = write(folder / "source.txt", some_lines(count, seed))
    target = write(folder / "target.txt", some_lines(count, seed + 1))
    return Text(TextLines(source), TASKS["translation"], word_tokenizer(), 32).translated(target)


def classified(path: Path, pairs: bool = False, copies: int = 0) -> Text:
    task = TASKS["classification"]
    kind = "all" if pairs else "none"
    columns_of = partial(task.text_columns, reading=Reading(), pairs=kind)
    lines = TextLines(path, columns_of=columns_of, pairs=pairs)
    return Text(lines, task, word_tokenizer(), 32, LABEL_NAMES, copies=copies)
