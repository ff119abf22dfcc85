"""Rows and batches: limits, grouping rows of similar length, padding; logits to probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from compressor.errors import UsageError

Batch = Mapping[str, NDArray[np.int64]]  # name -> [rows, longest row]
Floats = NDArray[np.float32]
_BLOCK = 1 << 18  # elements of a block of rows whose exponentials fit into the CPU's cache
CHUNK_ROWS = 2048  # that a stream reads ahead, to sort them by length

Item = TypeVar("Item")


def collate(
    rows: Sequence[Sequence[int]], pad_id: int, names: Sequence[str]
) -> dict[str, NDArray[np.int64]]:
    """Pad rows of token ids on the right.

    Args:
        rows: token ids; for `token_type_ids` other than 0, `Encoded` rows.
        pad_id: fills `input_ids`; the other arrays are filled with 0.
        names: which of `input_ids`, `attention_mask` and `token_type_ids` to make.

    Returns:
        name -> int64 array [rows, longest row].
    """
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    real = np.arange(lengths.max(initial=0)) < lengths[:, None]  # [rows, longest row]
    arrays = {}
    for name in names:
        if name == "attention_mask":
            arrays[name] = real.astype(np.int64)
            continue
        padding, values = pad_id, rows
        if name == "token_type_ids":
            padding = 0
            values = [getattr(row, "type_ids", None) or [0] * len(row) for row in rows]
        arrays[name] = np.full(real.shape, padding, dtype=np.int64)
        # Row by row, padding skipped.
        arrays[name][real] = [value for row in values for value in row]
    return arrays


def by_length(
    rows: Sequence[Sequence[int]],
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    default_tokens: int = 1024,
) -> list[list[int]]:
    """Group rows of similar length into batches.

    The longest come first, so that too little memory shows in the first batch; rows of one length
    stay in their order.

    Args:
        rows: token ids.
        batch_size: rows of a batch at most.
        batch_tokens: rows x longest row of a batch at most; a longer row has a batch of its own.
        default_tokens: in place of `batch_tokens` where neither is given. If both are, both hold.

    Returns:
        The numbers of each batch's rows.

    Raises:
        UsageError: a number below 1.
    """
    check_limits(batch_size=batch_size, batch_tokens=batch_tokens)
    if batch_size is None and batch_tokens is None:
        batch_tokens = default_tokens
    batches: list[list[int]] = []
    room = 0  # rows that still fit into the last batch, whose first row is its longest
    # Python's sort is stable, so rows of one length stay in their order.
    for row in sorted(range(len(rows)), key=lambda row: -len(rows[row])):
        if room == 0:
            batches.append([])
            room = len(rows) if batch_size is None else batch_size
            if batch_tokens is not None:
                room = min(room, max(1, batch_tokens // max(1, len(rows[row]))))
        batches[-1].append(row)
        room -= 1
    return batches


def require_texts(texts: object, pairs: object = None) -> None:
    """Raise `UsageError` for one text, whose characters would be texts, and for unequal columns."""
    for column in (texts, pairs):
        if isinstance(column, str):
            raise UsageError(
                f"{column[:40]!r} is one text; give a list of texts: [{column[:40]!r}]",
                id="text-not-in-a-list",
            )
    if isinstance(texts, Sized) and isinstance(pairs, Sized) and len(texts) != len(pairs):
        raise UsageError(
            f"there are {len(texts)} first texts but {len(pairs)} second ones; give as many of "
            "both",
            id="pairs-do-not-match-texts",
        )


def check_limits(**limits: int | None) -> None:
    """Raise `UsageError` unless each limit is None or at least 1."""
    for name, value in limits.items():
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}, but must be at least 1", id="number-below-one")


def require_right_padding(mask: NDArray[np.int64]) -> None:
    """Raise `UsageError` for padding before a token: graphs for CUDA read masks as lengths."""
    if (mask[:, 1:] > mask[:, :-1]).any():
        raise UsageError(
            "the batch has padding before a token; pad rows on the right",
            id="padding-not-on-the-right",
        )


def in_chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` items, the last one shorter; reads a chunk only when it is asked for."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def log_softmax(scores: Floats) -> None:
    """Turn scores [rows, vocabulary] into log-probabilities, in place."""
    rows = max(1, _BLOCK // scores.shape[1])
    for start in range(0, len(scores), rows):  # views: a copy of all scores would be large
        block = scores[start : start + rows]
        block -= block.max(axis=1, keepdims=True)
        block -= np.log(np.exp(block).sum(axis=1, keepdims=True))


def sigmoid(logits: Floats) -> Floats:
    """Probabilities of logits that stand for one class each, any shape."""
    probabilities: Floats = 0.5 + 0.5 * np.tanh(0.5 * logits)  # overflows nowhere
    return probabilities
