"""What learned masks and recoveries share: the data they are given, and options of a training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.model.sublayers import Sublayer
from compressor.options.declare import option

if TYPE_CHECKING:
    from compressor.tasks import Example, Objective

PATIENCE: Any = option(
    2, panel="Recovery", help="Training stops after so many epochs without gain."
)


def rate_option(only_with: str | None = None) -> Any:
    """Learning rate of weights; None is the task's, see `Task.learning_rate`."""
    return option(
        None,
        gt=0,
        allow_inf_nan=False,
        only_with=only_with,
        panel="Recovery",
        help="Learning rate of weights that are trained. Default: 0.0001 for encoder-decoders, "
        "0.0005 with --distill-text, 0.00005 for encoders with a head, 0.0002 for classifiers with "
        "--distill-text and for sentence encoders.",
    )


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """The data that a mask is learned from, or a model repaired with.

    Args:
        layers: of the dense model, or those that a mask is made for.
        examples: calibration rows as `task.encode` gives them.
        device: where to compute; models are brought there and back.
        state: file from which a stopped training goes on, and to save to.
        report: called with a line now and then.
        progress: called with (steps done, steps in all); what a step is, the method decides.
    """

    layers: Sequence[Sublayer]
    task: Objective
    examples: Sequence[Example]
    seed: int = 0
    device: str = "cpu"
    state: Path | None = None
    report: Callable[[str], None] = field(default=lambda line: None)
    progress: Callable[[int, int], None] = field(default=lambda done, total: None)
