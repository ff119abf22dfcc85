"""Unlabeled text of any size for distillation: one sentence a line, read from disk in every epoch.

A translator learns from the dense model's own translations (sequence-level knowledge distillation,
Kim & Rush 2016), which are made once and kept in a file (`compressor.training.text`).
"""

from __future__ import annotations

import copy
import os
import pickle
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from compressor import parallel
from compressor.storage.input_files import MIB
from compressor.storage.text_files import REPORTED_LINES
from compressor.tasks import Example, Rows, Task
from compressor.tasks.texts import DISTILL, TextColumn, open_texts

BLOCK_ROWS = 32
KEPT_BYTES = 2**26  # of token ids, since encoding takes as long as a step on a GPU
_BLOCKS = 8  # between two stored offsets; reading a block skips three and a half others on average


class TextLines:
    """The lines of a file of texts, in blocks of `BLOCK_ROWS`; lines without text are skipped.

    For `columns` and `pairs` see `open_texts`. With `blank` lines without text count, too.

    Attributes:
        rows: number of lines.
        size: bytes, unpacked.
        is_packed: whether the file must be decompressed before lines can be read.
    """

    def __init__(
        self,
        path: Path,
        *,
        columns: Sequence[TextColumn] = (),
        pairs: bool = False,
        blank: bool = False,
        progress: Callable[[int], None] = lambda lines: None,
    ) -> None:
        self.path, self.pairs, self.blank = path, pairs, blank
        self.rows = self.size = 0
        self._file = open_texts(path, DISTILL, columns, pairs=pairs)
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
        lines = copy.copy(self)
        lines.is_packed, lines._stored = False, path
        return lines

    def unpack(self, path: Path, progress: Callable[[int, int], None]) -> None:
        """Write the decompressed lines to a file; `progress` gets (MiB written, total MiB)."""
        done = 0
        with path.open("wb") as file:
            for piece in self._file.pieces():
                file.write(piece)
                done += len(piece)
                progress(done // MIB, -(-self.size // MIB))

    def block(self, number: int) -> list[tuple[str, ...]]:
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
    _encoded: dict[int, bytes] = field(default_factory=dict, init=False, compare=False)

    @property
    def rows(self) -> int:
        return self.lines.rows

    def unpacked(self, path: Path) -> Text:
        return replace(self, lines=self.lines.unpacked(path))

    def translated(self, path: Path) -> Text:
        return replace(self, translations=TextLines(path, blank=True))

    def read(self, blocks: Sequence[int]) -> list[Example]:
        """The rows of some blocks; their numbers are negative, unlike those of calibration rows."""
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

    def _encode(self, blocks: Sequence[int]) -> list[list[Example]]:
        texts = [texts for block in blocks for texts in self.lines.block(block)]
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
        output: created when all lines are translated; until then chunks are in a `.partial` file.
        chunk_rows: lines that are translated together; `CHUNK_ROWS` by default.
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
    lines = [text.replace("\r", " ").replace("\n", " ") for text in texts]
    with partial.open("ab") as file:
        file.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
        file.flush()
        os.fsync(file.fileno())


def _drop_unfinished(partial: Path, size: int) -> int:
    """Truncate the file after its last complete chunk, or create it; returns its lines."""
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
