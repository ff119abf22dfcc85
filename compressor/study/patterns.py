"""Where heads look, counted over many sentences: positions, rare tokens, syntactic heads.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 5. Special tokens (all but the
unknown word) are no words: they do not look, and where a head would look most at one of them, the
largest weight on a word counts. How much of its weight a head puts on them is counted too, since
of a head that mostly looks there the rest says little.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from compressor.importance import Scoring
from compressor.importance.confidence import visit_attention
from compressor.model.sublayers import Sublayer
from compressor.study.word_alignment import NO_WORD, Tokens
from compressor.tasks import Batch
from compressor.tasks.batching import pad

WINDOW = 5  # the furthest relative position that is looked at


@dataclass(frozen=True)
class Rarity:
    """How often each token occurs, and which are too common for "the rarest" to mean anything."""

    counts: Tensor  # [vocabulary]
    common: Tensor  # ids


def rarity(
    batches: Sequence[Batch], vocabulary: int, common: int, special: Iterable[int] = ()
) -> Rarity:
    """Counts of the source tokens of all rows, but the special ones.

    Args:
        common: so many of the most frequent tokens are too common.
    """
    counts = torch.zeros(vocabulary, dtype=torch.long)
    for batch in batches:
        ids = batch["input_ids"][batch["attention_mask"].bool()]
        counts += torch.bincount(ids.cpu(), minlength=vocabulary)
    counts[sorted(special)] = 0
    seen = int((counts > 0).sum())
    order = torch.argsort(counts, descending=True, stable=True)
    return Rarity(counts, order[: min(common, seen)])


def count_positions(scoring: Scoring, rare: Rarity) -> dict[str, dict[str, Any]]:
    """Of every self-attention layer, where the largest weight of each token is.

    Returns:
        By layer name: `tokens` that look; `special` [heads], their mean weight on special tokens;
        `offset` and `share` [heads], the relative position (key minus query, up to `WINDOW` away)
        at which the largest weight is most often, among the tokens that have a word there (at
        least half of all), and how often it is; and for the encoder `rare` [heads], how often it
        is on the sentence's least frequent token, `rare_tokens` that look in sentences whose
        least frequent token is not common, and `rare_chance`, how often a blind guess is right.
    """
    special = torch.tensor(sorted(scoring.special_ids), dtype=torch.long, device=scoring.device)
    counts, common = rare.counts.to(scoring.device), rare.common.to(scoring.device)
    found = {x.name: _Counter(x) for x in scoring.layers if x.kind != "cross"}

    def visit(layer: Sublayer, weights: Tensor, seen: Tensor, batch: Batch) -> None:
        if layer.kind == "cross":
            return
        ids = batch["input_ids" if layer.kind == "encoder_self" else "decoder_input_ids"]
        words = scoring.task.token_mask(batch, layer.kind) & ~torch.isin(ids, special)
        admitted = seen & words[:, None, None]  # [batch, 1, queries, keys]
        looks = words & admitted.any(-1).squeeze(1)  # [batch, queries]
        largest = weights.masked_fill(~admitted, -1).argmax(-1)  # [batch, heads, queries]
        counter = found[layer.name]
        counter.add_positions(weights, admitted, looks, largest)
        if layer.kind == "encoder_self":
            counter.add_rare(ids, words, looks, largest, counts, common)

    visit_attention(scoring, visit)
    return {name: counter.result() for name, counter in found.items()}


class _Counter:
    """Sums over batches for one layer."""

    def __init__(self, layer: Sublayer) -> None:
        self.tokens = self.rare_tokens = 0
        self.chance = 0.0
        self.special = torch.zeros(layer.units, dtype=torch.float64)
        self.hits = torch.zeros(layer.units, 2 * WINDOW + 1, dtype=torch.long)
        self.possible = torch.zeros(2 * WINDOW + 1, dtype=torch.long)
        self.rare = torch.zeros(layer.units, dtype=torch.long)

    def add_positions(
        self, weights: Tensor, admitted: Tensor, looks: Tensor, largest: Tensor
    ) -> None:
        length = looks.shape[1]
        self.tokens += int(looks.sum())
        on_words = (weights * admitted).sum(-1)
        self.special += ((1 - on_words) * looks[:, None]).sum((0, 2)).double().cpu()
        offsets = torch.arange(-WINDOW, WINDOW + 1, device=looks.device)
        moves = largest - torch.arange(length, device=looks.device)
        match = (moves[..., None] == offsets) & looks[:, None, :, None]
        self.hits += match.sum((0, 2)).cpu()
        square = (admitted & looks[:, None, :, None])[:, 0]  # [batch, queries, keys]
        for column, offset in enumerate(range(-WINDOW, WINDOW + 1)):
            if abs(offset) < length:
                self.possible[column] += int(square.diagonal(offset, 1, 2).sum())

    def add_rare(
        self,
        ids: Tensor,
        words: Tensor,
        looks: Tensor,
        largest: Tensor,
        counts: Tensor,
        common: Tensor,
    ) -> None:
        frequency = counts[ids].float().masked_fill(~words, torch.inf)
        least = (frequency == frequency.amin(-1, keepdim=True)) & words  # [batch, tokens]
        usable = ~(least & torch.isin(ids, common)).any(-1) & least.any(-1)  # [batch]
        looks = looks & usable[:, None]
        here = least[:, None].expand(-1, largest.shape[1], -1).gather(2, largest)
        self.rare += (here & looks[:, None]).sum((0, 2)).cpu()
        self.rare_tokens += int(looks.sum())
        blind = least.sum(-1) / words.sum(-1).clamp_min(1)
        self.chance += float((looks.sum(-1) * blind).sum())

    def result(self) -> dict[str, Any]:
        usual = self.possible * 2 >= max(self.tokens, 1)
        share = torch.where(usual, self.hits / self.possible.clamp_min(1), 0.0)
        best = share.max(1)
        found: dict[str, Any] = {
            "tokens": self.tokens,
            "special": (self.special / max(self.tokens, 1)).tolist(),
            "offset": (best.indices - WINDOW).tolist(),
            "share": best.values.tolist(),
        }
        if self.rare_tokens:
            found["rare"] = (self.rare / self.rare_tokens).tolist()
            found["rare_tokens"] = self.rare_tokens
            found["rare_chance"] = self.chance / self.rare_tokens
        return found


@dataclass(frozen=True)
class Arcs:
    """Dependencies to look for: for each sentence (word that looks, word to find, group) rows."""

    groups: Sequence[tuple[str, str]]  # relation, direction
    rows: Sequence[Tensor]  # [arcs, 3] of each sentence


def count_arcs(
    scoring: Scoring, sentences: Sequence[Tokens], arcs: Arcs, from_word: str
) -> dict[str, Tensor]:
    """How often a word's largest weight is on the word to find: name -> [groups, heads].

    Weight on a word is the largest on one of its tokens; weight from a word is that of its last
    token, or the mean over its tokens (`from_word`).

    Args:
        scoring: its batches' rows are numbers of `sentences`.
    """
    found = {
        layer.name: torch.zeros(len(arcs.groups), layer.units, dtype=torch.long)
        for layer in scoring.layers
    }
    prepared: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def visit(layer: Sublayer, weights: Tensor, seen: Tensor, batch: Batch) -> None:
        if batch.rows not in prepared:
            prepared.clear()  # the layers of a batch come one after the other
            prepared[batch.rows] = _prepare(sentences, arcs, batch, weights.device)
        words, wanted = prepared[batch.rows]
        choice = word_attention(weights, words, from_word).argmax(-1)  # [batch, heads, words]
        right = choice[wanted[:, 0], :, wanted[:, 1]] == wanted[:, 2:3]  # [arcs, heads]
        sums = torch.zeros_like(found[layer.name], device=weights.device)
        found[layer.name] += sums.index_add_(0, wanted[:, 3], right.long()).cpu()

    visit_attention(scoring, visit)
    return found


def _prepare(
    sentences: Sequence[Tokens], arcs: Arcs, batch: Batch, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Words of the tokens [batch, tokens], and arcs [arcs, (line, looks, find, group)]."""
    words = pad([sentences[row].words for row in batch.rows], NO_WORD)
    lines = [
        torch.cat([torch.full((len(arcs.rows[row]), 1), line), arcs.rows[row]], 1)
        for line, row in enumerate(batch.rows)
    ]
    return words.to(device), torch.cat(lines).to(device)


