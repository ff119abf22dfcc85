"""Counts, over many sentences, of the tokens that heads attend to.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 5. A query attends to the key with
its largest weight; special tokens other than the unknown word are neither queries nor keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compressor.importance import ScoringJob
from compressor.importance.attention import visit_attention
from compressor.model.sublayers import Sublayer
from compressor.tasks import Batch
from compressor.tasks.batching import pad

WINDOW = 5  # the largest relative position that is counted

NO_WORD = -1

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Sentence:
    """A sentence with its words and dependencies, and with tokens once they are aligned."""

    text: str
    ends: tuple[int, ...]  # of its words
    # Dependent, head, relation of all words but the root, which are numbered from 0.
    arcs: tuple[tuple[int, int, str], ...]
    ids: tuple[int, ...] = ()  # of its tokens
    words: tuple[int, ...] = ()  # of each token; `NO_WORD` for special ones


def count_positions(
    scoring: ScoringJob, special_ids: Collection[int], most_common: int
) -> dict[str, dict[str, Any]]:
    """Count to which tokens heads attend.

    Args:
        scoring: a job with self-attention layers alone.
        special_ids: tokens that are no words.
        most_common: so many most frequent tokens are not rare.

    Returns:
        By layer name: `tokens`, the number of queries; `special` [heads], their mean weight on
        special tokens; `offset` and `share` [heads], the relative position (key minus query, up to
        `WINDOW`) to which a head attends most often, and how often, among the queries with a word
        at it, if half of them have one. For the encoder also `rare` [heads], how often a head
        attends to the sentence's least frequent token; `rare_tokens`, the queries in sentences
        whose least frequent token is none of the `most_common`; `rare_chance`, that of a random
        choice.
    """
    special = torch.tensor(sorted(special_ids), dtype=torch.long, device=scoring.device)
    vocabulary = int(scoring.model.config.vocab_size)  # type: ignore[union-attr,arg-type]
    counts = torch.zeros(vocabulary, dtype=torch.long)  # of source tokens
    for batch in scoring.batches:
        ids = batch["input_ids"][batch["attention_mask"].bool()]  # [real tokens]
        counts += torch.bincount(ids.cpu(), minlength=vocabulary)
    counts[sorted(special_ids)] = 0
    # Stable, so that the same ones of equally frequent tokens count as common in every run.
    order = torch.argsort(counts, descending=True, stable=True)
    common = order[: min(most_common, int((counts > 0).sum()))].to(scoring.device)
    counts = counts.to(scoring.device)
    sums: dict[str, dict[str, Tensor]] = {layer.name: {} for layer in scoring.layers}

    def visit(layer: Sublayer, weights: Tensor, seen: Tensor, batch: Batch) -> None:
        ids = batch[layer.query_ids]  # [batch, tokens]
        words = scoring.task.token_mask(batch, layer.kind) & ~torch.isin(ids, special)
        keys = seen & words[:, None, None]  # [batch, 1, queries, keys]
        queries = words & keys.any(-1).squeeze(1)  # [batch, queries]
        # A weight of -1 is below every real one.
        largest = weights.masked_fill(~keys, -1).argmax(-1)  # [batch, heads, queries]
        counted = _count_offsets(weights, keys, queries, largest)
        if layer.stack == "encoder":
            # In floats, since integers have no infinity, which stands for tokens that are no words.
            frequency = counts[ids].float().masked_fill(~words, torch.inf)
            counted |= _count_rare(frequency, torch.isin(ids, common), queries, largest)
        total = sums[layer.name]
        for name, value in counted.items():
            total[name] = total.get(name, 0) + value.cpu()

    visit_attention(scoring, visit)
    return {name: _shares(total) for name, total in sums.items()}


def _shares(total: Mapping[str, Tensor]) -> dict[str, Any]:
    """The counts of a layer, summed over batches, as shares; see `count_positions`."""
    tokens, rare_tokens = int(total["tokens"]), int(total.get("rare_tokens", 0))
    # A high share at an offset that few queries have means little.
    usual = total["possible"] * 2 >= max(tokens, 1)
    share = torch.where(usual, total["hits"] / total["possible"].clamp_min(1), 0.0)
    best = share.max(1)  # [heads]
    shares = {
        "tokens": tokens,
        "special": (total["special"] / max(tokens, 1)).tolist(),
        "offset": (best.indices - WINDOW).tolist(),
        "share": best.values.tolist(),
    }
    if rare_tokens:
        shares["rare"] = (total["rare"] / rare_tokens).tolist()
        shares["rare_tokens"] = rare_tokens
        shares["rare_chance"] = float(total["chance"]) / rare_tokens
    return shares


def _count_offsets(
    weights: Tensor, keys: Tensor, queries: Tensor, largest: Tensor
) -> dict[str, Tensor]:
    """Count offsets and special tokens in a batch.

    Args:
        weights: attention probabilities, [batch, heads, queries, keys].
        keys: words that each query may attend to, bool, [batch, 1, queries, keys].
        queries: words, bool, [batch, queries].
        largest: the key with the largest weight, [batch, heads, queries].

    Returns:
        `tokens` [], `special` [heads], `hits` [heads, offsets], `possible` [offsets].
    """
    # A query's weights add up to 1: what is not on words is on special tokens.
    on_words = (weights * keys).sum(-1)  # [batch, heads, queries]
    offsets = torch.arange(-WINDOW, WINDOW + 1, device=queries.device)
    moves = largest - torch.arange(queries.shape[1], device=queries.device)
    # [batch, heads, queries, offsets]
    match = (moves[..., None] == offsets) & queries[:, None, :, None]
    pairs = (keys & queries[:, None, :, None])[:, 0]  # [batch, queries, keys]
    return {
        "tokens": queries.sum(),
        "special": ((1 - on_words) * queries[:, None]).sum((0, 2)).double(),
        "hits": match.sum((0, 2)),
        # A diagonal holds the pairs whose key is so far away from the query; some are empty.
        "possible": torch.stack([pairs.diagonal(x, 1, 2).sum() for x in offsets.tolist()]),
    }


def _count_rare(
    frequency: Tensor, common: Tensor, queries: Tensor, largest: Tensor
) -> dict[str, Tensor]:
    """Count in a batch how often heads attend to a sentence's least frequent token.

    Args:
        frequency: of each token in all rows; infinite for what is no word, [batch, tokens].
        common: whether it is one of the most frequent tokens, [batch, tokens].
        queries: words, bool, [batch, tokens].
        largest: the key with the largest weight, [batch, heads, queries].

    Returns:
        `rare` [heads], `rare_tokens` [] and `chance` [].
    """
    words = frequency.isfinite()
    # Several tokens may be the least frequent; each is right, and chance is greater.
    least = (frequency == frequency.amin(-1, keepdim=True)) & words  # [batch, tokens]
    # Where even the least frequent token is common, none is rare.
    usable = ~(least & common).any(-1) & least.any(-1)  # [batch]
    queries = queries & usable[:, None]
    # [batch, heads, queries]: whether the key with the largest weight is a least frequent one
    right = least[:, None].expand(-1, largest.shape[1], -1).gather(2, largest)
    by_chance = least.sum(-1) / words.sum(-1).clamp_min(1)  # [batch]
    return {
        "rare": (right & queries[:, None]).sum((0, 2)),
        "rare_tokens": queries.sum(),
        "chance": (queries.sum(-1) * by_chance).sum().double(),
    }


def arcs_of(sentences: Sequence[Sentence], relations: Sequence[str]) -> Tensor:
    """The arcs of sentences in both directions.

    Args:
        sentences: with words.
        relations: those to look at; relation i has groups 2 i, from dependent to head, and 2 i + 1.

    Returns:
        [arcs, (sentence, from word, to word, group)].
    """
    arcs = []
    for number, sentence in enumerate(sentences):
        for dependent, head, relation in sentence.arcs:
            if relation in relations:
                group = 2 * relations.index(relation)
                arcs.append((number, dependent, head, group))
                arcs.append((number, head, dependent, group + 1))
    return torch.tensor(arcs, dtype=torch.long).reshape(-1, 4)


def count_arcs(
    scoring: ScoringJob, sentences: Sequence[Sentence], arcs: Tensor, groups: int, from_word: str
) -> dict[str, Counts]:
    """Count how often heads attend from a word to the word at the other end of an arc.

    Args:
        scoring: rows of its batches are indices of `sentences`.
        sentences: with tokens.
        arcs: see `arcs_of`.
        groups: their number.
        from_word: see `word_attention`.

    Returns:
        Layer name -> [groups, heads].
    """
    hits = {x.name: torch.zeros(groups, x.units, dtype=torch.long) for x in scoring.layers}

    def visit(layer: Sublayer, weights: Tensor, seen: Tensor, batch: Batch) -> None:
        words = pad([sentences[row].words for row in batch.rows], NO_WORD)  # [batch, tokens]
        line_of = torch.full((len(sentences),), -1)
        line_of[list(batch.rows)] = torch.arange(len(batch.rows))
        lines = line_of[arcs[:, 0]]
        # [arcs of the batch] each
        line, (_, source, target, group) = lines[lines >= 0], arcs[lines >= 0].unbind(1)
        # [batch, heads, words]
        largest = word_attention(weights, words.to(weights.device), from_word).argmax(-1).cpu()
        right = largest[line, :, source] == target[:, None]  # [arcs, heads]
        hits[layer.name].index_add_(0, group, right.long())

    if len(arcs):
        visit_attention(scoring, visit)
    return {name: counted.numpy() for name, counted in hits.items()}


def word_attention(weights: Tensor, words: Tensor, from_word: str) -> Tensor:
    """Attention between words, from that between tokens.

    The weight to a word is the largest one to its tokens; the weight from a word is that of its
    last token, or the mean over its tokens.

    Args:
        weights: [batch, heads, tokens, tokens].
        words: the word of each token, or `NO_WORD`, [batch, tokens].
        from_word: `last` or `mean`.

    Returns:
        [batch, heads, words, words]; 0 to words that a sentence does not have.
    """
    batch, heads, length, _ = weights.shape
    count = int(words.max()) + 1
    # Tokens without a word go to an extra column, which is cut off in the end. [batch, tokens]
    slot = torch.where(words == NO_WORD, count, words)
    to = weights.new_zeros(batch, heads, length, count + 1)  # [batch, heads, tokens, words + 1]
    to = to.scatter_reduce(3, slot[:, None, None].expand_as(weights), weights, "amax")[..., :count]
    if from_word == "last":
        positions = torch.arange(length, device=words.device).expand_as(words)
        # The position of each word's last token, [batch, words + 1].
        last = positions.new_zeros(batch, count + 1).scatter_reduce(1, slot, positions, "amax")
        return to.gather(2, last[:, None, :count, None].expand(-1, heads, -1, count))
    rows = slot[:, None, :, None].expand_as(to)  # [batch, heads, tokens, words]
    means = to.new_zeros(batch, heads, count + 1, count)
    return means.scatter_reduce(2, rows, to, "mean", include_self=False)[:, :, :count]
