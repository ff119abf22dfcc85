"""Second order: the error that remains when the other units compensate for a removed one.

Optimal Brain Surgeon (Hassibi & Stork 1993) for whole units, as in ZipLM (Kurtic et al. 2023). When
units S of y = W x + b are removed, the columns of the kept units K and the bias are solved for
again by least squares. The remaining error and the new weights are

    error(S) = tr(G . W_S (C_SS - C_SK C_KK^-1 C_KS) W_S^T),
    W_K <- W_K + W_S C_SK C_KK^-1,

where C is the damped covariance of the inputs x, and G = sum g g^T, g = dL/dy, is the sensitivity
of the loss in nats squared per row. G makes layers and kinds of sublayers comparable, so scores are
not normalized.

Heads are removed one at a time, the one that adds the least error first; after each removal, errors
of the others are computed again. A unit's score is the error it adds in this order, raised above
those of all units before it (running maximum), so that ascending scores repeat the order. Neurons
are removed in blocks of `BLOCK`, those with the least error w G w / (C^-1)_jj of their own, where w
is the column of neuron j; the block's error is shared equally.

The cost is one forward and one backward pass per group of sublayers (`groups_within`); per head of
an attention sublayer a solve of up to (heads x head_dim) unknowns; and per feed-forward part
n^2 x (width + n) / 3 multiply-adds for n neurons.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from compressor import parallel
from compressor.importance import RawScores, ScoringJob, SecondOrder
from compressor.importance.statistics import add_damping, collect_statistics, groups_within
from compressor.importance.token_scores import runs_for_tokens, token_scores
from compressor.model.modeling_pruned import unit_columns

# Share of the mean diagonal of C that is added to its diagonal, for directions with little variance
# in the calibration rows. A tenth and ten times of it are as good.
DAMPING = 1e-3
BLOCK = 32  # neurons that are removed together, as in ZipLM; smaller ones leave 4 % less error
_COMPACTED = 0.1  # share of removed neurons from which on the inverse is copied without them
# Ratio of successive scores that the running maximum raises, so that rounding keeps their order.
_STEP = 1 + 1e-9


def second_order_scores(method: SecondOrder, scoring: ScoringJob) -> RawScores:
    """The error that each unit adds in its sublayer's removal order, in nats squared per row.

    Args:
        method: its `statistics_memory` is in GiB.
        scoring: the model and the calibration batches.

    Returns:
        Scores that rise strictly in the order of removal; units that the mask removes have 0. Where
        the mask has tokens, they have scores, too.

    Raises:
        InputError: inputs or gradients of a sublayer are not finite.
    """
    memory = method.statistics_memory
    groups = groups_within(scoring, None if memory is None else memory * 2**30)
    of_tokens = runs_for_tokens(scoring)
    values, passes = {}, 0
    batches = len(scoring.batches)
    runs = len(groups) + of_tokens

    def count_from(first: int) -> Callable[[int, int], None]:
        return lambda done, _: scoring.progress(first * batches + done, runs * batches)

    for number, group in enumerate(groups):
        statistics, made = collect_statistics(replace(scoring, progress=count_from(number)), group)
        passes += made
        for layer in parallel.round_robin(group):
            projection: Any = scoring.model.get_submodule(layer.output)
            weight, kept = projection.weight.detach().double(), scoring.mask.kept(layer.name)
            moments = statistics.pop(layer.name)  # they are large, and not needed after this
            if layer.is_attention:
                order = removal_order(weight, *moments, kept, layer.unit_width)
            else:
                order = block_removal_order(weight, *moments, kept)
            scores, highest = [0.0] * layer.units, 0.0
            for unit, growth in order:
                highest = max(growth, highest * _STEP, math.nextafter(highest, math.inf))
                scores[unit] = highest
            values[layer.name] = scores
    for others in parallel.gather(values):
        values |= others
    if of_tokens:
        values |= token_scores(replace(scoring, progress=count_from(len(groups))))
    return RawScores(
        values,
        f"damping:{DAMPING:g}|weighted:gradients",
        forward_passes=passes + parallel.total(of_tokens * batches),
        backward_passes=passes,
    )


def removal_order(
    weight: Tensor,
    covariance: Tensor,
    sensitivity: Tensor,
    kept: list[int],
    head_dim: int,
    damping: float = DAMPING,
) -> list[tuple[int, float]]:
    """The order in which to remove the heads of one sublayer, and the error that each one adds.

    Args:
        weight: of the output projection, [width, D] in float64, D = all heads x head_dim.
        covariance: of its inputs, [D, D].
        sensitivity: G, [width, width], symmetric.
        kept: the heads that are left; inputs of all others are zero.
        head_dim: columns of a head.
        damping: share of the mean diagonal of the covariance that is added to its diagonal.

    Returns:
        (head, increase of the error) for each of `kept`, in the order of removal. The first k
        increases add up to the error of removing these k heads at once with the best weights.
    """
    weight = weight.cpu()
    covariance = covariance.cpu()
    sensitivity = sensitivity.cpu()
    columns = unit_columns(kept, head_dim)
    dense = weight[:, columns]
    moments = add_damping(covariance[columns][:, columns].double(), damping)
    left, order = list(range(len(kept))), []  # positions in `kept`
    while left:
        columns = unit_columns(left, head_dim)
        inverse = torch.linalg.inv(moments[columns][:, columns])
        reconstructed = dense @ moments[:, columns] @ inverse  # [width, left x head_dim]
        # tr(G W_h [(C^-1)_hh]^-1 W_h^T) for every head h that is left
        heads = reconstructed.unflatten(1, (-1, head_dim)).transpose(0, 1)
        weighted = heads.mT @ (sensitivity @ heads)  # [left, head_dim, head_dim]
        blocks = inverse.unflatten(1, (-1, head_dim)).unflatten(0, (-1, head_dim))
        diagonal = blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)  # [left, head_dim, head_dim]
        traces = torch.linalg.solve(diagonal, weighted).diagonal(dim1=1, dim2=2).sum(-1)
        growths = traces.clamp_min(0)  # [left]
        least = int(growths.argmin())
        order.append((kept[left.pop(least)], float(growths[least])))
    return order


def block_removal_order(
    weight: Tensor,
    covariance: Tensor,
    sensitivity: Tensor,
    kept: list[int],
    block: int = BLOCK,
    damping: float = DAMPING,
) -> list[tuple[int, float]]:
    """The order in which to remove the neurons of one feed-forward part, in blocks.

    Args:
        weight: of the projection down, [width, n] in float64.
        covariance: of its inputs, [n, n].
        sensitivity: G, [width, width], symmetric.
        kept: the neurons that are left; inputs of all others are zero.
        block: neurons that are removed together; the first block is the remainder.
        damping: share of the mean diagonal of the covariance that is added to its diagonal.

    Returns:
        (neuron, increase of the error) for each of `kept`, in the order of removal; the neurons of
        a block have equal shares of its increase.
    """
    if not kept:
        return []
    index = torch.tensor(kept, device=weight.device)
    # (C + damping)^-1 of the kept neurons, in little memory beside the result.
    chosen = covariance if len(kept) == len(covariance) else covariance[index][:, index]
    matrix = add_damping(chosen.to(torch.float64, copy=True), damping)
    factor = torch.linalg.cholesky(matrix)
    del chosen, matrix  # each as large as the result
    inverse = torch.cholesky_inverse(factor)
    del factor
    values, vectors = torch.linalg.eigh(sensitivity)
    root = values.clamp_min(0).sqrt()[:, None] * vectors.T  # root^T root = sensitivity
    columns = root @ weight[:, index]  # [width, left]; updated after each block
    remaining = torch.ones(len(kept), dtype=torch.bool, device=weight.device)
    order = []
    growths = []
    left = len(kept)
    while left:
        size = left % block or block
        errors = columns.square().sum(0) / inverse.diagonal()
        chosen = errors.where(remaining, torch.inf).argsort(stable=True)[:size]
        within, across = inverse[chosen][:, chosen], inverse[chosen]  # [size, size], [size, left]
        removed = columns[:, chosen]
        growths.append((torch.linalg.solve(within, removed.T) * removed.T).sum())
        order.append(index[chosen])
        remaining[chosen] = False
        left -= size
        update = torch.linalg.solve(within, across)  # [size, left]
        columns.addmm_(removed, update, alpha=-1)
        inverse.addmm_(across.T, update, alpha=-1)
        if left and len(index) - left >= _COMPACTED * len(index):
            compact = remaining.nonzero().squeeze(1)  # a copy costs as much as a block's update
            index, remaining = index[compact], remaining[compact]
            columns, inverse = columns[:, compact], inverse[compact][:, compact]
    shares = [
        max(growth, 0.0) / len(units)
        for growth, units in zip(torch.stack(growths).tolist(), order, strict=True)
    ]
    return [(x, share) for units, share in zip(order, shares, strict=True) for x in units.tolist()]