def word_attention(weights: Tensor, words: Tensor, from_word: str = "last") -> Tensor:
    """Attention between tokens as attention between words.

    Args:
        weights: [batch, heads, tokens, tokens].
        words: the word of each token, `NO_WORD` for none, [batch, tokens].
        from_word: `last` or `mean`.

    Returns:
        [batch, heads, words, words]; 0 to words that a sentence does not have.
    """
    batch, heads, length, _ = weights.shape
    count = int(words.max()) + 1
    slot = torch.where(words == NO_WORD, count, words)  # one more column, for no word
    to = weights.new_zeros(batch, heads, length, count + 1)
    to = to.scatter_reduce(3, slot[:, None, None].expand_as(weights), weights, "amax")[..., :count]
    if from_word == "last":
        places = torch.arange(length, device=words.device).expand_as(words)
        last = places.new_zeros(batch, count + 1).scatter_reduce(1, slot, places, "amax")
        return to.gather(2, last[:, None, :count, None].expand(-1, heads, -1, count))
    rows = slot[:, None, :, None].expand_as(to)
    sums = to.new_zeros(batch, heads, count + 1, count)
    return sums.scatter_reduce(2, rows, to, "mean", include_self=False)[:, :, :count]


def arcs_of(sentences: Sequence[Tokens], groups: Mapping[str, int]) -> list[Tensor]:
    """Each sentence's arcs in both directions: [arcs, (looks, find, group)].

    Args:
        groups: relation -> number of its group from dependent to head; the other is the next.
    """
    found = []
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
        found.append(torch.tensor(rows, dtype=torch.long).reshape(-1, 3))
    return found
