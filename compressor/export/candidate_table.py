"""Tables of candidates: the output tokens to score by source tokens, from a model's translations.

Candidates of a source token are those with the largest Dice coefficients of occurring in the same
pair of a source and its translation (Dice 1945): twice the pairs with both, over the sum of the
pairs with each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compressor.errors import UsageError
from compressor.model.checkpoint import Checkpoint
from compressor.model.token_tables import count_tokens
from compressor.recovery.planning import RecoveryPlan
from compressor.runtime.batching import in_chunks
from compressor.runtime.candidates import FREQUENT_ROWS, MOST_SHARE, candidates
from compressor.steps.context import Context
from compressor.steps.results import CandidateFacts
from compressor.steps.values import LearnedCandidates
from compressor.tasks.opened import ModelAndRows
from compressor.training.text import BLOCK_ROWS, Text

TABLE = "candidates.npy"
HELD_OUT_ROWS = 1000  # at most, and a twentieth of the text, to see what a table misses
BATCH_ROWS = 16  # whose candidates are counted together
_BLOCKS = 64  # of the text, that are encoded together
_AT_ONCE = 1 << 22  # pairs of tokens that are sorted together, at least

Ids = NDArray[np.int64]
Pair = tuple[Ids, Ids]  # tokens of a source, and numbers of scored tokens of its translation


def require_few(per_token: int, checkpoint: Checkpoint) -> None:
    """Check that batches can have candidates.

    Args:
        per_token: candidates of a source token.
        checkpoint: of an encoder-decoder.

    Raises:
        UsageError: the most frequent tokens alone are so many that all tokens would be scored.
    """
    frequent, vocabulary = FREQUENT_ROWS * per_token, _vocabulary(checkpoint.model)
    if frequent >= MOST_SHARE * vocabulary:
        raise UsageError(
            f"--candidates {per_token}: with the {frequent:,} most frequent tokens every batch "
            f"would have more than a quarter of the {vocabulary:,} of {checkpoint.name}, and score "
            "all; give fewer, or leave it out",
            id="candidates-too-many",
        )


def _vocabulary(model: Any) -> int:
    """How many tokens a decoder's output layer has."""
    return int(model.get_output_embeddings().out_features)


