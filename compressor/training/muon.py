"""Muon (Jordan et al. 2024) for the matrices of Transformer layers, AdamW for everything else.

AdamW scales each weight's step by itself. Muon takes the momentum of a whole matrix, U S V^T, and
steps along U V^T, so that rare directions learn as fast as frequent ones. What it gains is in
docs/recovery.md.

`torch.optim.Muon` is the same for one matrix after the other, always in bfloat16. That takes longer
than all else of a step where the processor has no such products, and orthogonalizing matrices of
one shape together is faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from compressor.parallel import sharding
from compressor.training.optimizer import RowAdamW
from compressor.training.precision import Precision

MOMENTUM = 0.95
_ITERATIONS = 3  # two more gain less than they take, see docs/recovery.md
_STACKED = 2**22  # elements of matrices that are orthogonalized together


class MuonAdamW(RowAdamW):
    """Muon for the groups that have `muon`, a precision; `RowAdamW` for all others.

    With exact singular values a step would have the root mean square of one of AdamW's, 0.2 times
    the learning rate, so that the same rates suit both (Liu et al. 2025, "Muon is scalable for LLM
    training"). After three iterations it has half to nine tenths of that.

    Args:
        groups: as for AdamW; those with `muon` hold matrices, orthogonalized in that precision (in
            fp32 on processors without products in bf16, which would take 30 times as long).
        tables: as for `RowAdamW`.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        groups = [group for group in self.param_groups if group.get("muon")]
        gradients = {p: p.grad for g in groups for p in g["params"] if p.grad is not None}
        for matrix in gradients:
            matrix.grad = None  # so that AdamW leaves it out
        super().step()
        for matrix, gradient in gradients.items():
            matrix.grad = gradient
        for group in groups:
            for matrices in _stacks(p for p in group["params"] if p in gradients):
                self._change(group, matrices)

    def _change(self, group: dict[str, Any], matrices: list[nn.Parameter]) -> None:
        """One step of matrices with the same two sides."""
        moved = torch.stack([_wide(sharding.whole(self._momentum(p))) for p in matrices])
        dtype = torch.bfloat16 if group["muon"] == "bf16" and _has_bf16(moved) else torch.float32
        found = orthogonalize(moved.to(dtype)).to(moved.dtype)
        rate = group["lr"]
        for matrix, update in zip(matrices, found, strict=True):
            step = update if matrix.shape[0] <= matrix.shape[1] else update.T
            matrix.mul_(1 - rate * group["weight_decay"])
            matrix.add_(
                sharding.part_of(step, matrix), alpha=-0.2 * math.sqrt(max(step.shape)) * rate
            )

    def _momentum(self, matrix: nn.Parameter) -> Tensor:
        """Nesterov's: the gradient on the way to the mean of all so far."""
        state = self.state[matrix]
        if not state:
            state["step"] = torch.zeros((), device=matrix.device)  # AdamW reads it from a file
            state["momentum"] = torch.zeros_like(matrix)
        state["step"] += 1
        gradient = matrix.grad
        assert gradient is not None
        mean: Tensor = state["momentum"].lerp_(gradient, 1 - MOMENTUM)
        return gradient.lerp(mean, MOMENTUM)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Nearly U V^T of each matrix U S V^T: all values above 2 % of the norm become 0.7 to 1.2.

    Args:
        matrices: [number, short, long], short at most long.

    Returns:
        The same shape and dtype: steps of Jordan's quintic Newton-Schulz iteration.
    """
    x = matrices / (torch.linalg.matrix_norm(matrices, keepdim=True) + 1e-7)
    for _ in range(_ITERATIONS):
        square = x @ x.mT
        x = 3.4445 * x + torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315) @ x
    return x


def parameter_groups(
    parameters: Iterable[nn.Parameter],
    matrices: Sequence[nn.Parameter],
    learning_rate: float,
    precision: Precision,
) -> list[dict[str, Any]]:
    """Groups for `MuonAdamW`, which trains those of the parameters that are among `matrices`.

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
    found = {
        id(parameter): parameter
        for path in layers
        for parameter in model.get_submodule(path).parameters()
        if parameter.dim() == 2 and parameter.numel() and id(parameter) not in tables
    }
    return list(found.values())


def _stacks(matrices: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Matrices with the same two sides together, as many as make `_STACKED` elements."""
    alike: dict[tuple[int, ...], list[nn.Parameter]] = {}
    for matrix in matrices:
        alike.setdefault(tuple(sorted(matrix.shape)), []).append(matrix)
    return [
        group[first : first + most]
        for (short, long), group in alike.items()
        for most in [max(1, _STACKED // (short * long))]
        for first in range(0, len(group), most)
    ]


def _has_bf16(tensor: Tensor) -> bool:
    """Whether its device computes products in bf16, not with numbers widened one by one."""
    on_cpu = tensor.device.type == "cpu"
    return not on_cpu or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _wide(matrix: Tensor) -> Tensor:
    """With the shorter side first, which is the one that is squared."""
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
