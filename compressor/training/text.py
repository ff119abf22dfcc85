"""Unlabelled text of any size to distill from: one sentence a line, read from disk in every epoch.

A classifier learns from the dense model's predictions for it. A translator learns from the dense
model's own translations (sequence-level knowledge distillation, Kim & Rush 2016), which are made
once and kept in a file (`compressor.recovery.translations`).

In memory is an offset for every `BLOCK_ROWS` lines (half a byte a line), and the rows of one window
(`compressor.training.data`).
"""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from compressor.errors import InputError
from compressor.storage.input_files import require_regular
from compressor.tasks import Example, Rows, Task

BLOCK_ROWS = 32


class TextLines:
    """The lines of a UTF-8 file that hold text, in blocks of `BLOCK_ROWS`.

    A line ends with LF or CR LF; white space around it, or a byte order mark before it, is
    left out.

    Args:
        pairs: each line is two texts with a tab between them.
        blank: lines without text count, too.

    Raises:
        InputError: the file cannot be read, is not UTF-8, holds no text, or a line is no pair.
    """

    def __init__(self, path: Path, *, pairs: bool = False, blank: bool = False) -> None:
        self.path, self.pairs, self.blank = path, pairs, blank
        self.rows = 0
        self._offsets = array("q")  # bytes before every `BLOCK_ROWS`-th line that counts
        try:
            require_regular(path)  # it is read once an epoch
            with path.open("rb") as file:
                self._index(file)
        except OSError as error:
            raise InputError(
                f"cannot read text {path}: {error.strerror}; give --distill-text another file",
                id="distill-text-unreadable",
            ) from error
        if not self.rows:
            raise InputError(
                f"{path} holds no text; give sentences in the source language, a line each",
                id="distill-text-empty",
            )

    def block(self, number: int) -> list[str]:
        """The lines of one block."""
        return list(self._lines_from(number, BLOCK_ROWS))

    def after(self, rows: int) -> Iterator[str]:
        """All lines but the first `rows` ones, read as they are asked for."""
        block, within = divmod(rows, BLOCK_ROWS)
        if rows < self.rows:
            yield from islice(self._lines_from(block, None), within, None)

    def _lines_from(self, block: int, count: int | None) -> Iterator[str]:
        with self.path.open("rb") as file:
            file.seek(self._offsets[block])
            texts = (self._text(line) for line in file)
            yield from islice((text for text in texts if text or self.blank), count)

    def _index(self, file: BinaryIO) -> None:
        offset = 0
        for number, line in enumerate(file, 1):
            try:
                text = self._text(line)
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{self.path}:{number}: byte 0x{error.object[error.start]:02x} is not UTF-8; "
                    "convert the text to UTF-8",
                    id="distill-text-not-utf8",
                ) from error
            if text or self.blank:
                if self.pairs:
                    self._require_pair(text, number)
                if self.rows % BLOCK_ROWS == 0:
                    self._offsets.append(offset)
                self.rows += 1
            offset += len(line)

    def _text(self, line: bytes) -> str:
        return line.removeprefix(codecs.BOM_UTF8).decode("utf-8").strip()

    def _require_pair(self, text: str, number: int) -> None:
        first, tab, second = text.partition("\t")
        if not (tab and first.strip() and second.strip()) or "\t" in second:
            raise InputError(
                f"{self.path}:{number}: the line is not two texts with one tab between them; the "
                "model classifies pairs",
                id="distill-text-not-pairs",
            )


@dataclass(frozen=True)
class Text:
    """Lines of text as rows to train on, which stay on disk.

    Lines longer than the model's limit are cut, as calibration rows are.

    Args:
        lines: in the source language.
        translations: of a translator, a line for each of `lines`.
        max_tokens: the model's limit.
        labels: of a classifier, its label names.
    """

    lines: TextLines
    task: Task
    tokenizer: Any
    max_tokens: int
    labels: list[str] | None = None
    translations: TextLines | None = None

    @property
    def rows(self) -> int:
        """How many lines hold text."""
        return self.lines.rows

    def translated(self, path: Path) -> Text:
        """The same text with the translations in a file, a line for each of its lines."""
        return replace(self, translations=TextLines(path, blank=True))

    def read(self, blocks: Sequence[int]) -> list[Example]:
        """The rows of some blocks; their numbers are below 0, where no calibration row's is."""
        texts = [text for block in blocks for text in self.lines.block(block)]
        if self.translations is not None:
            targets = [text for block in blocks for text in self.translations.block(block)]
        else:
            # Distillation looks at the dense model's logits alone.
            targets = [self.task.blank_answer(self.labels)] * len(texts)
        sources, seconds = texts, None
        if self.lines.pairs:
            halves = [text.split("\t") for text in texts]
            sources, seconds = [half[0] for half in halves], [half[1] for half in halves]
        path = str(self.lines.path)
        rows = Rows(self.task.name, sources, seconds, targets, [path], "", self.labels)
        examples = self.task.encode(rows, self.tokenizer, self.max_tokens)
        numbers = [
            block * BLOCK_ROWS + line
            for block in blocks
            for line in range(min(BLOCK_ROWS, self.rows - block * BLOCK_ROWS))
        ]
        return [replace(x, row=-1 - n) for x, n in zip(examples, numbers, strict=True)]
