"""The tokens that the decoder scores for a batch: candidates by a table, or all.

The table lists for each source token the output tokens that occurred with it most strongly. A batch
has those of all its source tokens, so its answers depend on what it consists of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.batching import Batch, Floats
from compressor.runtime.generation import Tokens
from compressor.runtime.graph_names import CANDIDATES
from compressor.runtime.opening import unusable
from compressor.runtime.session import bind, to_device

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue

FREQUENT_ROWS = 5  # of the table, its last ones: the most frequent tokens
MULTIPLE = 64  # of candidates, which products of whole registers need
MOST_SHARE = 0.25  # of all scored tokens; from there on, gathering takes longer than it saves
TYPES = {"tensor(float)": np.float32, "tensor(int8)": np.int8}  # of weights that are gathered


@dataclass(frozen=True)
class ScoredTokens:
    """The tokens that the steps of a batch score.

    Args:
        every: how many the decoder can score.
        tokens: those that are scored, ascending, [n]; None: all.
        inputs: of the step, for them.
    """

    every: int
    tokens: Tokens | None = None
    inputs: Mapping[str, OrtValue | NDArray[np.int64]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many they are."""
        return self.every if self.tokens is None else len(self.tokens)

    def spread(self, logits: Floats) -> Floats:
        """Logits [rows, n] as those of all tokens, [rows, every]: minus infinity for others."""
        if self.tokens is None:
            return logits
        spread = np.full((len(logits), self.every), -np.inf, np.float32)
        spread[:, self.tokens] = logits
        return spread

    def numbers(self, places: Tokens) -> Tokens:
        """The tokens at some places among them, any shape."""
        return places if self.tokens is None else self.tokens[places]


def candidates(
    table: NDArray[np.int32], sources: Tokens, always: Sequence[int], every: int
) -> Tokens | None:
    """The candidates of a batch.

    Args:
        table: [source tokens + `FREQUENT_ROWS`, k], of numbers of scored tokens.
        sources: ids of its source tokens, [tokens].
        always: tokens that are candidates of every batch.
        every: how many tokens the decoder can score.

    Returns:
        Numbers of tokens, ascending, as many as a multiple of `MULTIPLE`; None where they are so
        many that scoring all tokens is as fast.
    """
    chosen = np.zeros(every, bool)
    chosen[table[-FREQUENT_ROWS:]] = True
    chosen[table[sources]] = True
    chosen[list(always)] = True
    count = np.count_nonzero(chosen)
    more = -count % MULTIPLE
    if count + more > MOST_SHARE * every:
        return None
    # Filled up with real tokens, which need no mask: the first ones that are none yet.
    chosen[np.flatnonzero(~chosen[: count + more])[:more]] = True
    return np.flatnonzero(chosen)


def read_table(path: Path, every: int) -> NDArray[np.int32]:
    """Read a table of candidates.

    Args:
        path: of a NumPy file.
        every: how many tokens the decoder can score.

    Raises:
        InputError: the file is missing or damaged.
    """
    try:
        table: NDArray[np.int32] = np.load(path, allow_pickle=False)
        if table.ndim != 2 or table.dtype != np.int32 or len(table) <= FREQUENT_ROWS:
            raise ValueError(f"an array of {table.dtype} {list(table.shape)}")
        if not table.size or table.min() < 0 or table.max() >= every:
            raise ValueError(f"not all numbers are from 0 to {every - 1}")
    except (OSError, ValueError, EOFError) as error:
        raise unusable(path, error) from error
    return table


class Candidates:
    """The candidates of batches, with the weights of their output layer.

    Args:
        table: as in `candidates`.
        every: how many tokens the decoder can score.
        gather: the graph `GATHER_CANDIDATES`.
    """

    def __init__(self, table: NDArray[np.int32], every: int, gather: InferenceSession) -> None:
        self.table, self.gather = table, gather
        no_tokens = np.empty(0, np.int64)
        shapes = {
            x.name: ([0 if size == CANDIDATES else size for size in x.shape], TYPES[x.type])
            for x in gather.get_outputs()
        }
        self.names = list(shapes)
        empty = {name: to_device(np.empty(*shape), "cpu") for name, shape in shapes.items()}
        self.every = ScoredTokens(every, inputs={CANDIDATES: no_tokens, **empty})

    def of(self, batch: Batch, always: Sequence[int]) -> ScoredTokens:
        """Gather the weights of a batch's candidates.

        Args:
            batch: `input_ids` and `attention_mask`, [rows, source].
            always: tokens that are candidates of every batch.
        """
        sources = batch["input_ids"][batch["attention_mask"] > 0]
        tokens = candidates(self.table, sources, always, self.every.every)
        if tokens is None:
            return self.every
        binding = bind(self.gather, {CANDIDATES: tokens}, dict.fromkeys(self.names, "cpu"))
        self.gather.run_with_iobinding(binding)
        gathered = dict(zip(self.names, binding.get_outputs(), strict=True))
        return ScoredTokens(self.every.every, tokens, {CANDIDATES: tokens, **gathered})
