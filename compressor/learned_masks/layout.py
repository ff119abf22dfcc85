"""Where each head's gate stands in one flat vector, and from such a vector to a mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from compressor.budgets.counts import HEADS, select
from compressor.learned_masks.relaxation import HeadGroup
from compressor.model.sublayers import Mask, Scores, Sublayer, belongs


@dataclass(frozen=True)
class Layout:
    """The heads that have gates, and the pools in which they are counted.

    Args:
        layers: of the model, all of them.
        keep: heads to keep per kind or of all kinds together; None: no count is wanted, and all
            heads are one pool.
        floors: least number of heads in each layer of a kind.
    """

    layers: Sequence[Sublayer]
    keep: Mapping[str, int] | None
    floors: Mapping[str, int]

    @cached_property
    def gated(self) -> list[Sublayer]:
        """The layers whose heads have gates: those of the kinds that are counted."""
        pools = {HEADS} if self.keep is None else set(self.keep)
        return [x for x in self.layers if any(belongs(x.name, pool) for pool in pools)]

    @cached_property
    def _starts(self) -> dict[str, int]:
        starts, start = {}, 0
        for layer in self.gated:
            starts[layer.name] = start
            start += layer.units
        return starts

    @property
    def total(self) -> int:
        """Number of gates, n."""
        return sum(layer.units for layer in self.gated)

    @cached_property
    def layer_groups(self) -> list[HeadGroup]:
        """Each layer's positions, and its floor."""
        return [
            HeadGroup(self._positions(layer), min(layer.units, self.floors[layer.kind]))
            for layer in self.gated
        ]

    @cached_property
    def pools(self) -> dict[str, HeadGroup]:
        """Each pool's positions, and the heads it keeps (all, if no count is wanted)."""
        keep = {HEADS: self.total} if self.keep is None else self.keep
        return {
            name: HeadGroup(
                tuple(
                    position
                    for layer in self.gated
                    if belongs(layer.name, name)
                    for position in self._positions(layer)
                ),
                count,
            )
            for name, count in keep.items()
        }

    def _positions(self, layer: Sublayer) -> tuple[int, ...]:
        start = self._starts[layer.name]
        return tuple(range(start, start + layer.units))

    def split(self, values: Tensor) -> dict[str, Tensor]:
        """[n] to layer name -> [heads], as `compressor.model.surgery.gated` takes it."""
        parts = values.split([layer.units for layer in self.gated])
        return {layer.name: part for layer, part in zip(self.gated, parts, strict=True)}

    def flat(self, mask: Mask) -> Tensor:
        """A mask as gates of 0 and 1, [n]."""
        return torch.tensor([float(flag) for x in self.gated for flag in mask.keep[x.name]])

    def score_values(self, values: Tensor) -> dict[str, tuple[float, ...]]:
        """A score for every head of every layer; heads without a gate get the largest."""
        scores = {name: tuple(part.tolist()) for name, part in self.split(values.detach()).items()}
        highest = max((score for row in scores.values() for score in row), default=0.0)
        return {x.name: scores.get(x.name, (highest,) * x.units) for x in self.layers}

    def exact_mask(self, values: Tensor) -> Mask:
        """The mask that keeps the largest values: as many as are wanted, floors respected."""
        assert self.keep is not None
        scores = Scores(self.score_values(values), "gates", "", {})
        return select(scores, Mask.full(self.layers), self.keep, self.floors)

    def mask_of(self, values: Tensor, opened: Tensor) -> Mask:
        """The mask that keeps all that is `opened`, and in each layer at least its floor."""
        keep = opened.clone()
        for layer in self.layer_groups:
            members = torch.tensor(layer.members)
            keep[members[values[members].topk(layer.count).indices]] = True
        flags = {name: tuple(part.tolist()) for name, part in self.split(keep).items()}
        full = Mask.full(self.layers)
        return Mask({name: flags.get(name, full.keep[name]) for name in full.keep})
