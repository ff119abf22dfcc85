"""Which tokens of a padded batch are real, as graphs without padding read it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compressor.errors import UsageError

# Inputs of these graphs, all int32. A token's number is row x longest row + place.
TOKENS = "tokens"  # numbers of the real tokens, row by row
OFFSETS = "token_offsets"  # [rows, longest row]: those, and behind them the numbers of the padding
STARTS = "row_starts"  # [rows + 1]: where each row begins among the real tokens, and their number


def positions(mask: NDArray[np.int64]) -> dict[str, NDArray[np.int32]]:
    """The inputs for a padded batch with a mask [rows, longest row] of 1 and 0."""
    flat = mask.reshape(-1) != 0
    tokens = np.flatnonzero(flat).astype(np.int32)
    offsets = np.concatenate([tokens, np.flatnonzero(~flat).astype(np.int32)])
    starts = np.concatenate([[0], np.cumsum(mask.sum(axis=1))])
    return {TOKENS: tokens, OFFSETS: offsets.reshape(mask.shape), STARTS: starts.astype(np.int32)}


def require_right_padding(mask: NDArray[np.int64]) -> None:
    """Raise `UsageError` unless the tokens of each row come before its padding.

    Graphs for CUDA read the mask as the length of each row.
    """
    wrong = (mask[:, 1:] > mask[:, :-1]).any(axis=1)  # [rows]
    if wrong.any():
        row = int(wrong.argmax())
        raise UsageError(
            f"row {row} of the batch has padding before a token; pad rows on the right",
            id="padding-not-on-the-right",
        )
