"""The configuration of a pruned checkpoint, with which transformers opens it without this package.

It names the class in `modeling_pruned.py`, which is copied beside the weights, and says how many
units each sublayer has kept. `compress` itself goes by `units.json`, and never runs the copy.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from compressor.model import modeling_pruned
from compressor.model.architectures import architecture_of
from compressor.model.sublayers import Mask, kind_of

MODELING = Path(modeling_pruned.__file__)
KEPT_UNITS = "kept_units"


def pruned_class(model: Any) -> Any:
    """The class of pruned models with the architecture of `model`, dense or pruned itself."""
    return modeling_pruned.pruned_class(type(model).__name__)


def pruned_config(model: Any, mask: Mask) -> Any:
    """A copy of a model's configuration, for the model with the units that `mask` keeps.

    Where it keeps all, the model is an ordinary one, and needs no code beside it.
    """
    entry, pruned = architecture_of(model), copy.deepcopy(model.config)
    name = pruned_class(model).__name__
    if all(map(all, mask.keep.values())):
        pruned.architectures = [name.removeprefix("Pruned")]
        return pruned
    pruned.architectures = [name]
    pruned.auto_map = {entry.auto_class: f"{MODELING.stem}.{name}"}
    pruned.kept_units = []
    for paths in entry.sublayers:
        counts = {name: n for name, n in mask.counts().items() if kind_of(name) == paths.kind}
        kept = [counts[f"{paths.kind}.{index}"] for index in range(len(counts))]
        pruned.kept_units.append(entry.full_paths(paths) | {"kept": kept})
    return pruned


def without_code(config: Any) -> None:
    """Drop from a configuration, in place, what makes transformers run the code beside it."""
    for name in ("auto_map", KEPT_UNITS):
        vars(config).pop(name, None)
