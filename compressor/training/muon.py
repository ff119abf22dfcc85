"""Muon (Jordan et al. 2024) for the matrices of Transformer layers, AdamW for everything else.

AdamW scales each weight's step by itself. Muon takes the momentum of a whole matrix, U S V^T, and
steps along U V^T, so that rare directions learn as fast as frequent ones. docs/recovery.md has
measurements.

`torch.optim.Muon` does the same, but always in bfloat16, which is slower than the rest of a step on
processors without bfloat16 products, and without shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from compressor import parallel
from compressor.parallel import sharding
from compressor.training.optimizer import RowAdamW
from compressor.training.precision import Precision, has_bf16

MOMENTUM = 0.95
_ITERATIONS = 3  # two more gain less than they take, see docs/recovery.md


class MuonAdamW(RowAdamW):
    """Muon for the groups that have `muon`, a precision; `RowAdamW` for all others.

    With exact singular values a step would have the root mean square of one of AdamW's, 0.2 times
    the learning rate, so that the same rates suit both (Liu et al. 2025, "Muon is scalable for LLM
    training"). After three iterations it has half to nine tenths of that.

    Args:
        groups: as for AdamW; those with `muon` have matrices, orthogonalized in that precision (in
            fp32 where the device has no bf16 products, since emulated ones take 30 times as long).
        tables: as for `RowAdamW`.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        groups = [group for group in self.param_groups if group.get("muon")]
        gradients = {p: p.grad for g in groups for p in g["params"] if p.grad is not None}
        for matrix in gradients:
            matrix.grad = None  # so that AdamW skips it
        super().step()
        for matrix, gradient in gradients.items():
            matrix.grad = gradient
        for group in groups:
            for matrices in _stacks([m for m in group["params"] if m in gradients]):
                self._change(group, matrices)

    def _change(self, group: dict[str, Any], matrices: list[nn.Parameter]) -> None:
        """Update matrices of one shape, transposed or not."""
        moved = [sharding.whole(self._momentum(matrix)) for matrix in matrices]
        dtype, in_bf16 = moved[0].dtype, group["muon"] == "bf16" and has_bf16(moved[0].device.type)
        wide = [_wide(x.bfloat16() if in_bf16 else x) for x in moved]
        steps = orthogonalize(wide[0] if len(wide) == 1 else torch.stack(wide)).to(dtype)
        rate, longest = group["lr"], max(moved[0].shape)
        for matrix, step in zip(matrices, [steps] if len(wide) == 1 else steps, strict=True):
            oriented = step if matrix.shape == step.shape else step.T
            matrix.mul_(1 - rate * group["weight_decay"])
            part = sharding.part_of(oriented, matrix)
            matrix.add_(part, alpha=-0.2 * math.sqrt(longest) * rate)

    def _momentum(self, matrix: nn.Parameter) -> Tensor:
        """Nesterov's momentum."""
        state = self.state[matrix]
        if not state:
            state["step"] = torch.zeros((), device=matrix.device)  # AdamW reads it from a file
            state["momentum"] = torch.zeros_like(matrix)
        state["step"] += 1
        gradient = matrix.grad
        assert gradient is not None
        mean: Tensor = state["momentum"].lerp_(gradient, 1 - MOMENTUM)
        return gradient.lerp(mean, MOMENTUM)


def _stacks(matrices: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Groups of matrices to update together: those of equal shape on a GPU, where launching a
    product of small ones takes longer than computing it; single ones on CPUs and of shards."""
    if not matrices or not _stacks_pay(matrices[0]):
        return [[matrix] for matrix in matrices]
    by_shape: dict[tuple[int, ...], list[nn.Parameter]] = {}
    for matrix in matrices:
        by_shape.setdefault(tuple(sorted(matrix.shape)), []).append(matrix)
    return list(by_shape.values())


def _stacks_pay(matrix: Tensor) -> bool:
    return matrix.device.type != "cpu" and not parallel.is_shard(matrix)


def _wide(matrix: Tensor) -> Tensor:
    """The matrix or its transpose with no more rows than columns: the shorter side is squared."""
    return matrix.T if matrix.shape[0] > matrix.shape[1] else matrix


def orthogonalize(matrix: Tensor) -> Tensor:
    """Nearly U V^T of a matrix U S V^T: all values above 2 % of the norm become 0.7 to 1.2.

    Args:
        matrix: [rows, columns] of any two sizes, or several such.

    Returns:
        The same shape and dtype: steps of Jordan's quintic Newton-Schulz iteration.
    """
    if matrix.shape[-2] > matrix.shape[-1]:
        return orthogonalize(matrix.mT).mT
    x = matrix / (torch.linalg.matrix_norm(matrix, keepdim=True) + 1e-7)
    multiply = torch.addmm if matrix.dim() == 2 else torch.baddbmm
    for _ in range(_ITERATIONS):
        square = x @ x.mT
        x = 3.4445 * x + multiply(square, square, square, beta=-4.7750, alpha=2.0315) @ x
    return x


def parameter_groups(
    parameters: Iterable[nn.Parameter],
    matrices: Sequence[nn.Parameter],
    learning_rate: float,
    precision: Precision,
) -> list[dict[str, Any]]:
    """Groups for `MuonAdamW`: Muon for the parameters among `matrices`, AdamW for all others.

    Gradients are clipped by the norm of each group.
    """
    chosen = set(map(id, matrices))
    parts: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for parameter in parameters:
        parts[id(parameter) in chosen].append(parameter)
    groups: list[dict[str, Any]] = [{"params": parts[0], "lr": learning_rate}]
    if parts[1]:
        groups.append({"params": parts[1], "lr": learning_rate, "muon": precision})
    return groups


def layer_matrices(model: nn.Module, layers: Iterable[str]) -> list[nn.Parameter]:
    """The weights of products within the Transformer layers at some paths, each once."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    matrices = {
        id(parameter): parameter
        for path in layers
        for parameter in model.get_submodule(path).parameters()
        if parameter.dim() == 2 and parameter.numel() and id(parameter) not in tables
    }
    return list(matrices.values())
