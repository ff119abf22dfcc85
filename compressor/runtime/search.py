"""Greedy and beam search in NumPy, with the same tokens as transformers' `generate`.

Follows `GenerationMixin._sample` (without sampling) and `_beam_search` of transformers 5. Rows are
rows of the decoder's batch; in beam search, beam b of sentence s is row `s * num_beams + b`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from compressor.runtime.batching import Floats, log_softmax
from compressor.runtime.generation import Generation, Tokens

Scores = Floats

# transformers adds this to the score of a hypothesis that must not be chosen; in float32 the sum is
# this number itself.
EXCLUDED = np.float32(-1e9)
# Finished sentences leave the batch when they are at least this share of it. Greedy search took 6.1
# CPU seconds when none ever left, and 3.5 to 3.8 with shares from a half to a sixteenth.
MIN_FINISHED_SHARE = 0.125


class Decoder(Protocol):
    """A model that has read the sources, with the tokens decoded so far for each row."""

    def step(self, tokens: Tokens) -> None:
        """Append one token to each row.

        Args:
            tokens: [rows].
        """

    def best(self) -> Tokens:
        """The next token with the largest logit in each row, [rows]."""

    def scores(self) -> Scores:
        """Logits of the next token, [rows, vocabulary], which may be overwritten."""

    def reorder(self, rows: Tokens) -> None:
        """Let row i continue what row `rows[i]`, of the same source, has decoded.

        Args:
            rows: [rows].
        """

    def keep(self, rows: Tokens) -> None:
        """Reduce the batch to these rows, with their sources.

        Args:
            rows: numbers of rows, [rows to keep]; they may repeat.
        """


@runtime_checkable
class RankedDecoder(Decoder, Protocol):
    """A decoder that selects the best tokens of each row where its logits are."""

    def top(self, count: int) -> tuple[Scores, Tokens]:
        """The best next tokens of each row.

        Args:
            count: how many.

        Returns:
            Their log-probabilities [rows, count], best first, and the tokens [rows, count].
        """


def apply_rules(settings: Generation, scores: Scores, tokens: Tokens) -> None:
    """Change the scores of the next token, in place, by the rules of the settings.

    In the order of `GenerationMixin._get_logits_processor` of transformers: a token that is banned
    may be forced, and one that is suppressed may not.

    Args:
        settings: how to decode, with indices of tokens.
        scores: [rows, vocabulary].
        tokens: so far, [rows, step], with the start token as the first; so steps count from 1.
    """
    step, size = tokens.shape[1], settings.no_repeat_ngram_size
    if 0 < size <= step:  # no n-gram of this size occurs twice in a row
        windows = sliding_window_view(tokens, size, axis=1)  # [rows, step - size + 1, size]
        prefix = tokens[:, None, step + 1 - size :]  # [rows, 1, size - 1]
        rows, starts = np.nonzero((windows[..., :-1] == prefix).all(axis=-1))
        scores[rows, windows[rows, starts, -1]] = -np.inf
    scores[:, settings.banned] = -np.inf
    if step < settings.min_length:
        scores[:, settings.eos_token_id] = -np.inf
    forced = forced_tokens(settings, step)
    if forced is not None:
        scores.fill(-np.inf)
        scores[:, forced] = 0
    scores[:, settings.suppress_tokens] = -np.inf
    if settings.renormalize_logits:
        log_softmax(scores)


def forced_tokens(settings: Generation, step: int) -> list[int] | None:
    """The tokens of which one must be chosen; None where any may be."""
    ends = settings.forced_eos_token_id
    if step == settings.limit and ends is not None:
        return [ends] if isinstance(ends, int) else ends
    if step == 1 and settings.forced_bos_token_id is not None:
        return [settings.forced_bos_token_id]
    return None


def greedy(decoder: Decoder, rows: int, settings: Generation) -> list[list[int]]:
    """Greedy search: the most probable token in each step.

    Logits are read where a rule may change which token is the best.

    Args:
        decoder: before its first step.
        rows: of its batch.
        settings: how to decode, with indices of tokens.

    Returns:
        Tokens of each row without the start token, up to and including the end token.
    """
    ends = frozenset(settings.eos_token_id)
    left_out = frozenset([*settings.banned, *settings.suppress_tokens])
    tokens = np.full((rows, settings.limit + 1), settings.decoder_start_token_id, dtype=np.int64)
    lengths = np.full(rows, settings.limit)  # rows go on after their end until they leave
    live = np.arange(rows)  # output row of each row of the decoder
    done = np.zeros(rows, dtype=bool)  # ended, but still a row of the decoder
    chosen = tokens[:, 0]
    for step in range(1, settings.limit + 1):
        decoder.step(chosen)
        chosen = decoder.best()
        best = chosen.tolist()  # Python's sets are faster than NumPy for so few
        # Not `renormalize_logits`: log-probabilities have the order of the logits.
        if (
            settings.no_repeat_ngram_size > 0
            or step < settings.min_length
            or forced_tokens(settings, step) is not None
            or not left_out.isdisjoint(best)
        ):
            scores = decoder.scores()
            apply_rules(settings, scores, tokens[live, :step])
            chosen = scores.argmax(axis=1)
            best = chosen.tolist()
        tokens[live, step] = chosen
        if ends.isdisjoint(best):
            continue
        ended = np.array([token in ends for token in best]) & ~done
        lengths[live[ended]] = step
        done |= ended
        if done.all():
            break
        # After the last step nothing is decoded any more, so nothing is gained by copying.
        if done.mean() >= MIN_FINISHED_SHARE and step < settings.limit:
            decoder.keep(np.flatnonzero(~done))
            chosen, live = chosen[~done], live[~done]
            done = np.zeros(len(live), dtype=bool)
    return [row[1 : 1 + n].tolist() for row, n in zip(tokens, lengths, strict=True)]


@dataclass
class _Beams:
    """State of beam search for the sentences still in the batch. Shapes: [sentences, beams, …]."""

    tokens: Tokens  # of the running hypotheses, [sentences, beams, length]
    scores: Scores  # sums of log-probabilities of the running hypotheses, best first
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
        # [sentences, candidates, length + 1]
        longer = np.concatenate([_take(self.tokens, parents), chosen[:, :, None]], axis=2)
        # By an end token or by the length limit.
        ended = np.isin(chosen, settings.eos_token_id) | (step == settings.limit)
        self._finish(values, longer, ended, settings, step)
        # Ended ones sort last and are not left out: every sentence goes on with as many beams.
        values += ended.astype(np.float32) * EXCLUDED
        order = _descending(values)[:, :beams]  # [sentences, beams]
        self.scores, self.tokens = _take(values, order), _take(longer, order)
        # Without `early_stopping` a result cannot change where the best running hypothesis does not
        # beat the worst finished one at its present length; with "never", at no length that it can
        # reach. Sums are negative: only with a positive penalty do longer texts gain.
        longest = settings.early_stopping == "never" and settings.length_penalty > 0
        length = settings.limit if longest else step
        possible = self.scores[:, :1] / length**settings.length_penalty
        worst = np.where(self.finished, self.final_scores.min(axis=1, keepdims=True), EXCLUDED)
        self.improvable &= (possible > worst).any(axis=1)
        closed = ~self.improvable | ended.all()
        if settings.early_stopping is True:
            closed |= self.finished.all(axis=1)
        return _take(parents, order), closed

    def _finish(
        self,
        values: Scores,
        tokens: Tokens,
        ended: NDArray[np.bool_],
        settings: Generation,
        step: int,
    ) -> None:
        """Merge the candidates that end, if they are among the best, into the finished ones."""
        beams = self.scores.shape[1]
        # As long as the candidates, which have one token more in every step.
        self.final_tokens = np.pad(self.final_tokens, ((0, 0), (0, 0), (0, 1)))
        ended = ended.copy()
        ended[:, beams:] = False  # as in transformers, further candidates can only be continued
        if not ended.any():
            return
        # Neither here nor in transformers does the start token count as length.
        scores = values / step**settings.length_penalty  # [sentences, candidates]
        # As transformers does: a sentence that is closed takes no more hypotheses.
        if settings.early_stopping is True:
            scores += self.finished.all(axis=1, keepdims=True) * EXCLUDED
        scores += ~self.improvable[:, None] * EXCLUDED
        scores += ~ended * EXCLUDED
        order = _descending(np.concatenate([self.final_scores, scores], axis=1))[:, :beams]

        def pick(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
            return _take(np.concatenate([old, new], axis=1), order)

        self.final_scores = pick(self.final_scores, scores)
        self.final_tokens = pick(self.final_tokens, tokens)
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
    if isinstance(decoder, RankedDecoder) and not changes_scores:
        ends = settings.eos_token_id if step < settings.min_length else []
        left_out = [*settings.banned, *settings.suppress_tokens, *ends]
        # The best of each row are the only ones that can be among the best of their sentence.
        scores, tokens = decoder.top(_enough(settings) + len(left_out))
        scores[np.isin(tokens, left_out)] = -np.inf
        return scores, tokens
    scores = decoder.scores()
    log_softmax(scores)  # before the rules, as in transformers
    return scores, None


def _enough(settings: Generation) -> int:
    """How many continuations of a sentence leave `num_beams` that do not end."""
    # Even if every beam's best continuations are all end tokens, one more of each does not end.
    return max(2, 1 + len(settings.eos_token_id)) * settings.num_beams


def _take(array: NDArray[Any], order: Tokens) -> NDArray[Any]:
    """Entries `order` [sentences, chosen] of an array [sentences, entries, …]."""
    return np.take_along_axis(array, order.reshape(order.shape + (1,) * (array.ndim - 2)), axis=1)


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
    grid = scores[:, : height * width].reshape(rows, height, width)
    columns = np.argpartition(grid.max(axis=1), width - k, axis=1)[:, width - k :]
    # Indices of all entries of these columns: [rows, height, k] -> [rows, height x k]
    indices = (columns[:, None, :] + width * np.arange(height)[:, None]).reshape(rows, -1)
    # The entries behind the grid, where n is no multiple of its height.
    rest = np.broadcast_to(np.arange(height * width, n), (rows, n - height * width))
    indices = np.concatenate([indices, rest], axis=1)
    values = np.take_along_axis(scores, indices, axis=1)  # [rows, height x k + rest]
    best = np.argpartition(values, values.shape[1] - k, axis=1)[:, values.shape[1] - k :]
    values, indices = (np.take_along_axis(array, best, axis=1) for array in (values, indices))
    order = _descending(values)
    return np.take_along_axis(values, order, axis=1), np.take_along_axis(indices, order, axis=1)
