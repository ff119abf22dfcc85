"""Beam search in NumPy, with the same tokens as transformers' `generate`.

Follows `GenerationMixin._beam_search` of transformers 5. Beams of sentence s are the rows
`s * num_beams` to `(s + 1) * num_beams - 1` of the decoder's batch, in no order of their scores: a
hypothesis that goes on stays in its row, so that few rows of the caches are copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.batching import log_softmax
from compressor.runtime.generation import Generation, Tokens
from compressor.runtime.search import (
    MIN_FINISHED_SHARE,
    Decoder,
    Scores,
    apply_rules,
    forced_tokens,
)

# transformers adds this to the score of a hypothesis that must not be chosen; in float32 the sum is
# this number itself.
EXCLUDED = np.float32(-1e9)


@dataclass
class _Beams:
    """State of beam search for the sentences still in the batch. Shapes: [sentences, beams, …]."""

    tokens: Tokens  # of the running hypotheses, [sentences, beams, length]
    scores: Scores  # sums of log-probabilities of the running hypotheses
    final_tokens: Tokens  # of the best finished hypotheses, padded, [sentences, beams, length]
    final_lengths: Tokens
    final_scores: Scores  # with the length penalty, best first
    finished: NDArray[np.bool_]  # whether there is a finished hypothesis of that rank
    improvable: NDArray[np.bool_]  # [sentences]: can a running one still beat the finished ones?

    @classmethod
    def start(cls, sentences: int, beams: int, token: int) -> _Beams:
        shape = (sentences, beams)
        scores = np.zeros(shape, dtype=np.float32)
        scores[:, 1:] = EXCLUDED  # all beams are equal at first: only the first is continued
        return cls(
            tokens=np.full((*shape, 1), token, dtype=np.int64),
            scores=scores,
            final_tokens=np.full((*shape, 1), token, dtype=np.int64),
            final_lengths=np.zeros(shape, dtype=np.int64),
            final_scores=np.full(shape, EXCLUDED, dtype=np.float32),
            finished=np.zeros(shape, dtype=bool),
            improvable=np.ones(sentences, dtype=bool),
        )

    def select(self, sentences: NDArray[np.bool_]) -> _Beams:
        """Only these sentences [sentences]."""
        return _Beams(**{name: value[sentences] for name, value in vars(self).items()})

    def best(self) -> list[list[int]]:
        """Tokens of each sentence's best finished hypothesis, without the start token."""
        rows = zip(self.final_tokens[:, 0], self.final_lengths[:, 0], strict=True)
        return [tokens[1 : 1 + length].tolist() for tokens, length in rows]

    def advance(
        self, scores: Scores, tokens: Tokens | None, settings: Generation, step: int
    ) -> tuple[Tokens, NDArray[np.bool_]]:
        """Continue each sentence's hypotheses by one token.

        Args:
            scores: log-probabilities of next tokens, [sentences * beams, tokens]; overwritten.
            tokens: which ones these are, the same shape; None: all, in order.
            settings: how to decode.
            step: number of the token, from 1 on.

        Returns:
            The beam that each running hypothesis continues [sentences, beams], and which sentences
            [sentences] have a result that cannot change any more.
        """
        sentences, beams = self.scores.shape
        totals = scores.reshape(sentences, beams, -1)  # [sentences, beams, next tokens]
        totals += self.scores[:, :, None]
        # All [sentences, candidates].
        values, columns = top_k(totals.reshape(sentences, -1), _enough(settings))
        parents, chosen = np.divmod(columns, totals.shape[2])
        if tokens is not None:
            chosen = _take(tokens.reshape(sentences, -1), columns)
        # By an end token or by the length limit.
        ended = (chosen[..., None] == np.array(settings.eos_token_id)).any(axis=-1)
        ended |= step == settings.limit
        # As in transformers, further candidates can only be continued.
        if ended[:, :beams].any():
            self._finish(values[:, :beams], parents, chosen, ended[:, :beams], settings, step)
        # Ended ones sort last and are not left out: every sentence goes on with as many beams.
        values += ended.astype(np.float32) * EXCLUDED
        order = _descending(values)[:, :beams]  # [sentences, beams], best first
        order = _take(order, hypotheses_in_place(_take(parents, order)))
        self.scores, parents = _take(values, order), _take(parents, order)
        self.tokens = _longer(self.tokens, parents, _take(chosen, order))
        # Without `early_stopping` a result cannot change where the best running hypothesis does not
        # beat the worst finished one at its present length; with "never", at no length that it can
        # reach. Sums are negative: only with a positive penalty do longer texts gain.
        longest = settings.early_stopping == "never" and settings.length_penalty > 0
        length = settings.limit if longest else step
        possible = self.scores.max(axis=1, keepdims=True) / length**settings.length_penalty
        worst = np.where(self.finished, self.final_scores.min(axis=1, keepdims=True), EXCLUDED)
        self.improvable &= (possible > worst).any(axis=1)
        closed = ~self.improvable | ended.all()
        if settings.early_stopping is True:
            closed |= self.finished.all(axis=1)
        return parents, closed

    def _finish(
        self,
        values: Scores,
        parents: Tokens,
        chosen: Tokens,
        ended: NDArray[np.bool_],
        settings: Generation,
        step: int,
    ) -> None:
        """Merge the candidates that end into the finished hypotheses; all [sentences, beams]."""
        beams = ended.shape[1]
        tokens = _longer(self.tokens, parents[:, :beams], chosen[:, :beams])
        old = np.zeros_like(tokens)  # as long as the candidates
        old[:, :, : self.final_tokens.shape[2]] = self.final_tokens
        # Neither here nor in transformers does the start token count as length.
        scores = values / step**settings.length_penalty
        # As transformers does: a sentence that is closed takes no more hypotheses.
        if settings.early_stopping is True:
            scores += self.finished.all(axis=1, keepdims=True) * EXCLUDED
        scores += ~self.improvable[:, None] * EXCLUDED
        scores += ~ended * EXCLUDED
        order = _descending(np.concatenate([self.final_scores, scores], axis=1))[:, :beams]

        def pick(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
            return _take(np.concatenate([old, new], axis=1), order)

        self.final_scores = pick(self.final_scores, scores)
        self.final_tokens = pick(old, tokens)
        self.final_lengths = pick(self.final_lengths, np.full(ended.shape, step))
        self.finished = pick(self.finished, ended)


def beam_search(decoder: Decoder, rows: int, settings: Generation) -> list[list[int]]:
    """Beam search: the best of the hypotheses that `settings.num_beams` beams per sentence find.

    Args:
        decoder: before its first step.
        rows: of its batch, one for each sentence.
        settings: how to decode, with indices of tokens.

    Returns:
        Tokens of each row without the start token, up to and including the end token.
    """
    beams = settings.num_beams
    state = _Beams.start(rows, beams, settings.decoder_start_token_id)
    outputs: list[list[int]] = [[] for _ in range(rows)]
    live = np.arange(rows)  # output row of each sentence still in the batch
    for step in range(1, settings.limit + 1):
        if step == 1:  # the beams of a sentence are still equal
            decoder.step(state.tokens[:, 0, 0])
            scores, tokens = _log_probabilities(decoder, settings, step)
            scores = np.repeat(scores, beams, axis=0)
            tokens = None if tokens is None else np.repeat(tokens, beams, axis=0)
            decoder.keep(np.repeat(live, beams))
        else:
            decoder.step(state.tokens[:, :, -1].ravel())
            scores, tokens = _log_probabilities(decoder, settings, step)
        if tokens is None:
            apply_rules(settings, scores, state.tokens.reshape(-1, step))
        parents, closed = state.advance(scores, tokens, settings, step)
        parents += beams * np.arange(len(live))[:, None]  # from beams to rows of the decoder
        if closed.mean() < MIN_FINISHED_SHARE:
            decoder.reorder(parents.ravel())
            continue
        for row, best in zip(live[closed], state.select(closed).best(), strict=True):
            outputs[row] = best
        if closed.all():
            break
        decoder.keep(parents[~closed].ravel())
        state, live = state.select(~closed), live[~closed]
    return outputs


def _log_probabilities(
    decoder: Decoder, settings: Generation, step: int
) -> tuple[Scores, Tokens | None]:
    """Log-probabilities of the next tokens of each row, which may be overwritten, and the tokens.

    Where the decoder selects the best tokens these are all; else all tokens, in order, with None.
    """
    changes_scores = (
        settings.no_repeat_ngram_size > 0
        or settings.renormalize_logits
        or forced_tokens(settings, step) is not None
    )
    ends = settings.eos_token_id if step < settings.min_length else []
    left_out = [*settings.banned, *settings.suppress_tokens, *ends]
    # The best of each row are the only ones that can be among the best of their sentence.
    top = None if changes_scores else decoder.top(_enough(settings) + len(left_out))
    if top is not None:
        scores, tokens = top
        for token in left_out:
            scores[tokens == token] = -np.inf
        return scores, tokens
    scores = decoder.scores()
    log_softmax(scores)  # before the rules, as in transformers
    return scores, None


def hypotheses_in_place(parents: Tokens) -> Tokens:
    """Distribute a sentence's hypotheses to its rows, so that as many as possible stay in theirs.

    Args:
        parents: the rows that they continue, [sentences, beams], best first.

    Returns:
        The hypothesis of each row, [sentences, beams]: the best of those that continue it; a row
        that none continues takes one of the others.
    """
    continues = parents[:, :, None] == np.arange(parents.shape[1])  # [sentences, hypotheses, rows]
    hypotheses: Tokens = continues.argmax(axis=1)  # the first that continues the row
    free = ~continues.any(axis=1)
    if free.any():
        left = np.ones_like(free)
        sentence, row = np.nonzero(~free)
        left[sentence, hypotheses[sentence, row]] = False
        # A sentence has as many of them as free rows, and both are in the order of the sentences.
        hypotheses[free] = np.nonzero(left)[1]
    return hypotheses


def _enough(settings: Generation) -> int:
    """How many continuations of a sentence leave `num_beams` that do not end."""
    # Even if every beam's best continuations are all end tokens, one more of each does not end.
    return max(2, 1 + len(settings.eos_token_id)) * settings.num_beams


def _take(array: NDArray[Any], order: Tokens) -> NDArray[Any]:
    """Entries `order` [sentences, chosen] of an array [sentences, entries, …]."""
    # A third of the time of `take_along_axis`, which makes its indices in Python.
    return array[np.arange(len(order))[:, None], order]


def _longer(tokens: Tokens, parents: Tokens, chosen: Tokens) -> Tokens:
    """Hypotheses `parents` [sentences, n] with one more token: [sentences, n, length + 1]."""
    return np.concatenate([_take(tokens, parents), chosen[:, :, None]], axis=2)


def _descending(scores: Scores) -> Tokens:
    """Order [rows, n] of each row's entries, largest first, ties by position."""
    return np.argsort(-scores, axis=1, kind="stable")


def top_k(scores: Scores, k: int) -> tuple[Scores, Tokens]:
    """The largest entries of each row, largest first.

    A row is arranged as a grid: the `k` columns with the largest maxima contain its `k` largest
    entries. For a vocabulary of 60,000 a partition of the whole row takes 25 times as long.

    Args:
        scores: [rows, n].
        k: how many.

    Returns:
        Values and indices, [rows, k] each.
    """
    rows, n = scores.shape
    height = max(1, min(64, n // (4 * k)))
    # With at least 4 k columns, at most a quarter of a long row is looked at twice.
    width = n // height
    values, indices = scores, None
    if height > 1:
        grid = scores[:, : height * width].reshape(rows, height, width)
        columns = np.argpartition(grid.max(axis=1), width - k, axis=1)[:, width - k :]
        # Indices of all entries of these columns: [rows, height, k] -> [rows, height x k]
        indices = (columns[:, None, :] + width * np.arange(height)[:, None]).reshape(rows, -1)
        # The entries behind the grid, where n is no multiple of its height.
        rest = np.broadcast_to(np.arange(height * width, n), (rows, n - height * width))
        indices = np.concatenate([indices, rest], axis=1)
        values = _take(scores, indices)  # [rows, height x k + rest]
    best = np.argpartition(values, values.shape[1] - k, axis=1)[:, values.shape[1] - k :]
    best = _take(best, _descending(_take(values, best)))
    return _take(values, best), best if indices is None else _take(indices, best)
