"""Magnitude: the Frobenius norm of a unit's block of the output projection. Needs no data."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from compressor.importance import NormalizedMethod, RawScores, ScoringJob

if TYPE_CHECKING:
    from torch import Tensor


class Magnitude(NormalizedMethod):
    """Norm of the unit's weights in the output projection."""

    needs_rows: ClassVar[bool] = False
    name: ClassVar[str] = "magnitude"

    def score(self, scoring: ScoringJob) -> RawScores:
        values = {}
        for layer in scoring.layers:
            weight: Tensor = scoring.model.get_submodule(layer.output).weight.detach()  # type: ignore[operator]
            blocks = weight.unflatten(1, (layer.units, layer.unit_width))  # [width, units, columns]
            norms = blocks.float().pow(2).sum((0, 2)).sqrt().cpu()
            values[layer.name] = (norms * norms.new_tensor(scoring.mask.keep[layer.name])).tolist()
        return RawScores(values, "block:output_projection")
