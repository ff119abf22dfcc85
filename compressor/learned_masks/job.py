"""What learning a mask starts from, and what it gives; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from compressor.budgets.units import MULTIPLES, Multiples
from compressor.model.sublayers import Mask, Scores, Sublayer

if TYPE_CHECKING:
    from torch import nn

    from compressor.tasks import Example, Task

Weights = Literal["none", "encoder", "all"]
Estimator = Literal["gumbel", "straight-through"]


@dataclass(frozen=True, kw_only=True)
class Learning:
    """Everything that learning a mask may use.

    Args:
        model: dense; never changed, a copy is trained where weights are.
        examples: calibration rows; a tenth is held out to validate on.
        layers: the sublayers that a mask is made for.
        keep: units to keep per pool: `heads`, `neurons` or a kind of sublayer; those of other
            sublayers stay and get no gate. None with a penalty, which is for heads.
        floors: least number of units in each sublayer of a kind.
        multiples: of how many units the mask keeps a multiple in each sublayer.
        weights: which weights are trained along with the gates: none; those of the encoder alone
            (a classifier's are all but its classification head); or all.
        epochs: over the calibration rows, in all.
        learning_rate: of the weights.
        patience: epochs without a lower held-out loss after which training stops; counted once
            the wanted number of units is reached.
        state: file to go on from if it is there, and to save to; with trained weights there is a
            second one beside it.
        report: called with a line after every epoch.
        progress: called with (steps done, steps in all).
    """

    model: nn.Module
    layers: Sequence[Sublayer]
    examples: Sequence[Example]
    task: Task
    keep: Mapping[str, int] | None
    floors: Mapping[str, int]
    multiples: Multiples = field(default_factory=lambda: MULTIPLES)
    weights: Weights = "none"
    epochs: int = 20
    batch_size: int = 32
    learning_rate: float = 1e-4
    patience: int = 2
    seed: int = 0
    device: str = "cpu"
    state: Path | None = None
    report: Callable[[str], None] = field(default=lambda line: None)
    progress: Callable[[int, int], None] = field(default=lambda done, total: None)


@dataclass(frozen=True)
class Learned:
    """A mask that was learned.

    Args:
        scores: what the gates learned per unit, higher is kept; units without a gate have the
            largest score.
        model: the weights that belong to the mask: `Learning.model` itself if none were trained.
        text: what was done and how far the gates were from open or closed, for the report.
    """

    mask: Mask
    scores: Scores
    model: nn.Module
    text: str
