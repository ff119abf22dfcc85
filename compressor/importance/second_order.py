"""Second order: the error that remains when the other units compensate for a removed one.

Optimal Brain Surgeon (Hassibi & Stork 1993) for whole units, as in ZipLM (Kurtic et al. 2023).
An output projection computes y = W x + b. When units S are removed, the columns of the kept units K
and the bias are solved for again by least squares. The remaining error and the new weights are

    error(S) = tr(G . W_S (C_SS - C_SK C_KK^-1 C_KS) W_S^T),
    W_K <- W_K + W_S C_SK C_KK^-1,

where C is the damped covariance of the inputs x, and G = sum g g^T, g = dL/dy, is the sensitivity
of the loss in nats squared per row. G makes layers and kinds of attention comparable.

Heads are removed one at a time, the one that adds the least error first, and after each removal
the errors of the others are computed again: this is the sublayer's removal order. A unit's score is
the error it adds, raised above those of all units before it (running maximum), so that ascending
scores remove the units of a sublayer in this order. Scores are comparable across sublayers, so they
are not normalized.

Neurons are removed in blocks of `BLOCK` with the least individual error, which is w G w / (C^-1)_jj
for the column w of neuron j; the neurons of a block share the block's joint error equally.

Cost: one forward and one backward pass (several of both where the statistics of all sublayers do
not fit into memory, see `statistics.groups_within`), per attention and head one solve of up to
(heads x head_dim) unknowns, and per feed-forward part n^2 x (width + n) / 3 multiply-adds for n
neurons: five seconds for 3,072 on one core.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from compressor import parallel
from compressor.importance import RawScores, ScoringJob, ScoringMethod
from compressor.options.declare import option

if TYPE_CHECKING:
    from torch import Tensor

    from compressor.importance.statistics import LayerStatistics
    from compressor.model.sublayers import Sublayer

# Ratio of successive scores that the running maximum raises, so that rounding keeps their order.
_STEP = 1 + 1e-9


class SecondOrder(ScoringMethod):
    """Error that remains after reconstruction from the other units."""

    name: ClassVar[str] = "second-order"

    statistics_memory: float | None = option(
        None,
        gt=0,
        allow_inf_nan=False,
        help="GiB for the statistics of sublayers that are held at the same time; where all need "
        "more, there are several passes over the rows, with the same scores. Default: half of the "
        "free memory.",
    )

    def score(self, scoring: ScoringJob) -> RawScores:
        """The error that each unit adds in its sublayer's removal order; removed units score 0."""
        from compressor.importance.removal_order import DAMPING
        from compressor.importance.statistics import collect_statistics, groups_within

        memory = self.statistics_memory
        groups = groups_within(scoring, None if memory is None else memory * 2**30)
        values, passes = {}, 0
        for number, group in enumerate(groups):

            def count(done: int, total: int, number: int = number) -> None:
                scoring.progress(number * total + done, len(groups) * total)

            statistics, made = collect_statistics(replace(scoring, progress=count), group)
            passes += made
            for layer in parallel.dealt(group):
                scores = [0.0] * layer.units
                highest = 0.0
                # Popped, since statistics are large and not needed after this.
                for unit, growth in _removal_order(scoring, layer, statistics.pop(layer.name)):
                    highest = max(growth, highest * _STEP, math.nextafter(highest, math.inf))
                    scores[unit] = highest
                values[layer.name] = scores
        for others in parallel.gather(values):
            values |= others
        signature = f"damping:{DAMPING:g}|weighted:gradients"
        return RawScores(values, signature, forward_passes=passes, backward_passes=passes)


def _removal_order(
    scoring: ScoringJob, layer: Sublayer, statistics: LayerStatistics
) -> list[tuple[int, float]]:
    from compressor.importance.removal_order import block_removal_order, removal_order

    weight: Tensor = scoring.model.get_submodule(layer.output).weight  # type: ignore[assignment]
    weight, kept = weight.detach().double(), scoring.mask.kept(layer.name)
    covariance, sensitivity = statistics.covariance, statistics.sensitivity
    if layer.unit_width == 1:
        return block_removal_order(weight, covariance, sensitivity, kept)
    tensors = weight.cpu(), covariance.cpu(), sensitivity.cpu()
    return removal_order(*tensors, kept, layer.unit_width)
