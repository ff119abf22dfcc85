"""The weights of an earlier run's artifact, to start training from."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

from torch import nn

from compressor.errors import InputError
from compressor.model.checkpoint import open_checkpoint
from compressor.model.depth import names_without_skipped
from compressor.model.sublayers import Mask


def with_earlier_weights(pruned: nn.Module, mask: Mask, directory: Path) -> nn.Module:
    """A copy of a pruned model with the weights of an artifact that keeps the same units.

    Args:
        mask: the units of the dense model that `pruned` keeps.
        directory: of the artifact.

    Raises:
        InputError: it is no pruned checkpoint, keeps other units, or has other shapes.
    """
    earlier = open_checkpoint(str(directory))
    if earlier.pruning is None or earlier.pruning.mask != mask:
        has = "no units.json" if earlier.pruning is None else str(earlier.pruning.mask)
        raise InputError(
            f"--distill-start {directory} keeps other units ({has}) than this pruned model "
            f"({mask}); use the options of that run, or leave --distill-start out",
            id="start-other-units",
        )
    model = deepcopy(pruned)
    weights, names = earlier.model.state_dict(), names_without_skipped(pruned)
    shapes = {names[name]: tensor.shape for name, tensor in model.state_dict().items()}
    if shapes != {name: weight.shape for name, weight in weights.items()}:
        raise InputError(
            f"--distill-start {directory} has weights of other shapes than this pruned model: it "
            "was made from another model, or with another --source-text; leave --distill-start out",
            id="start-other-shapes",
        )
    model.load_state_dict({name: weights[names[name]] for name in names})
    return model
