"""The position of each unit's gate in one flat vector, and masks from such a vector.

A training step never loops over units, of which there may be thousands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

from compressor.budgets.units import HEADS, MULTIPLES, Multiples, select
from compressor.learned_masks.relaxation import UnitGroup
from compressor.model.sublayers import Mask, Scores, Sublayer, belongs


@dataclass(frozen=True)
class GateLayout:
    """The units that have gates, and the pools in which they are counted.

    Args:
        layers: the sublayers of the mask.
        keep: units to keep per pool (`heads`, `neurons` or a kind of sublayer); None: no target
            count, and all heads are one pool.
        floors: least number of units in each sublayer of a kind.
        multiples: the number of kept units in each sublayer is a multiple of these.
    """

    layers: Sequence[Sublayer]
    keep: Mapping[str, int] | None
    floors: Mapping[str, int]
    multiples: Multiples = field(default_factory=lambda: MULTIPLES)

    @cached_property
    def _pool_names(self) -> list[str]:
        return [HEADS] if self.keep is None else list(self.keep)

    @cached_property
    def gated(self) -> list[Sublayer]:
        """The sublayers whose units have gates: those that belong to a pool."""
        return [x for x in self.layers if any(belongs(x.name, pool) for pool in self._pool_names)]

    @cached_property
    def _positions(self) -> dict[str, tuple[int, ...]]:
        """Sublayer name -> positions of its gates."""
        parts = self.split(torch.arange(self.total))
        return {name: tuple(part.tolist()) for name, part in parts.items()}

    @property
    def total(self) -> int:
        """Number of gates, n."""
        return sum(layer.units for layer in self.gated)

    @cached_property
    def layer_groups(self) -> list[UnitGroup]:
        """Each sublayer's positions, and its floor."""
        return [
            UnitGroup(self._positions[layer.name], min(layer.units, self.floors[layer.kind]))
            for layer in self.gated
        ]

    @cached_property
    def pool_of_layer(self) -> Tensor:
        """Number of the pool of each sublayer with gates, [sublayers]."""
        pools = list(enumerate(self._pool_names))
        numbers = [next(n for n, pool in pools if belongs(x.name, pool)) for x in self.gated]
        return torch.tensor(numbers, dtype=torch.long)

    @cached_property
    def pool_of(self) -> Tensor:
        """Number of the pool of each gate, [n]."""
        units = torch.tensor([layer.units for layer in self.gated], dtype=torch.long)
        return self.pool_of_layer.repeat_interleave(units)

    def count(self, values: Tensor) -> Tensor:
        """Sums of values [n] over each pool, [pools]; a sublayer counts at least its floor."""
        floors = values.new_tensor([group.count for group in self.layer_groups])
        sums = [part.sum() for part in self.split(values).values()]
        counts = values.new_zeros(len(self._pool_names))
        if not sums:
            return counts
        of_layers = torch.maximum(torch.stack(sums), floors)
        return counts.index_add(0, self.pool_of_layer.to(values.device), of_layers)

    @cached_property
    def pools(self) -> dict[str, UnitGroup]:
        """Each pool's positions, and the number of units it keeps (all without a target)."""
        keep = {HEADS: self.total} if self.keep is None else self.keep

        def positions(pool: str) -> tuple[int, ...]:
            return tuple(chain(*(x for name, x in self._positions.items() if belongs(name, pool))))

        return {pool: UnitGroup(positions(pool), count) for pool, count in keep.items()}

    def split(self, values: Tensor) -> dict[str, Tensor]:
        """[n] -> {sublayer name: [units]}, as for `compressor.model.surgery.gated`."""
        parts = values.split([layer.units for layer in self.gated])
        return {layer.name: part for layer, part in zip(self.gated, parts, strict=True)}

    def flat(self, mask: Mask) -> Tensor:
        """A mask as gates of 0 and 1, [n]."""
        flags = [torch.tensor(mask.keep[x.name], dtype=torch.float32) for x in self.gated]
        return torch.cat(flags) if flags else torch.zeros(0)

    def score_values(self, values: Tensor) -> dict[str, tuple[float, ...]]:
        """A score for every unit of every sublayer; units without a gate get the largest."""
        scores = {name: tuple(part.tolist()) for name, part in self.split(values.detach()).items()}
        highest = max((score for row in scores.values() for score in row), default=0.0)
        return {x.name: scores.get(x.name, (highest,) * x.units) for x in self.layers}

    def exact_mask(self, values: Tensor) -> Mask:
        """The mask that keeps the wanted number of largest values, with respect to the floors.

        Of units in groups, it keeps the smallest number of groups that is enough.
        """
        assert self.keep is not None
        scores = Scores(self.score_values(values), "gates", "", {})
        return select(scores, Mask.full(self.layers), self.keep, self.floors, self.multiples)

    def mask_of(self, values: Tensor, opened: Tensor) -> Mask:
        """The mask that keeps all `opened` units, and in each sublayer at least its floor."""
        keep = dict(Mask.full(self.layers).keep)
        of_layer, open_in = self.split(values), self.split(opened)
        for layer, group in zip(self.gated, self.layer_groups, strict=True):
            best = of_layer[layer.name].topk(group.count).indices
            keep[layer.name] = tuple(open_in[layer.name].index_fill(0, best, True).tolist())
        return Mask(keep)
