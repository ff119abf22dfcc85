"""Pruned checkpoints that `compress export --layout optimum` takes."""

from __future__ import annotations

from pathlib import Path

from compressor.model.checkpoint import open_checkpoint
from compressor.model.saving import save_checkpoint
from compressor.model.sublayers import Mask, Sublayer
from compressor.model.surgery import prune
from tests.helpers import toy
from tests.helpers.tiny import TRANSLATORS, uneven_mask


def cached_mask(layers: list[Sublayer]) -> Mask:
    """The uneven mask, with caches in every decoder layer: 1 and 4 heads where it has none."""
    keep = dict(uneven_mask(layers).keep)
    last = max(layer.index for layer in layers if layer.kind == "cross")
    keep[f"decoder_self.{last}"] = (False, True, False, False)
    keep[f"cross.{last}"] = (True,) * 4
    return Mask(keep)


def save_pruned(name: str, root: Path, mask_name: str = "cached") -> Path:
    """A checkpoint as `compress prune` writes it."""
    build = toy.translator if name in TRANSLATORS else toy.classifier
    dense = open_checkpoint(str(build(root / "dense", name)))
    chosen = cached_mask if mask_name == "cached" and name in TRANSLATORS else uneven_mask
    mask = chosen(dense.layers)
    heads = {"kept": mask.to_json(), "units": {x.name: x.units for x in dense.layers}}
    save_checkpoint(dense, prune(dense.model, dense.layers, mask), heads, root / "pruned")
    return root / "pruned"