def learn_candidates(
    per_token: int,
    recovery: RecoveryPlan,
    tokens: list[int] | None,
    *,
    directory: Path,
    opened: ModelAndRows,
    context: Context,
) -> LearnedCandidates:
    """Count a table of candidates in a text and the dense model's translations of it.

    Args:
        per_token: candidates of a source token.
        recovery: with the text, translated.
        tokens: that decoders score; None for all.
        directory: for the table.
        opened: the model whose tokens are counted.
        context: receives messages.
    """
    text = recovery.text
    assert text is not None
    model = opened.checkpoint.model
    sources, _ = count_tokens(model)
    vocabulary = _vocabulary(model)
    scored = np.arange(vocabulary) if tokens is None else np.array(tokens)
    places = np.full(vocabulary, -1)
    places[scored] = np.arange(len(scored))
    counts = PairCounts(sources, len(scored))
    held_out: list[Pair] = []
    every = max(20, -(-text.rows // HELD_OUT_ROWS))
    for number, pair in enumerate(_pairs(text, places, context)):
        if number % every == every - 1:
            held_out.append(pair)
        else:
            counts.add(*pair)
    table = counts.table(per_token, places)
    path = directory / TABLE
    np.save(path, table)
    facts = CandidateFacts(
        per_token=per_token,
        frequent=FREQUENT_ROWS * per_token,
        pairs=counts.pairs,
        rows=len(held_out),
        **(measure(table, held_out, len(scored)) if held_out else {}),
    )
    return LearnedCandidates(path, facts)


def _pairs(text: Text, places: Ids, context: Context) -> Iterator[Pair]:
    """The tokens of each line of a text and its translation; of this those that have a place."""
    for blocks in in_chunks(range(-(-text.rows // BLOCK_ROWS)), _BLOCKS):
        context.progress.update("lines counted", blocks[0] * BLOCK_ROWS, text.rows)
        for example in text.read(blocks):
            target = places[np.array(example.target, np.int64)]
            yield np.array(example.source, np.int64), target[target >= 0]


class PairCounts:
    """In how many pairs tokens occur, alone and with one another.

    Args:
        sources: how many tokens sources have.
        targets: how many translations have.
    """

    def __init__(self, sources: int, targets: int) -> None:
        self.shape = sources, targets
        self.of_source, self.of_target = (np.zeros(size, np.int64) for size in self.shape)
        self.pairs = 0
        # Of both, by number of the source token x targets + number of the target token.
        self._keys, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)
        self._waiting: list[Ids] = []
        self._size = 0  # of what waits

    def add(self, source: Ids, target: Ids) -> None:
        """Count one pair: the tokens of both, each of which may occur several times."""
        source, target = np.unique(source), np.unique(target)
        self.of_source[source] += 1
        self.of_target[target] += 1
        self.pairs += 1
        self._waiting.append((source[:, None] * self.shape[1] + target).ravel())
        self._size += len(source) * len(target)
        # As many at a time as there are already: each is sorted a few times only.
        if self._size > max(_AT_ONCE, len(self._keys)):
            self._merge()

    def _merge(self) -> None:
        keys = np.concatenate([self._keys, *self._waiting])
        counts = np.concatenate([self._counts, np.ones(self._size, np.int64)])
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        self._keys = keys[starts]
        self._counts = np.add.reduceat(counts[order], starts) if len(starts) else counts
        self._waiting, self._size = [], 0

    def table(self, k: int, places: Ids) -> NDArray[np.int32]:
        """The `k` target tokens with the largest Dice coefficients for each source token.

        Ties go to the lower number. Rows with fewer are filled up with the token itself, since what
        occurs in few sources may be a part of a name, which is copied.

        Args:
            k: how many.
            places: number of the target token with the same id, by source token; -1: there is none,
                and the most frequent token stands in for it.

        Returns:
            [sources + `FREQUENT_ROWS`, k]; the last rows have the most frequent target tokens.
        """
        self._merge()
        sources, targets = self.shape
        frequent = np.argsort(-self.of_target, kind="stable")[: FREQUENT_ROWS * k]
        table = np.full((sources + FREQUENT_ROWS, k), frequent[0], np.int32)
        copied = np.flatnonzero(places[:sources] >= 0)
        table[copied] = places[copied, None]
        table[-FREQUENT_ROWS:].flat[: len(frequent)] = frequent
        source, target = np.divmod(self._keys, targets)
        dice = 2 * self._counts / (self.of_source[source] + self.of_target[target])
        order = np.lexsort((target, -dice, source))
        source, target = source[order], target[order]
        rank = np.arange(len(source)) - np.searchsorted(source, source)  # in the token's row
        best = rank < k
        table[source[best], rank[best]] = target[best]
        return table


def measure(table: NDArray[np.int32], pairs: Sequence[Pair], targets: int) -> dict[str, float]:
    """What a table misses of pairs, and how many candidates rows and batches have.

    Args:
        table: from `PairCounts.table`.
        pairs: that were not counted.
        targets: how many tokens the decoder can score.

    Returns:
        Fields of `CandidateFacts`.
    """

    def found(rows: Sequence[Pair]) -> tuple[int, float]:
        """How many of their translations' tokens are no candidates of theirs, and these."""
        chosen = candidates(table, np.concatenate([source for source, _ in rows]), (), targets)
        if chosen is None:
            return 0, targets
        missed = sum(int((~np.isin(target, chosen)).sum()) for _, target in rows)
        return missed, len(chosen)

    def shares(groups: Sequence[Sequence[Pair]]) -> tuple[float, float]:
        missed, counts = zip(*map(found, groups), strict=True)
        return sum(missed) / max(1, tokens), float(np.mean(counts))

    tokens = sum(len(target) for _, target in pairs)
    alone = shares([[pair] for pair in pairs])
    length: Callable[[Pair], int] = lambda pair: len(pair[0])  # noqa: E731
    together = shares(list(in_chunks(sorted(pairs, key=length), BATCH_ROWS)))
    return {
        "missed_by_row": alone[0],
        "missed_by_batch": together[0],
        "per_row": alone[1],
        "per_batch": together[1],
    }
