"""Second order: the error that remains when the other units compensate for a removed one.

Optimal Brain Surgeon (Hassibi & Stork 1993) for whole units, as in ZipLM (Kurtic et al. 2023). When
units S of y = W x + b are removed, the columns of the kept units K and the bias are solved for
again by least squares. The remaining error and the new weights are

    error(S) = tr(G . W_S (C_SS - C_SK C_KK^-1 C_KS) W_S^T),
    W_K <- W_K + W_S C_SK C_KK^-1,

where C is the damped covariance of the inputs x, and G = sum g g^T, g = dL/dy, is the sensitivity
of the loss in nats squared per row. A unit's score is the error it adds in the order of removal,
raised above those of all units before it. Neurons go in blocks with the least w G w / (C^-1)_jj.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from compressor import parallel
from compressor.errors import InputError
from compressor.importance import RawScores, ScoringJob, SecondOrder
from compressor.importance.gradients import visit_gradients
from compressor.model.memory import free_bytes
from compressor.model.modeling_pruned import unit_columns
from compressor.model.modes import hooks
from compressor.model.sublayers import Sublayer
from compressor.storage.input_files import MIB

# Share of the mean diagonal of C that is added to its diagonal, for directions with little variance
# in the calibration rows. A tenth and ten times of it are as good.
DAMPING = 1e-3
BLOCK = 32  # neurons that are removed together, as in ZipLM; smaller ones leave 4 % less error
_COMPACTED = 0.1  # share of removed neurons from which on the inverse is copied without them
# Ratio of successive scores that the running maximum raises, so that rounding keeps their order.
_STEP = 1 + 1e-9
_WIDE = 1024  # columns from which on sums are kept in single precision, to save memory
_PANEL = 256  # columns


class Moments:
    """Mean and covariance of x [rows, width], and cross-covariance with y [rows, other]."""

    def __init__(
        self,
        width: int,
        other: int = 0,
        device: torch.device | str = "cpu",
        precision: torch.dtype = torch.float64,
    ) -> None:
        self.rows = 0
        self.mean = torch.zeros(width, dtype=torch.float64, device=device)
        self.other_mean = torch.zeros(other, dtype=torch.float64, device=device)
        self._scatter = torch.zeros(width, width, dtype=precision, device=device)
        self._cross = torch.zeros(width, other, dtype=torch.float64, device=device)
        self._spread = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, x: Tensor, y: Tensor | None = None) -> None:
        x = x.float()
        y = x.new_zeros(len(x), 0) if y is None else y.float()
        if len(x) == 0:
            return
        mean, other_mean = x.mean(0), y.mean(0)
        x, y = x - mean, y - other_mean
        # The upper triangle of x^T x, block by block, without a copy of the sum.
        for start in range(0, x.shape[1], _PANEL):
            above = self._scatter[start : start + _PANEL, start:]
            left, right = x[:, start : start + _PANEL].T, x[:, start:]
            if above.dtype == x.dtype:
                above.addmm_(left, right)
            else:
                above += left @ right
        cross, spread = self._add_means(len(x), mean.double(), other_mean.double())
        self._cross += (x.T @ y).double() + cross
        self._spread += y.double().pow(2).sum() + spread

    def merge(self, more: Moments) -> None:
        if more.rows:
            self._scatter += more._scatter
            cross, spread = self._add_means(more.rows, more.mean, more.other_mean)
            self._cross += more._cross + cross
            self._spread += more._spread + spread

    def _add_means(self, rows: int, mean: Tensor, other_mean: Tensor) -> tuple[Tensor, Tensor]:
        """Update the means and x^T x for their shift; terms for x^T y and the squares of y."""
        shift, other_shift = mean - self.mean, other_mean - self.other_mean
        total = self.rows + rows
        weight = self.rows * rows / total
        in_precision = shift.to(self._scatter)
        self._scatter.addr_(in_precision, in_precision, alpha=weight)
        self.mean += shift * (rows / total)
        self.other_mean += other_shift * (rows / total)
        self.rows = total
        return weight * shift.outer(other_shift), weight * other_shift.pow(2).sum()

    def add_up_ranks(self) -> None:
        """Add the rows of all other ranks; sums are added up in double precision."""
        if parallel.size() == 1:
            return
        rows = parallel.total(self.rows)
        if rows == 0:
            return
        means = [self.rows / rows * mean for mean in (self.mean, self.other_mean)]
        parallel.add_up(*means)
        shift, other_shift = self.mean - means[0], self.other_mean - means[1]
        scatter = self._scatter.double().addr_(shift, shift, alpha=self.rows)
        self._cross += self.rows * shift.outer(other_shift)
        self._spread += self.rows * other_shift.pow(2).sum()
        parallel.add_up(scatter, self._cross, self._spread)
        self._scatter.copy_(scatter)
        (self.mean, self.other_mean), self.rows = means, rows

    def covariance(self, *, centered: bool = True) -> Tensor:
        """E[(x - mean)(x - mean)^T], or E[x x^T] if not `centered`; [width, width]."""
        moments = self._scatter / self.rows
        for start in range(_PANEL, len(moments), _PANEL):
            moments[start:, start - _PANEL : start] = moments[start - _PANEL : start, start:].T
        if not centered:
            mean = self.mean.to(moments)
            moments.addr_(mean, mean)
        return moments

    def cross_covariance(self, *, centered: bool = True) -> Tensor:
        """E[(x - mean)(y - mean)^T], or E[x y^T] if not `centered`; [width, other] float64."""
        moments = self._cross / self.rows
        return moments if centered else moments + self.mean.outer(self.other_mean)

    def other_square(self) -> float:
        """E[|y|^2]."""
        return float(self._spread / self.rows + self.other_mean.pow(2).sum())


def groups_within(scoring: ScoringJob, most: float | None = None) -> list[list[Sublayer]]:
    """The sublayers of each pass over the rows, by the bytes that their statistics take."""
    if most is None:
        free = free_bytes(scoring.device)
        most = math.inf if free is None else free / 2
    most = min(parallel.gather(most))  # all ranks make the same passes
    groups: list[list[Sublayer]] = []
    used = total = 0.0
    for layer in scoring.layers:
        weight: Any = scoring.model.get_submodule(layer.output).weight
        width, columns = weight.shape
        size = columns**2 * _precision(columns).itemsize + 8 * width**2
        total += size
        if not groups or used + size > most:
            groups.append([])
            used = 0.0
        groups[-1].append(layer)
        used += size
    if len(groups) > 1:
        scoring.report(
            f"  statistics of {len(scoring.layers)} sublayers need {total / MIB:,.0f} MiB, and "
            f"{most / MIB:,.0f} MiB are available: {len(groups)} passes over the rows"
        )
    return groups


def _precision(columns: int) -> torch.dtype:
    return torch.float32 if columns > _WIDE else torch.float64


def collect_statistics(
    scoring: ScoringJob, layers: Sequence[Sublayer] | None = None
) -> tuple[dict[str, tuple[Tensor, Tensor]], int]:
    """Covariance and sensitivity per layer name, of some layers or all, and the number of batches.

    The covariance is of the output projection's inputs over real tokens, [D, D], centered if the
    projection has a bias. G = sum over real tokens of g g^T, per row of the data, [width, width],
    with g the gradient of the summed loss at the projection's output: a layer's error is the joint
    effect of all its tokens on the loss of a row.
    """
    layers = scoring.layers if layers is None else layers
    rows = parallel.total(sum(len(next(iter(batch.values()))) for batch in scoring.batches))
    inputs: dict[str, Moments] = {}
    outputs: dict[str, Tensor] = {}
    output_gradients: dict[str, Tensor] = {}  # computed just before the gradient at the input

    def watch(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        output.register_hook(lambda gradient: output_gradients.update({name: gradient}))

    def add(layer: Sublayer, heads: Tensor, gradient: Tensor, real: Tensor) -> None:
        slopes = output_gradients.pop(layer.name)[real].float()  # [tokens, width]
        chosen = heads.flatten(-2)[real]  # [tokens, D]
        if layer.name not in inputs:
            (_, width), (_, columns), device = slopes.shape, chosen.shape, chosen.device
            inputs[layer.name] = Moments(columns, device=device, precision=_precision(columns))
            outputs[layer.name] = torch.zeros(width, width, dtype=torch.float64, device=device)
        inputs[layer.name].add(chosen)
        outputs[layer.name] += (slopes.T @ slopes).double()

    modules = {layer.name: scoring.model.get_submodule(layer.output) for layer in layers}
    with hooks(m.register_forward_hook(partial(watch, name)) for name, m in modules.items()):
        passes = visit_gradients(scoring, add, layers)
    statistics = {}
    for name, module in modules.items():
        moments = inputs.pop(name)
        moments.add_up_ranks()
        parallel.add_up(outputs[name])
        covariance = moments.covariance(centered=module.bias is not None)
        sensitivity = outputs[name] / rows
        require_finite(name, covariance, sensitivity)
        statistics[name] = covariance, sensitivity
    return statistics, passes


def require_finite(name: str, *moments: Tensor) -> None:
    if not all(bool(m.isfinite().all()) for m in moments):
        raise InputError(
            f"layer {name} produces NaN or infinite values on the calibration "
            "rows; check what the checkpoint answers in PyTorch, or use other rows",
            id="activations-not-finite",
        )


def add_damping(covariance: Tensor, damping: float) -> Tensor:
    """Add a share of the mean diagonal, or a tiny number if it is 0, to the diagonal, in place."""
    amount = damping * float(covariance.diagonal().mean()) if len(covariance) else 0.0
    covariance.diagonal().add_(amount or 1e-12)
    return covariance


def second_order_scores(method: SecondOrder, scoring: ScoringJob) -> RawScores:
    """The error that each unit adds in its sublayer's removal order; removed units score 0."""
    memory = method.statistics_memory
    groups = groups_within(scoring, None if memory is None else memory * 2**30)
    values, passes = {}, 0
    for number, group in enumerate(groups):

        def count(done: int, total: int, number: int = number) -> None:
            scoring.progress(number * total + done, len(groups) * total)

        statistics, made = collect_statistics(replace(scoring, progress=count), group)
        passes += made
        for layer in parallel.dealt(group):
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
    signature = f"damping:{DAMPING:g}|weighted:gradients"
    return RawScores(values, signature, forward_passes=passes, backward_passes=passes)


def removal_order(
    weight: Tensor,
    covariance: Tensor,
    sensitivity: Tensor,
    kept: list[int],
    head_dim: int,
    damping: float = DAMPING,
) -> list[tuple[int, float]]:
    """The order in which to remove the heads of one layer, and the error that each one adds.

    `weight` [width, D] in float64 is the output projection's, `covariance` [D, D] that of its
    inputs, and `sensitivity` is G [width, width]. Inputs of heads not in `kept` are zero.
    """
    weight, covariance, sensitivity = weight.cpu(), covariance.cpu(), sensitivity.cpu()
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
    """As `removal_order`, of neurons in blocks with equal shares; `weight` is [width, n]."""
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
