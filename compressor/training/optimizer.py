"""Muon for the matrices of Transformer layers; AdamW, by rows of embedding tables, for the rest.

Muon (Jordan et al. 2024) takes the momentum of a whole matrix, U S V^T, and steps along U V^T, so
that rare directions learn as fast as frequent ones. `torch.optim.Muon` does the same, but always in
bfloat16, and without shards. AdamW would read and write all rows of tables in every step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from compressor import parallel
from compressor.parallel import sharding
from compressor.training.precision import Precision, has_bf16

MOMENTUM = 0.95
_ITERATIONS = 3  # two more gain less than they take, see docs/recovery.md


def embedding_tables(model: nn.Module) -> list[nn.Embedding]:
    """The embeddings whose weight no other module uses, such as a tied output projection."""
    users: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users[id(parameter)] = users.get(id(parameter), 0) + 1
    return [
        module
        for module in model.modules()
        if isinstance(module, nn.Embedding) and users[id(module.weight)] == 1
    ]


@contextmanager
def sparse_gradients(tables: Iterable[nn.Embedding]) -> Iterator[None]:
    """Within the context, gradients of tables on the CPU have only the rows of the batch.

    On a GPU they stay dense, since counting rows waits for it; shards have dense gradients, too.
    """
    changed = [t for t in tables if not parallel.is_shard(t.weight) and _on_cpu(t.weight)]
    for table in changed:
        table.sparse = True
    try:
        yield
    finally:
        for table in changed:
            table.sparse = False


def clip_gradients(parameters: Iterable[nn.Parameter], largest: float) -> None:
    """Clip gradients by their common norm, as `torch.nn.utils.clip_grad_norm_`, also sparse ones.

    Args:
        parameters: those without a gradient are ignored.
        largest: norm that the gradients have at most afterwards.
    """
    chosen = [p for p in parameters if p.grad is not None]
    if not any(cast(Tensor, p.grad).is_sparse for p in chosen):
        nn.utils.clip_grad_norm_(chosen, largest)
        return
    values = []
    for parameter in chosen:
        gradient = cast(Tensor, parameter.grad)
        if gradient.is_sparse:
            parameter.grad = gradient = gradient.coalesce()
        values.append(gradient.values() if gradient.is_sparse else gradient)
    norm = nn.utils.get_total_norm(values)
    torch._foreach_mul_(values, torch.clamp(largest / (norm + 1e-6), max=1.0))


def parameter_groups(
    model: nn.Module,
    parameters: Iterable[nn.Parameter],
    layers: Iterable[str],
    learning_rate: float,
    precision: Precision,
) -> list[dict[str, Any]]:
    """Groups for `MuonAdamW`: Muon for matrices of the layers, AdamW for all others.

    Args:
        model: the model.
        parameters: those to train.
        layers: paths of Transformer layers, whose matrices Muon trains; embeddings are left out.
        learning_rate: of both groups.
        precision: in which Muon orthogonalizes.
    """
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    matrices = {
        id(parameter)
        for path in layers
        for parameter in model.get_submodule(path).parameters()
        if parameter.dim() == 2 and parameter.numel() and id(parameter) not in tables
    }
    parts: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for parameter in parameters:
        parts[id(parameter) in matrices].append(parameter)
    groups: list[dict[str, Any]] = [{"params": parts[0], "lr": learning_rate}]
    if parts[1]:
        groups.append({"params": parts[1], "lr": learning_rate, "muon": precision})
    return groups


class MuonAdamW(torch.optim.AdamW):
    """Muon for the groups that have `muon`, a precision; AdamW for all others.

    With exact singular values a step of Muon would have the root mean square of one of AdamW's, 0.2
    times the learning rate, so that the same rates suit both (Liu et al. 2025, "Muon is scalable
    for LLM training"). After three iterations it has half to nine tenths of that. Without bf16
    products on the device it computes in fp32, since emulated ones take 30 times as long.

    Args:
        groups: as for AdamW; those with `muon` hold matrices.
        tables: embedding tables [rows, width] of which only rows with a gradient are changed.
        options: of `torch.optim.AdamW`.
    """

    def __init__(
        self, groups: list[dict[str, Any]], tables: Collection[Tensor] = (), **options: Any
    ) -> None:
        super().__init__(groups, **options)
        self._tables = {id(table) for table in tables}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Change all parameters that have a gradient, and keep their gradients.

        Args:
            closure: not used.
        """
        apart = [
            (group, parameter, parameter.grad)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and (group.get("muon") or id(parameter) in self._tables)
        ]
        for _, parameter, _ in apart:
            parameter.grad = None  # so that AdamW skips it
        super().step()
        for _, parameter, gradient in apart:
            parameter.grad = gradient
        for group, table, gradient in apart:
            if not group.get("muon"):
                self._change_rows(group, table, gradient)
        for group in self.param_groups:
            if group.get("muon"):
                for matrices in _stacks([m for m in group["params"] if m.grad is not None]):
                    self._change_matrices(group, matrices)

    def _change_rows(self, group: dict[str, Any], table: Tensor, gradient: Tensor) -> None:
        """Kingma & Ba 2015, algorithm 1, with decoupled weight decay, on rows with a gradient.

        Args:
            group: its options.
            table: [rows, width], or this rank's shard of it.
            gradient: of the same shape, sparse or dense.
        """
        state = self.state[table]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(table), torch.zeros_like(table)
        state["step"] = state["step"].cpu() + 1  # AdamW loads it onto the device
        weight, first, second, gradient = map(
            sharding.local, (table, state["exp_avg"], state["exp_avg_sq"], gradient)
        )
        # A dense gradient is zero in the other rows.
        rows: Any
        if gradient.is_sparse or _on_cpu(weight):
            sparse = gradient.coalesce() if gradient.is_sparse else gradient.to_sparse(1)
            rows, values = sparse.indices()[0], sparse.values()
        else:
            rows, values = slice(None), gradient
        rate = group["lr"]
        beta1, beta2 = group["betas"]
        steps = float(state["step"])
        mean = first[rows].lerp(values, 1 - beta1)
        square = (second[rows] * beta2).addcmul_(values, values, value=1 - beta2)
        scale = (square / (1 - beta2**steps)).sqrt_().add_(group["eps"])
        changed = weight[rows] * (1 - rate * group["weight_decay"])
        changed = changed.addcdiv_(mean, scale, value=-rate / (1 - beta1**steps))
        for tensor, new in ((first, mean), (second, square), (weight, changed)):
            if isinstance(rows, slice):
                new = new.where(gradient.any(1, keepdim=True), tensor)
            tensor[rows] = new

    def _change_matrices(self, group: dict[str, Any], matrices: list[nn.Parameter]) -> None:
        """Muon with Nesterov momentum (Jordan et al. 2024) on matrices of similar shape.

        Args:
            group: its options.
            matrices: one, or several on a GPU; all have gradients.
        """
        gradients, means = [], []
        for matrix in matrices:
            state, gradient = self.state[matrix], matrix.grad
            assert gradient is not None
            if not state:
                state["step"] = torch.zeros(())  # AdamW reads it from a file
                state["momentum"] = torch.zeros_like(matrix)
            state["step"] = state["step"].cpu() + 1
            gradients.append(gradient)
            means.append(state["momentum"])
        rate, alone = group["lr"], len(matrices) == 1
        kept = 1 - rate * group["weight_decay"]
        if alone:  # shards have not all operations on lists
            means[0].lerp_(gradients[0], 1 - MOMENTUM)
            moved = [sharding.whole(gradients[0].lerp(means[0], MOMENTUM))]
            matrices[0].mul_(kept)
        else:
            torch._foreach_lerp_(means, gradients, 1 - MOMENTUM)
            moved = list(torch._foreach_lerp(gradients, means, MOMENTUM))  # Nesterov's momentum
            torch._foreach_mul_([*matrices], kept)
        in_bf16 = group["muon"] == "bf16" and has_bf16(moved[0].device.type)
        dtype = moved[0].dtype
        # The shorter side is squared, so matrices get no more rows than columns.
        wide = [x.T if x.shape[0] > x.shape[1] else x for x in moved]
        stack = wide[0] if alone else _stacked(wide, torch.bfloat16 if in_bf16 else dtype)
        steps = orthogonalize(stack.bfloat16() if in_bf16 else stack).to(dtype)
        for matrix, x, step in zip(matrices, moved, [steps] if alone else steps, strict=True):
            rows, columns = sorted(x.shape)
            step = step[:rows, :columns]
            part = sharding.part_of(step if x.shape == step.shape else step.T, matrix)
            matrix.add_(part, alpha=-0.2 * math.sqrt(columns) * rate)


def _on_cpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def _stacks(matrices: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group matrices that are orthogonalized together.

    On a GPU those of similar shape are: launching small products takes longer than computing them.
    """
    stacks: dict[object, list[nn.Parameter]] = {}
    for matrix in matrices:
        alone = _on_cpu(matrix) or parallel.is_shard(matrix)
        sizes = sorted(matrix.shape)
        key = id(matrix) if alone else tuple((size - 1).bit_length() for size in sizes)
        stacks.setdefault(key, []).append(matrix)
    return list(stacks.values())


def _stacked(matrices: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Stack n matrices, [n, rows, columns]; zeros behind smaller ones change nothing."""
    rows, columns = (max(x.shape[side] for x in matrices) for side in (0, 1))
    stack = matrices[0].new_zeros((len(matrices), rows, columns), dtype=dtype)
    for place, matrix in zip(stack, matrices, strict=True):
        place[: matrix.shape[0], : matrix.shape[1]] = matrix
    return stack


def orthogonalize(matrix: Tensor) -> Tensor:
    """Nearly U V^T of matrices U S V^T: values above 2 % of the norm become 0.7 to 1.2.

    Jordan's quintic Newton-Schulz iteration (Jordan et al. 2024).

    Args:
        matrix: [..., rows, columns], of any two sizes.

    Returns:
        The same shape and dtype.
    """
    if matrix.shape[-2] > matrix.shape[-1]:
        return orthogonalize(matrix.mT).mT
    x = matrix / (torch.linalg.matrix_norm(matrix, keepdim=True) + 1e-7)
    multiply = torch.addmm if matrix.dim() == 2 else torch.baddbmm
    for _ in range(_ITERATIONS):
        square = x @ x.mT
        x = 3.4445 * x + multiply(square, square, square, beta=-4.7750, alpha=2.0315) @ x
    return x
