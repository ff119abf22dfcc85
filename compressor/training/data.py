"""Training rows, from memory and from text on disk, and the batches of each epoch.

A translator learns from the dense model's own translations of a text (sequence-level knowledge
distillation, Kim & Rush 2016), which are made once and kept in a file, line by line.
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

import torch
from torch import nn

from compressor import parallel
from compressor.errors import InputError
from compressor.storage.input_files import MIB
from compressor.storage.text_files import REPORTED_LINES
from compressor.tasks import Batch, Example, Objective, Rows, Task
from compressor.tasks.texts import DISTILL, ColumnsOf, open_texts

HELD_OUT = 8  # rows at least, else a tenth
# Rows that are read together, shuffled, and grouped by length, for steps of up to 64 rows; windows
# grow with larger steps, so that the share of incomplete steps at their end stays the same.
WINDOW_ROWS = 4096


@dataclass(frozen=True)
class TrainingRows:
    examples: Sequence[Example]
    task: Objective
    model: nn.Module  # determines the padding, see `Task.batches`; it is not run
    device: str = "cpu"
    stored: Text | None = None  # more rows, read from disk in every epoch


def require_enough(rows: int, least: int = 2 * HELD_OUT) -> None:
    """Raise `InputError` if the rows are too few to hold some out and train on the others."""
    if rows < least:
        raise InputError(
            f"{rows} calibration rows are too few to train on; give at least {least}",
            id="too-few-rows-to-train",
        )


def hold_out(examples: Sequence[Example], seed: int) -> tuple[list[Example], list[Example]]:
    """Rows to train on and rows to validate on, drawn by the seed; InputError if too few."""
    count = max(HELD_OUT, round(0.1 * len(examples)))
    require_enough(len(examples), 2 * count)
    order = torch.randperm(len(examples), generator=_generator(seed, 0)).tolist()
    held = set(order[:count])
    rows = range(len(examples))
    return [examples[i] for i in rows if i not in held], [examples[i] for i in sorted(held)]


def batches_of_rank(
    task: Objective, rows: Sequence[Example], model: nn.Module, device: str = "cpu"
) -> list[Batch]:
    """This rank's batches; with sharded models as many as others have, maybe with spare ones."""
    batches = task.batches(parallel.shard(rows), model, device=device)
    if not parallel.shards():
        return batches
    missing = max(parallel.gather(len(batches))) - len(batches)
    spare = task.batches(rows[:1], model)[0].lines(slice(1), spare=True)
    return [*batches, *[spare] * missing]


class Batches:
    """The batches of every epoch, in windows: blocks drawn from the whole file, and rows in memory.

    The latter have batches of their own, since cached teacher outputs save a forward pass only for
    a batch whose rows are all cached.
    """

    def __init__(self, data: TrainingRows, batch_size: int, seed: int) -> None:
        self.data, self.batch_size, self.seed = data, batch_size, seed
        stored = 0 if data.stored is None else data.stored.rows
        self._blocks = -(-stored // BLOCK_ROWS)
        self._per_window = max(1, WINDOW_ROWS * max(1, batch_size // 64) // BLOCK_ROWS)
        windows = max(1, -(-self._blocks // self._per_window))
        # Each window's share of the rows in memory begins here, and ends where the next begins.
        self._starts = [window * len(data.examples) // windows for window in range(windows + 1)]
        whole = self._per_window * BLOCK_ROWS
        self._counts = [  # batches of each window
            -(-(self._starts[window + 1] - self._starts[window]) // batch_size)
            + -(-min(whole, stored - window * whole) // batch_size)
            for window in range(windows)
        ]

    def __len__(self) -> int:
        return sum(self._counts)

    def of_epoch(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Batches in random order, of other rows in every epoch; the first `skip` are not read."""
        data, generator = self.data, _generator(self.seed, epoch + 1)
        order = torch.randperm(len(data.examples), generator=generator).tolist()
        blocks, seeds = torch.arange(self._blocks), []  # 8 bytes for 32 lines
        if self._blocks:
            # The last block, which may be shorter, stays last: windows have the same sizes in every
            # epoch. They have a seed each, so that they can be skipped.
            torch.randperm(self._blocks - 1, generator=generator, out=blocks[:-1])
            seeds = torch.randint(2**62, (len(self._counts),), generator=generator).tolist()
        for window, count in enumerate(self._counts):
            if skip >= count:
                skip -= count
                continue
            members = order[self._starts[window] : self._starts[window + 1]]
            batches = self._grouped([data.examples[i] for i in members])
            if data.stored is not None:
                generator = torch.Generator().manual_seed(seeds[window])
                first = window * self._per_window
                rows = data.stored.read(blocks[first : first + self._per_window].tolist())
                mixed = torch.randperm(len(rows), generator=generator).tolist()
                batches += self._grouped([rows[i] for i in mixed])
                del rows
            shuffled = torch.randperm(len(batches), generator=generator).tolist()
            yield from (batches[i] for i in shuffled[skip:])
            del batches  # before the next window is read
            skip = 0

    def _grouped(self, rows: list[Example]) -> list[Batch]:
        return self.data.task.batches(
            rows, self.data.model, batch_tokens=None, batch_size=self.batch_size
        )


def _generator(seed: int, number: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed << 20) + number)


BLOCK_ROWS = 32
KEPT_BYTES = 2**26  # of token ids, since encoding takes as long as a step on a GPU
_BLOCKS = 8  # between two stored offsets; reading a block skips three and a half others on average


class TextLines:
    """The lines of a file of texts, in blocks of `BLOCK_ROWS`; lines without text are skipped.

    For `columns_of` and `pairs` see `open_texts`. With `blank` lines without text count, too.
    `rows` is the number of lines, `size` that of bytes, unpacked.
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
        self.path, self.pairs, self.blank = path, pairs, blank
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

    `output` is created when all lines are translated; until then chunks are in a `.partial` file.
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
