"""The order in which to remove the units of one sublayer: least remaining error first.

See `compressor.importance.second_order` for the mathematics.
"""

from __future__ import annotations

import torch
from torch import Tensor

from compressor.importance.statistics import add_damping
from compressor.model.modeling_pruned import unit_columns

# Share of the mean diagonal of C that is added to its diagonal, for directions with little variance
# in the calibration rows. Reconstructing a translator on 1,000 rows, anything from 0.01 % to 1 %
# ended within 0.001 nats per token of loss on other rows; 5 % was worse.
DAMPING = 1e-3
# Neurons that are removed together, as in ZipLM. With 25, 50 or 75 % of a feed-forward part of the
# bundled translator removed, blocks of 8 left at most 3.4 % less error than blocks of 32, and one
# neuron at a time at most 3.6 % less, for 1.2 and 2.8 times the time.
BLOCK = 32
# Share of removed neurons from which on the inverse is copied without them.
_COMPACTED = 0.1


def removal_order(
    weight: Tensor,
    covariance: Tensor,
    sensitivity: Tensor,
    kept: list[int],
    head_dim: int,
    damping: float = DAMPING,
) -> list[tuple[int, float]]:
    """The order in which to remove the heads of one layer, and the error that each one adds.

    Args:
        weight: of the output projection, [width, D], D = all heads x head_dim, float64.
        covariance: of its inputs, [D, D]; in single precision where D is large.
        sensitivity: G, [width, width], symmetric.
        kept: the heads to order; the inputs of all others are zero.

    Returns:
        (head, growth of the error) in order of removal. The growths of the first k add up to the
        error of removing these k heads at once, after reconstruction.
    """
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
        weight: of the projection down, [width, n], float64.
        covariance, sensitivity, kept: as for `removal_order`.
        block: neurons removed together; the first block has the remainder.

    Returns:
        (neuron, growth of the error) in order of removal; the neurons of a block share its growth
        equally.
    """
    if not kept:
        return []
    index = torch.tensor(kept, device=weight.device)
    inverse = _damped_inverse(covariance, index, damping)
    values, vectors = torch.linalg.eigh(sensitivity)
    root = values.clamp_min(0).sqrt()[:, None] * vectors.T  # root^T root = sensitivity
    columns = root @ weight[:, index]  # [width, left]; updated after each block
    remaining = torch.ones(len(kept), dtype=torch.bool, device=weight.device)
    order, growths, left = [], [], len(kept)
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


def _damped_inverse(covariance: Tensor, index: Tensor, damping: float) -> Tensor:
    """(C + damping)^-1 of some rows and columns, float64; needs little memory beside the result."""
    chosen = covariance if len(index) == len(covariance) else covariance[index][:, index]
    matrix = add_damping(chosen.to(torch.float64, copy=True), damping)
    factor = torch.linalg.cholesky(matrix)
    del matrix  # as large as the result
    return torch.cholesky_inverse(factor)
