"""Pruned checkpoints that `compress export --layout optimum` takes."""

from __future__ import annotations

from pathlib import Path

from compressor.model.architectures import architecture
from compressor.model.sublayers import Mask, Sublayer
from tests.helpers import toy
from tests.helpers.tiny import uneven_mask


def cached_mask(layers: list[Sublayer]) -> Mask:
    """The uneven mask, with caches in every decoder layer: 1 and 4 heads where it has none."""
    keep = dict(uneven_mask(layers).keep)
    last = max(layer.index for layer in layers if layer.kind == "cross")
    keep[f"decoder_self.{last}"] = (False, True, False, False)
    keep[f"cross.{last}"] = (True,) * 4
    return Mask(keep)


def save_pruned(name: str, root: Path) -> Path:
    """A checkpoint as `compress prune` writes it."""
    chosen = uneven_mask if architecture(name).decoder is None else cached_mask
    return toy.pruned(toy.checkpoint(root / "dense", name), root / "pruned", chosen)
