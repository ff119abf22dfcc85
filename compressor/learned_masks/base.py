"""The interface of learned masks: relaxed gates, in one flat vector, that become a hard mask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from compressor.budgets.units import HEADS, MULTIPLES, Multiples, select
from compressor.model.sublayers import Mask, Scores, Sublayer, belongs
from compressor.tasks.batching import moved_to


@dataclass(frozen=True)
class UnitGroup:
    """Units that are counted together.

    Args:
        members: their positions in the vector of gates.
        count: how many of them are kept.
    """

    members: tuple[int, ...]
    count: int


class GateLayout:
    """The position of each unit's gate in a vector of n, and the pools in which units are counted.

    Args:
        layers: the sublayers of the mask. Only those in a pool have gates (`gated`).
        keep: number of units to keep per pool (`heads`, `neurons` or a kind of sublayer); None if
            no count is wanted, and all heads are one pool.
        floors: least number of units in each sublayer of a kind.
        multiples: units per sublayer are kept in multiples of these.
    """

    def __init__(
        self,
        layers: Sequence[Sublayer],
        keep: Mapping[str, int] | None,
        floors: Mapping[str, int],
        multiples: Multiples = MULTIPLES,
    ) -> None:
        self.layers = layers
        self.keep = keep
        self.floors = floors
        self.multiples = multiples
        names = [HEADS] if keep is None else list(keep)
        pool_of = {
            x.name: n for n, pool in enumerate(names) for x in layers if belongs(x.name, pool)
        }
        self.gated = [layer for layer in layers if layer.name in pool_of]
        self._sizes = [layer.units for layer in self.gated]
        self.total = sum(self._sizes)
        parts = self.split(torch.arange(self.total))
        positions = {name: tuple(part.tolist()) for name, part in parts.items()}
        self.layer_groups = [
            UnitGroup(positions[layer.name], min(layer.units, floors[layer.kind]))
            for layer in self.gated
        ]
        self._floors = torch.tensor([float(group.count) for group in self.layer_groups])
        self.pools = {
            pool: UnitGroup(
                tuple(chain(*(x for name, x in positions.items() if belongs(name, pool)))),
                self.total if keep is None else keep[pool],
            )
            for pool in names
        }
        self.pool_of_layer = torch.tensor([pool_of[x.name] for x in self.gated], dtype=torch.long)
        self.pool_of = self.pool_of_layer.repeat_interleave(torch.tensor(self._sizes).long())

    def count(self, values: Tensor) -> Tensor:
        """Sums of values over each pool, in which a sublayer counts at least its floor.

        Args:
            values: [n], such as the probability that each gate is open.

        Returns:
            [pools]; differentiable in `values`.
        """
        floors = moved_to(values.device, self._floors).to(values.dtype)
        sums = [part.sum() for part in self.split(values).values()]
        counts = values.new_zeros(len(self.pools))
        if not sums:
            return counts
        layer_sums = torch.maximum(torch.stack(sums), floors)
        return counts.index_add(0, moved_to(values.device, self.pool_of_layer), layer_sums)

    def split(self, values: Tensor) -> dict[str, Tensor]:
        """Split a vector [n] into {sublayer name: [units]}, which `surgery.gated` takes."""
        parts = values.split(self._sizes)
        return {layer.name: part for layer, part in zip(self.gated, parts, strict=True)}

    def flat(self, mask: Mask) -> Tensor:
        """The units of a mask as gates of 0 and 1, [n] float32."""
        flags = [torch.tensor(mask.keep[x.name], dtype=torch.float32) for x in self.gated]
        return torch.cat(flags) if flags else torch.zeros(0)

    def score_values(self, values: Tensor) -> dict[str, tuple[float, ...]]:
        """The values of gates [n] as scores by sublayer; units without a gate get the largest."""
        scores = {name: tuple(part.tolist()) for name, part in self.split(values.detach()).items()}
        highest = max((score for row in scores.values() for score in row), default=0.0)
        return {x.name: scores.get(x.name, (highest,) * x.units) for x in self.layers}

    def exact_mask(self, values: Tensor) -> Mask:
        """The mask of exactly the wanted counts, by values [n] as scores.

        Floors are respected, and of units that are kept in groups the fewest that are no less stay.
        """
        assert self.keep is not None
        scores = Scores(self.score_values(values), "gates", "", {})
        return select(scores, Mask.full(self.layers), self.keep, self.floors, self.multiples)

    def mask_of(self, values: Tensor, opened: Tensor) -> Mask:
        """The mask that keeps all opened units, whatever their number.

        Args:
            values: [n]; where a sublayer would have less than its floor, the units with the largest
                values are kept.
            opened: bool, [n].
        """
        keep = dict(Mask.full(self.layers).keep)
        values_of, opened_of = self.split(values), self.split(opened)
        for layer, group in zip(self.gated, self.layer_groups, strict=True):
            best = values_of[layer.name].topk(group.count).indices
            keep[layer.name] = tuple(opened_of[layer.name].index_fill(0, best, True).tolist())
        return Mask(keep)


class Gates(ABC):
    """Base of the gates of a learned mask: one per unit of a layout, in one vector of n.

    Args:
        layout: the position of each unit's gate.
        values: [n], the learned parameters; larger means more important. In all methods, `progress`
            is the completed share of the training, 0 to 1.
    """

    def __init__(self, layout: GateLayout, values: Tensor) -> None:
        self.layout, self.values = layout, values.requires_grad_()

    @abstractmethod
    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups for the optimizer, see `compressor.training.loop.Problem.groups`."""

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that training changes, by name, for saving and resuming."""
        return {"values": self.values}

    @abstractmethod
    def draw(self, progress: float) -> Tensor:
        """Draw random gates for one batch, [n], differentiable in `values`.

        Noise comes from torch's generator of the CPU, so that it does not depend on the device.
        """

    @abstractmethod
    def without_noise(self, progress: float) -> Tensor:
        """The gates without their noise, [n]: what the training sees on average."""

    def penalty(self, progress: float) -> Tensor | float:
        """A term that is added to the loss of each batch, in nats."""
        return 0.0

    def mask_penalty(self, mask: Mask) -> float:
        """A term that is added to the held-out loss of a mask when masks are compared, in nats."""
        return 0.0

    def take_step(self) -> None:
        """Called when the gradients of a whole batch are computed, before parameters change."""
        return

    def mask(self) -> Mask:
        """The hard mask that the gates stand for now."""
        return self.layout.exact_mask(self.values)

    @abstractmethod
    def converged(self, progress: float) -> bool:
        """Whether the gates are near enough to a mask of the wanted size to validate it."""

    @abstractmethod
    def status(self, progress: float) -> str:
        """The state of the gates in a few words, for the line after every epoch."""

    @abstractmethod
    def signature(self) -> str:
        """The settings that change what is learned, `name:value` separated by `|`."""


def distance_from_hard(gates: Tensor) -> tuple[float, float]:
    """Largest and mean distance of gates [n] from the nearer of 0 and 1; (0, 0) without gates."""
    if not len(gates):
        return 0.0, 0.0
    distance = (gates - gates.round().clamp(0, 1)).detach().abs()
    return float(distance.max()), float(distance.mean())
