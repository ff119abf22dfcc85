"""Rows to train on, rows to validate on, and the batches of each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from compressor import parallel
from compressor.errors import InputError
from compressor.tasks import Batch, Example, Objective
from compressor.training.text import BLOCK_ROWS, Text

HELD_OUT = 8  # rows at least, else a tenth
HELD_OUT_BESIDE_TEXT = 500  # rows at most, else half of them
# Rows that are read together, shuffled, and grouped by length, for steps of up to 64 rows; windows
# grow with larger steps, so that the share of incomplete steps at their end stays the same.
WINDOW_ROWS = 4096


@dataclass(frozen=True)
class TrainingRows:
    """The rows to train on, and how they become batches."""

    examples: Sequence[Example]
    task: Objective
    model: nn.Module  # determines the padding, see `Task.batches`; it is not run
    device: str = "cpu"
    stored: Text | None = None  # more rows, read from disk in every epoch


def require_enough(rows: int, least: int = 2 * HELD_OUT) -> None:
    """Raise `InputError` if there are too few rows to hold some out and train on the others.

    Args:
        rows: their number.
        least: the number that is needed.
    """
    if rows < least:
        raise InputError(
            f"{rows} calibration rows are too few to train on; give at least {least}",
            id="too-few-rows-to-train",
        )


def hold_out(
    examples: Sequence[Example], seed: int, text: Text | None = None
) -> tuple[list[Example], list[Example]]:
    """Split rows into those to train on and those to validate on, drawn by the seed.

    A tenth is held out, at least `HELD_OUT`; half, at most `HELD_OUT_BESIDE_TEXT`, where a text has
    more lines to train on than there are rows.

    Args:
        examples: the rows.
        seed: of the draw. What is held out without a text is held out with it, too.
        text: more rows to train on.

    Returns:
        Both parts, in the order of the rows.

    Raises:
        InputError: too few rows for both.
    """
    count = max(HELD_OUT, round(0.1 * len(examples)))
    if text is not None and text.rows > len(examples):
        count = max(count, min(HELD_OUT_BESIDE_TEXT, len(examples) // 2))
    require_enough(len(examples), 2 * count)
    order = torch.randperm(len(examples), generator=_generator(seed, 0)).tolist()
    held = set(order[:count])
    rows = range(len(examples))
    return [examples[i] for i in rows if i not in held], [examples[i] for i in sorted(held)]


def batches_of_rank(
    task: Objective, rows: Sequence[Example], model: nn.Module, device: str = "cpu"
) -> list[Batch]:
    """The batches of this rank's share of some rows.

    With sharded models, which all ranks run together, it has as many as any other rank; the last
    ones may be spare, and count for nothing.

    Args:
        task: makes the batches.
        rows: of all ranks.
        model: determines the padding; it is not run.
        device: where the model is.
    """
    batches = task.batches(parallel.shard(rows), model, device=device)
    if not parallel.shards():
        return batches
    missing = max(parallel.gather(len(batches))) - len(batches)
    spare = task.batches(rows[:1], model)[0].lines(slice(1), spare=True)
    return [*batches, *[spare] * missing]


class Batches:
    """The batches of every epoch, in windows; each epoch has as many as any other.

    A window has blocks drawn from the whole stored file, and its share of the rows in memory. The
    latter have batches of their own, since cached teacher outputs save a forward pass only for a
    batch whose rows are all cached.

    Args:
        data: the rows in memory and on disk.
        batch_size: rows of a batch.
        seed: of all random orders.
    """

    def __init__(self, data: TrainingRows, batch_size: int, seed: int) -> None:
        self.data = data
        self.batch_size = batch_size
        self.seed = seed
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
        """Yield batches of rows of similar length in random order; each epoch mixes the rows anew.

        Args:
            epoch: from 0.
            skip: batches that were trained on already; they are not read.

        Yields:
            Batches of all ranks' rows, on the CPU.
        """
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
        """Batches of `batch_size` rows of similar length."""
        return self.data.task.batches(
            rows, self.data.model, batch_tokens=None, batch_size=self.batch_size
        )


def _generator(seed: int, number: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed << 20) + number)
