"""The configuration of a pruned checkpoint, with which transformers opens it without this package.

It names the class in `modeling_pruned.py`, which is copied beside the weights, and says how many
units each sublayer has kept. `compress` itself goes by `units.json`, and never runs the copy.
"""

from __future__ import annotations

import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compressor.model import modeling_pruned
from compressor.model.architectures import SublayerPaths, architecture
from compressor.model.sublayers import Mask, kind_of

MODELING = Path(modeling_pruned.__file__)
KEPT_UNITS = "kept_units"


def pruned_class(model_type: str) -> Any:
    """The class of pruned models of an architecture."""
    return modeling_pruned.CLASSES[model_type]


def pruned_config(config: Any, mask: Mask) -> Any:
    """A copy of a dense model's configuration, for the model with the units that `mask` keeps."""
    entry, pruned = architecture(config.model_type), copy.deepcopy(config)
    name = pruned_class(config.model_type).__name__
    pruned.architectures = [name]
    pruned.auto_map = {entry.auto_class: f"{MODELING.stem}.{name}"}
    pruned.kept_units = [_kept(paths, mask) for paths in entry.sublayers]
    return pruned


def without_code(config: Any) -> None:
    """Drop from a configuration, in place, what makes transformers run the code beside it."""
    for name in ("auto_map", KEPT_UNITS):
        vars(config).pop(name, None)


def _kept(paths: SublayerPaths, mask: Mask) -> dict[str, Any]:
    of_kind = {name: n for name, n in mask.counts().items() if kind_of(name) == paths.kind}
    counts = {int(name.rpartition(".")[2]): n for name, n in of_kind.items()}
    kept = [counts[index] for index in sorted(counts)]
    return asdict(paths) | {"inputs": list(paths.inputs.values()), "kept": kept}
