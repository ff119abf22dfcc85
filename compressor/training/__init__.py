"""The training that learned masks and distillation share; here its data and its options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.model.sublayers import Sublayer
from compressor.options.declare import option

if TYPE_CHECKING:
    from compressor.tasks import Example, Objective

LEAST_PATIENCE = 2
PATIENCE: Any = option(
    None,
    panel="Recovery",
    help="Training stops after so many epochs without gain. Default: a third of --distill-epochs, "
    f"at least {LEAST_PATIENCE}; {LEAST_PATIENCE} for learned masks.",
)


def rate_option(only_with: str | None = None) -> Any:
    """Declare the option for the learning rate of weights; None stands for the task's own.

    Args:
        only_with: the option without which it has no effect.
    """
    return option(
        None,
        only_with=only_with,
        panel="Recovery",
        help="Learning rate of weights that are trained. Default: 0.0001 for encoder-decoders, "
        "0.0005 with --distill-text, 0.00005 for encoders with a head, 0.0002 for classifiers with "
        "--distill-text and for sentence encoders.",
    )


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """The data and the surroundings of a learned mask or of a recovery."""

    layers: Sequence[Sublayer]  # of the dense model, or those of the mask
    task: Objective
    examples: Sequence[Example]  # calibration rows
    seed: int = 0
    device: str = "cpu"  # where to compute; models are moved there and back
    state: Path | None = None  # file to resume training from and to save to
    report: Callable[[str], None] = field(default=lambda line: None)  # called with lines of text
    # Called with (steps done, total steps); the method defines a step.
    progress: Callable[[int, int], None] = field(default=lambda done, total: None)
