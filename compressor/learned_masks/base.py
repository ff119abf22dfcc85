"""The interface of learned masks: relaxed gates that become a hard mask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from compressor.learned_masks.layout import GateLayout
from compressor.model.sublayers import Mask


class Gates(ABC):
    """Gates of the units of a layout, with learned parameters.

    `progress` is the completed share of the training steps.
    """

    def __init__(self, layout: GateLayout) -> None:
        self.layout = layout

    @abstractmethod
    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups, see `compressor.training.Problem.groups`."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All tensors that training changes, by name."""

    @abstractmethod
    def draw(self, progress: float) -> Tensor:
        """Random gates for one batch, [n]; noise from torch's generator of the CPU."""

    @abstractmethod
    def without_noise(self, progress: float) -> Tensor:
        """The gates without their noise, [n]: the average gates of the training."""

    def penalty(self, progress: float) -> Tensor | None:
        """A term added to the loss; None for none."""
        return None

    def mask_penalty(self, mask: Mask) -> float:
        """A term added to the held-out loss of a mask when masks are compared."""
        return 0.0

    def take_step(self) -> None:
        """Called when the gradients of a whole batch are computed."""
        return

    @abstractmethod
    def scores(self) -> Tensor:
        """[n], higher is kept."""

    @abstractmethod
    def mask(self) -> Mask:
        """The current hard mask."""

    @abstractmethod
    def converged(self, progress: float) -> bool:
        """Whether the gates are near enough to a mask of the wanted size to evaluate it."""

    @abstractmethod
    def status(self, progress: float) -> str:
        """A short description of the gates, for the line after every epoch."""

    @abstractmethod
    def signature(self) -> str:
        """The settings that change the result."""


def distance_from_hard(gates: Tensor) -> tuple[float, float]:
    """Largest and mean distance of gates from the nearer of 0 and 1; (0, 0) without gates."""
    if not len(gates):
        return 0.0, 0.0
    distance = (gates - gates.round().clamp(0, 1)).detach().abs()
    return float(distance.max()), float(distance.mean())
