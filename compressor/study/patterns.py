"""Where heads attend, counted over many sentences: positions, rare tokens, dependencies.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 5. A query attends to the key with
its largest weight. Special tokens other than the unknown word are left out, as queries and as keys:
where a head's largest weight is on one, its largest weight on a word counts. The share of a head's
weight on special tokens is reported too, because little can be said of a head that attends mostly
to them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from compressor.importance import ScoringJob
from compressor.importance.attention import visit_attention
from compressor.model.sublayers import Sublayer
from compressor.study.word_alignment import NO_WORD, Tokens
from compressor.tasks import Batch
from compressor.tasks.batching import pad

WINDOW = 5  # the largest relative position that is counted


def rarity(
    batches: Sequence[Batch], vocabulary: int, common: int, special: Iterable[int]
) -> tuple[Tensor, Tensor]:
    """How often each source token occurs, and which are too common to call the rarest one rare.

    Args:
        common: how many of the most frequent tokens are too common.
        special: ids of special tokens, which are not counted.

    Returns:
        Counts [vocabulary], and ids.
    """
    counts = torch.zeros(vocabulary, dtype=torch.long)
    for batch in batches:
        ids = batch["input_ids"][batch["attention_mask"].bool()]  # [real tokens]
        counts += torch.bincount(ids.cpu(), minlength=vocabulary)
    counts[sorted(special)] = 0
    seen = int((counts > 0).sum())
    # Stable, so that of equally frequent tokens the same ones count as common in every run.
    order = torch.argsort(counts, descending=True, stable=True)
    return counts, order[: min(common, seen)]


def count_positions(
    scoring: ScoringJob, special_ids: Collection[int], most_common: int
) -> dict[str, dict[str, Any]]:
    """Count to which tokens each self-attention head attends.

    Args:
        special_ids: tokens that are no words.
        most_common: how many of the most frequent tokens are never rare.

    Returns:
        By layer name: `tokens`, the number of queries; `special` [heads], their mean weight on
        special tokens; `offset` and `share` [heads], the relative position (key minus query, up to
        `WINDOW`) to which a head attends most often, and how often, among the queries with a word
        there (positions that fewer than half of the queries have are not counted). For the encoder
        also `rare` [heads], how often a head attends to the sentence's least frequent token;
        `rare_tokens`, the number of queries in sentences whose least frequent token is not common;
        `rare_chance`, how often a random choice of the key would be right.
    """
    special = torch.tensor(sorted(special_ids), dtype=torch.long, device=scoring.device)
    vocabulary = int(scoring.model.config.vocab_size)  # type: ignore[union-attr,arg-type]
    rare = rarity(scoring.batches, vocabulary, most_common, special_ids)
    counts, common = (found.to(scoring.device) for found in rare)
    counters = {x.name: _LayerCounts(x) for x in scoring.layers if x.kind != "cross"}

    def visit(layer: Sublayer, weights: Tensor, seen: Tensor, batch: Batch) -> None:
        # Its keys are of another sentence, where no position is relative to the query's.
        if layer.kind == "cross":
            return
        ids = batch["input_ids" if layer.kind == "encoder_self" else "decoder_input_ids"]
        # [batch, tokens]
        words = scoring.task.token_mask(batch, layer.kind) & ~torch.isin(ids, special)
        keys = seen & words[:, None, None]  # [batch, 1, queries, keys]
        queries = words & keys.any(-1).squeeze(1)  # [batch, queries]
        # A weight of -1 is below every real one.
        largest = weights.masked_fill(~keys, -1).argmax(-1)  # [batch, heads, queries]
        counter = counters[layer.name]
        counter.add_positions(weights, keys, queries, largest)
        if layer.kind == "encoder_self":
            counter.add_rare(ids, words, queries, largest, counts, common)

    visit_attention(scoring, visit)
    return {name: counter.result() for name, counter in counters.items()}


class _LayerCounts:
    """Sums over batches for one layer; `offsets` are the relative positions up to `WINDOW`."""

    def __init__(self, layer: Sublayer) -> None:
        self.tokens = self.rare_tokens = 0
        self.chance = 0.0
        self.special = torch.zeros(layer.units, dtype=torch.float64)  # [heads]
        self.hits = torch.zeros(layer.units, 2 * WINDOW + 1, dtype=torch.long)  # [heads, offsets]
        self.possible = torch.zeros(2 * WINDOW + 1, dtype=torch.long)  # [offsets]
        self.rare = torch.zeros(layer.units, dtype=torch.long)  # [heads]

    def add_positions(
        self, weights: Tensor, keys: Tensor, queries: Tensor, largest: Tensor
    ) -> None:
        """Count a batch; shapes as in `count_positions`."""
        length = queries.shape[1]
        self.tokens += int(queries.sum())
        # A query's weights add up to 1: what is not on words is on special tokens.
        on_words = (weights * keys).sum(-1)  # [batch, heads, queries]
        self.special += ((1 - on_words) * queries[:, None]).sum((0, 2)).double().cpu()
        offsets = torch.arange(-WINDOW, WINDOW + 1, device=queries.device)
        moves = largest - torch.arange(length, device=queries.device)  # [batch, heads, queries]
        # [batch, heads, queries, offsets]
        match = (moves[..., None] == offsets) & queries[:, None, :, None]
        self.hits += match.sum((0, 2)).cpu()
        pairs = (keys & queries[:, None, :, None])[:, 0]  # [batch, queries, keys]
        for column, offset in enumerate(range(-WINDOW, WINDOW + 1)):
            if abs(offset) < length:
                # The diagonal holds the pairs whose key is `offset` away from the query.
                self.possible[column] += int(pairs.diagonal(offset, 1, 2).sum())

    def add_rare(
        self,
        ids: Tensor,
        words: Tensor,
        queries: Tensor,
        largest: Tensor,
        counts: Tensor,
        common: Tensor,
    ) -> None:
        """Count how often heads attend to the least frequent token of a sentence.

        Args:
            counts, common: see `rarity`.
        """
        # As floats: integers have no infinity, which stands for what is no word.
        frequency = counts[ids].float().masked_fill(~words, torch.inf)
        # Several tokens may be the least frequent; each is right, and chance is greater.
        least = (frequency == frequency.amin(-1, keepdim=True)) & words  # [batch, tokens]
        # Where even the least frequent token is common, there is no rare one to attend to.
        usable = ~(least & torch.isin(ids, common)).any(-1) & least.any(-1)  # [batch]
        queries = queries & usable[:, None]
        # [batch, heads, queries]: whether the key with the largest weight is a least frequent one
        right = least[:, None].expand(-1, largest.shape[1], -1).gather(2, largest)
        self.rare += (right & queries[:, None]).sum((0, 2)).cpu()
        self.rare_tokens += int(queries.sum())
        by_chance = least.sum(-1) / words.sum(-1).clamp_min(1)  # [batch]
        self.chance += float((queries.sum(-1) * by_chance).sum())

    def result(self) -> dict[str, Any]:
        """What `count_positions` returns of this layer."""
        # Of an offset that few queries have, a high share means little.
        usual = self.possible * 2 >= max(self.tokens, 1)
        share = torch.where(usual, self.hits / self.possible.clamp_min(1), 0.0)  # [heads, offsets]
        best = share.max(1)
        counted: dict[str, Any] = {
            "tokens": self.tokens,
            "special": (self.special / max(self.tokens, 1)).tolist(),
            "offset": (best.indices - WINDOW).tolist(),
            "share": best.values.tolist(),
        }
        if self.rare_tokens:
            counted["rare"] = (self.rare / self.rare_tokens).tolist()
            counted["rare_tokens"] = self.rare_tokens
            counted["rare_chance"] = self.chance / self.rare_tokens
        return counted


def count_arcs(
    scoring: ScoringJob,
    sentences: Sequence[Tokens],
    arcs: Sequence[Tensor],
    groups: int,
    from_word: str,
) -> dict[str, Tensor]:
    """How often heads attend from a word to the word at the other end of its arc.

    Args:
        scoring: the rows of its batches are indices of `sentences`.
        arcs: of each sentence, see `arcs_of`.
        from_word: see `word_attention`.

    Returns:
        Layer name -> [groups, heads].
    """
    hits = {x.name: torch.zeros(groups, x.units, dtype=torch.long) for x in scoring.layers}

    def visit(layer: Sublayer, weights: Tensor, seen: Tensor, batch: Batch) -> None:
        words = pad([sentences[row].words for row in batch.rows], NO_WORD)  # [batch, tokens]
        lines = [
            torch.cat([torch.full((len(arcs[row]), 1), line), arcs[row]], 1)
            for line, row in enumerate(batch.rows)
        ]
        # [arcs] each; a line is the index of a row in the batch
        line, source, target, group = torch.cat(lines).to(weights.device).unbind(1)
        # [batch, heads, words]
        largest = word_attention(weights, words.to(weights.device), from_word).argmax(-1)
        right = largest[line, :, source] == target[:, None]  # [arcs, heads]
        sums = torch.zeros_like(hits[layer.name], device=weights.device)  # [groups, heads]
        hits[layer.name] += sums.index_add_(0, group, right.long()).cpu()

    visit_attention(scoring, visit)
    return hits


def word_attention(weights: Tensor, words: Tensor, from_word: str) -> Tensor:
    """Turn attention between tokens into attention between words.

    The weight on a word is the largest on one of its tokens; the weight from a word is that of its
    last token, or the mean over its tokens.

    Args:
        weights: [batch, heads, tokens, tokens].
        words: the word of each token, or `NO_WORD`, [batch, tokens].
        from_word: `last` or `mean`.

    Returns:
        [batch, heads, words, words]; 0 on words that a sentence does not have.
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


def arcs_of(sentences: Sequence[Tokens], groups: Mapping[str, int]) -> list[Tensor]:
    """Each sentence's arcs in both directions: [arcs, (from word, to word, group)].

    Args:
        groups: relation -> group of its arcs from dependent to head; the next group has those from
            head to dependent.
    """
    arcs = []
    for tokens in sentences:
        rows = [
            row
            for dependent, head, relation in tokens.sentence.arcs
            if relation in groups
            for row in (
                (dependent, head, groups[relation]),
                (head, dependent, groups[relation] + 1),
            )
        ]
        arcs.append(torch.tensor(rows, dtype=torch.long).reshape(-1, 3))  # also without any arc
    return arcs
