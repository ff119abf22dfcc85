"""Statistics of sublayers: means, covariances, and the sensitivity of the loss.

`second-order` and `reconstruct` solve their least squares with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from compressor import parallel
from compressor.errors import InputError
from compressor.importance import ScoringJob
from compressor.importance.gradients import visit_gradients
from compressor.model.memory import free_bytes
from compressor.model.modes import hooks
from compressor.model.sublayers import Sublayer
from compressor.storage.input_files import MIB

_WIDE = 1024  # columns from which on sums are kept in single precision, to save memory
_PANEL = 256  # columns of a block of x^T x, of which only the upper triangle is computed


class Moments:
    """Mean and covariance of rows x, and their covariance with rows y, summed up batch by batch.

    Args:
        width: columns of x.
        other: columns of y; 0 if there is no y.
        device: where the sums are kept.
        precision: of the sums of products of x; all other sums are in float64.
    """

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
        """Add x [rows, width], and y [rows, other] where there is one."""
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
        """Add the rows that `more` has seen."""
        if more.rows:
            self._scatter += more._scatter
            cross, spread = self._add_means(more.rows, more.mean, more.other_mean)
            self._cross += more._cross + cross
            self._spread += more._spread + spread

    def _add_means(self, rows: int, mean: Tensor, other_mean: Tensor) -> tuple[Tensor, Tensor]:
        """Update the means and the scatter of x for the shift of the mean by new rows.

        Args:
            rows: the number of new rows.
            mean: of their x, [width].
            other_mean: of their y, [other].

        Returns:
            The terms that the shift adds to the sums of products x^T y [width, other] and of
            squares of y.
        """
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
        """E[(x - mean)(x - mean)^T], or E[x x^T] if not `centered`.

        Returns:
            [width, width], in the precision of the sums.
        """
        moments = self._scatter / self.rows
        for start in range(_PANEL, len(moments), _PANEL):
            moments[start:, start - _PANEL : start] = moments[start - _PANEL : start, start:].T
        if not centered:
            mean = self.mean.to(moments)
            moments.addr_(mean, mean)
        return moments

    def cross_covariance(self, *, centered: bool = True) -> Tensor:
        """E[(x - mean)(y - mean)^T], or E[x y^T] if not `centered`; [width, other] in float64."""
        moments = self._cross / self.rows
        return moments if centered else moments + self.mean.outer(self.other_mean)

    def other_square(self) -> float:
        """E[|y|^2], the mean squared norm of the rows y."""
        return float(self._spread / self.rows + self.other_mean.pow(2).sum())


def groups_within(scoring: ScoringJob, most: float | None = None) -> list[list[Sublayer]]:
    """Group the sublayers whose statistics are collected in the same pass over the rows.

    One pass per group gives the same statistics to the bit as one pass for all.

    Args:
        scoring: the model and its sublayers.
        most: bytes for the statistics of a pass, by default half of the free memory. A sublayer
            that needs more has a pass of its own.

    Returns:
        All sublayers in their order, the same groups on every rank.
    """
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
    """Covariance and sensitivity of sublayers, from a forward and a backward pass over the rows.

    The sensitivity is per row and not per token, so that a layer's error is the joint effect of all
    its tokens on the loss of a row; layers that see more tokens (a longer source) weigh more.

    Args:
        scoring: the model and the calibration batches.
        layers: the sublayers to look at; by default all of `scoring.layers`.

    Returns:
        Sublayer name -> (covariance, sensitivity), and the number of batches on all ranks. The
        covariance is of the output projection's inputs over real tokens, [D, D], centered if the
        projection has a bias. The sensitivity G, [width, width], is the sum over real tokens of
        g g^T divided by the rows, with g the gradient of the summed loss at the projection's
        output.

    Raises:
        InputError: inputs or gradients of a sublayer are not finite.
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
            columns = chosen.shape[1]
            width = slopes.shape[1]
            device = chosen.device
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
    """Raise `InputError` if statistics of the sublayer of that name hold NaN or infinity."""
    if not all(bool(m.isfinite().all()) for m in moments):
        raise InputError(
            f"layer {name} produces NaN or infinite values on the calibration "
            "rows; check what the checkpoint answers in PyTorch, or use other rows",
            id="activations-not-finite",
        )


def add_damping(covariance: Tensor, damping: float) -> Tensor:
    """Add a share of the mean diagonal, or a tiny number if it is 0, to the diagonal, in place.

    Args:
        covariance: [n, n].
        damping: the share.

    Returns:
        The same tensor.
    """
    amount = damping * float(covariance.diagonal().mean()) if len(covariance) else 0.0
    covariance.diagonal().add_(amount or 1e-12)
    return covariance
