"""Lines of text on disk as training rows, read in blocks."""

from __future__ import annotations

import copy
import pickle
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from compressor.errors import UsageError
from compressor.progress import Progress
from compressor.storage.input_files import MIB
from compressor.storage.text_files import REPORTED_LINES
from compressor.tasks import Example, Rows, Task
from compressor.tasks.opened import ModelAndRows
from compressor.tasks.rows import Reading
from compressor.tasks.texts import DISTILL, ColumnsOf, open_texts
from compressor.training.augmentation import altered

BLOCK_ROWS = 32  # lines that are read together
KEPT_BYTES = 2**26  # of token ids, since encoding takes as long as a step on a GPU
_BLOCKS = 8  # between two stored offsets; reading a block skips three and a half others on average


class TextLines:
    """The lines of a file of texts, in blocks of `BLOCK_ROWS`; it may be larger than the memory.

    The constructor reads the file once, to count and to find the blocks. `rows` is the number of
    lines, `size` that of bytes, unpacked.

    Args:
        path: the file, packed or not.
        columns_of: which columns of a file hold the texts, see `compressor.tasks.texts.open_texts`.
        pairs: each line is two texts; in plain lines with a tab between them.
        blank: lines without text count, too; otherwise they are skipped.
        progress: called with the number of lines read, from time to time.

    Raises:
        InputError: the file cannot be read, is not UTF-8, has no text, or a line is no pair.
        EnvironmentProblem: the package that unpacks it is not installed.
    """

    def __init__(
        self,
        path: Path,
        *,
        columns_of: ColumnsOf | None = None,
        pairs: bool = False,
        blank: bool = False,
        progress: Callable[[int], None] = lambda lines: None,
    ) -> None:
        self.path = path
        self.pairs = pairs
        self.blank = blank
        self.rows = self.size = 0
        self._file = open_texts(path, DISTILL, columns_of, pairs=pairs)
        self.said = self._file.said
        self.is_packed, self._stored = self._file.is_packed, path
        self._offsets = array("q")  # bytes before the first line of every `_BLOCKS`-th block
        for number, line in enumerate(self._file.lines(), 1):
            if self._counts(self._file.texts(line, number)):
                if self.rows % (BLOCK_ROWS * _BLOCKS) == 0:
                    self._offsets.append(self.size)
                self.rows += 1
            self.size += len(line)
            if number % REPORTED_LINES == 0:
                progress(number)
        if not self.rows:
            raise self._file.empty()

    def unpacked(self, path: Path) -> TextLines:
        """The same lines, read from the file that `unpack` wrote."""
        lines = copy.copy(self)
        lines.is_packed, lines._stored = False, path
        return lines

    def unpack(self, path: Path, progress: Callable[[int, int], None]) -> None:
        """Write the decompressed lines to a file.

        Args:
            path: of the new file.
            progress: called with (MiB written, total MiB).
        """
        done = 0
        with path.open("wb") as file:
            for piece in self._file.pieces():
                file.write(piece)
                done += len(piece)
                progress(done // MIB, -(-self.size // MIB))

    def block(self, number: int) -> list[tuple[str, ...]]:
        """The texts of the lines of one block."""
        return list(islice(self._rows_from(number), BLOCK_ROWS))

    def after(self, rows: int) -> Iterator[str]:
        """The first texts of all lines but the first `rows` ones, read lazily."""
        block, within = divmod(rows, BLOCK_ROWS)
        if rows < self.rows:
            yield from (texts[0] for texts in islice(self._rows_from(block), within, None))

    def _rows_from(self, block: int) -> Iterator[tuple[str, ...]]:
        assert not self.is_packed
        entry, over = divmod(block, _BLOCKS)
        with self._stored.open("rb") as file:
            file.seek(self._offsets[entry])
            rows = (texts for line in file if self._counts(texts := self._file.texts(line)))
            yield from islice(rows, over * BLOCK_ROWS, None)

    def _counts(self, texts: tuple[str, ...]) -> bool:
        return self.blank or any(texts)


@dataclass(frozen=True)
class Text:
    """Lines of text on disk as training rows; long lines are truncated, as calibration rows are."""

    lines: TextLines  # in the source language
    task: Task
    tokenizer: Any
    max_tokens: int  # the model's limit
    labels: list[str] | None = None  # names, for classifiers
    translations: TextLines | None = None  # for translators, a line for each of `lines`
    copies: int = 0  # altered ones of each line, which follow all lines; not for translators
    _encoded: dict[int, bytes] = field(default_factory=dict, init=False, compare=False)

    @property
    def rows(self) -> int:
        """The number of lines that count, with their altered copies."""
        return self.lines.rows * (1 + self.copies)

    def unpacked(self, path: Path) -> Text:
        """The same text, read from the file that `TextLines.unpack` wrote."""
        return replace(self, lines=self.lines.unpacked(path))

    def translated(self, path: Path) -> Text:
        """The same text with translations from a file, which has a line for each of its lines."""
        return replace(self, translations=TextLines(path, blank=True))

    def read(self, blocks: Sequence[int]) -> list[Example]:
        """The rows of some blocks, encoded; those of earlier calls are kept while there is room.

        Their numbers are negative, unlike those of calibration rows.
        """
        missing = [block for block in blocks if block not in self._encoded]
        encoded = dict(zip(missing, self._encode(missing), strict=True)) if missing else {}
        free = KEPT_BYTES - sum(map(len, self._encoded.values()))
        for block, rows in encoded.items():
            packed = pickle.dumps(rows)  # two or three bytes per id; a tuple has 36
            if (free := free - len(packed)) < 0:
                break
            self._encoded[block] = packed
        rows_of = encoded | {b: pickle.loads(self._encoded[b]) for b in blocks if b not in encoded}
        return [row for block in blocks for row in rows_of[block]]

    def _texts(self, block: int) -> list[tuple[str, ...]]:
        """The texts of a block's rows: of lines, then of their copies."""
        first, lines = block * BLOCK_ROWS, self.lines.rows
        if first + BLOCK_ROWS <= lines or not self.copies:
            return self.lines.block(block)
        random, blocks = Random(block), dict[int, list[tuple[str, ...]]]()

        def line(number: int) -> tuple[str, ...]:
            block, place = divmod(number, BLOCK_ROWS)
            if block not in blocks:
                blocks[block] = self.lines.block(block)
            return blocks[block][place]

        # Words that replace others are those of some lines anywhere in the text.
        others = self.lines.block(random.randrange(-(-lines // BLOCK_ROWS)))
        words = [word for texts in others for text in texts for word in text.split()]
        return [
            tuple(altered(text, words, random) for text in line(row % lines))
            if row >= lines
            else line(row)
            for row in range(first, min(first + BLOCK_ROWS, self.rows))
        ]

    def _encode(self, blocks: Sequence[int]) -> list[list[Example]]:
        texts = [texts for block in blocks for texts in self._texts(block)]
        if self.translations is not None:
            targets = [row[0] for block in blocks for row in self.translations.block(block)]
        else:
            # Distillation uses the dense model's logits, not these.
            targets = [self.task.blank_answer(self.labels)] * len(texts)
        seconds = [row[1] for row in texts] if self.lines.pairs else None
        sources, path = [row[0] for row in texts], str(self.lines.path)
        rows = Rows(self.task.name, sources, seconds, targets, [path], "", self.labels)
        encoded = iter(self.task.encode(rows, self.tokenizer, self.max_tokens))
        return [
            [
                replace(next(encoded), row=-1 - (block * BLOCK_ROWS + line))
                for line in range(min(BLOCK_ROWS, self.rows - block * BLOCK_ROWS))
            ]
            for block in blocks
        ]


def training_text(
    path: Path,
    opened: ModelAndRows,
    reading: Reading,
    progress: Progress,
    copies: int = 0,
) -> Text:
    """Open the text to distill from, and check all of its lines.

    Where the calibration rows are pairs of texts, lines are pairs, too.

    Args:
        path: the file.
        opened: the dense model, and the calibration rows.
        reading: how the text is read.
        progress: receives messages.
        copies: altered ones of each line.

    Raises:
        InputError: the file cannot be read, or a line is malformed.
        UsageError: the task reads no such text, or no altered copies of it.
    """
    task, rows = opened.task, opened.rows
    if not task.one_example_per_row:
        raise UsageError(
            f"--distill-text {path}: a line would need the parts of its own that rows for "
            f"{task.name} have; leave it out, and give more --calibration rows",
            id="text-for-other-tasks",
        )
    if copies and task.learns_from_answers:
        raise UsageError(
            f"--distill-augment {copies} is not for {task.name}, which learns from the dense "
            "model's translations of whole sentences; leave it out",
            id="augment-for-translators",
        )
    pairs = task.joins_pairs and rows is not None and bool(rows.pairs)
    columns_of = partial(task.text_columns, reading=reading, pairs="all" if pairs else "none")
    report = partial(progress.update, "lines read", total=None)
    lines = TextLines(path, columns_of=columns_of, pairs=pairs, progress=report)
    if lines.said:
        progress.message(lines.said)
    checkpoint = opened.checkpoint
    return Text(
        lines=lines,
        task=task,
        tokenizer=checkpoint.tokenizer,
        max_tokens=checkpoint.max_source_tokens,
        labels=task.label_names(checkpoint.model.config),
        copies=copies,
    )
