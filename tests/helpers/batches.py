"""Batches and rows of random tokens for tiny models."""

from __future__ import annotations

import numpy as np
import torch

from compressor.model.architectures import ARCHITECTURES
from compressor.tasks import Batch, Example
from tests.helpers.tiny import ragged_batch


def labelled_batch(model, rows: int = 3, seed: int = 0) -> Batch:
    batch = ragged_batch(model, rows, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    if model.config.is_encoder_decoder:
        labels = torch.randint(6, 60, (rows, 6), generator=generator)
        for row in range(rows):
            labels[row, 6 - row % 3 :] = -100  # ragged targets
        batch["labels"] = labels
    else:
        batch["labels"] = torch.randint(0, 5, (rows,), generator=generator)
    return Batch(batch, range(rows))


def one_row(batch: Batch, row: int) -> Batch:
    """A single row without its padding."""
    length = int(batch["attention_mask"][row].sum())
    single = {}
    for name, value in batch.items():
        if name in ("input_ids", "attention_mask"):
            single[name] = value[row : row + 1, :length]
        elif name in ("labels", "decoder_input_ids") and value.dim() == 2:
            real = int((batch["labels"][row] != -100).sum())
            single[name] = value[row : row + 1, :real]
        else:
            single[name] = value[row : row + 1]
    return Batch(single, [row])


def examples(name: str, count: int = 48, seed: int = 0) -> list[Example]:
    """Random rows of unequal lengths; token ids that are no special tokens."""
    rng = np.random.default_rng(seed)

    def tokens() -> tuple[int, ...]:
        return (*rng.integers(5, 60, size=rng.integers(2, 12)).tolist(), 2)

    translates = ARCHITECTURES[name].decoder is not None
    return [
        Example(row, tokens(), tokens() if translates else (int(rng.integers(5)),))
        for row in range(count)
    ]
