"""AdamW that updates only the rows of embedding tables whose tokens occur in a step.

A table has tens of thousands of rows, and a step some hundred tokens. AdamW would read and write
all rows, with both moments, in every step, which takes longer than a small model's forward and
backward pass; and weight decay would shrink rows of tokens that never occur. Here the moments of a
row change only in steps with its token, as in `torch.optim.SparseAdam`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from compressor import parallel


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

    On a GPU they have all rows: counting those of the batch would synchronize with the host, which
    takes longer than a pass over the table. Shards (`compressor.parallel.sharding`) have whole
    gradients.
    """
    changed = [t for t in tables if not parallel.is_shard(t.weight) and _counts_rows(t.weight)]
    for table in changed:
        table.sparse = True
    try:
        yield
    finally:
        for table in changed:
            table.sparse = False


def clip_gradients(parameters: Iterable[nn.Parameter], largest: float) -> None:
    """`torch.nn.utils.clip_grad_norm_` that also takes sparse gradients."""
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


class RowAdamW(torch.optim.AdamW):
    """AdamW that changes only the rows of `tables` that have a gradient.

    Args:
        groups: of parameters, as for AdamW.
        tables: weights [rows, width] among them, with gradients that are sparse, or zero in rows
            of tokens that do not occur in the step.
    """

    def __init__(
        self, groups: list[dict[str, Any]], tables: Collection[Tensor] = (), **options: Any
    ) -> None:
        super().__init__(groups, **options)
        self._tables = {id(table) for table in tables}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        tables = [
            (group, p, p.grad)
            for group in self.param_groups
            for p in group["params"]
            if id(p) in self._tables and p.grad is not None
        ]
        for _, table, _ in tables:
            table.grad = None  # so that AdamW skips it
        super().step()
        for group, table, gradient in tables:
            table.grad = gradient
            self._change_rows(group, table, gradient)

    def _change_rows(self, group: dict[str, Any], table: Tensor, gradient: Tensor) -> None:
        """Kingma & Ba 2015, algorithm 1, with decoupled weight decay, on rows with a gradient."""
        state = self.state[table]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(table), torch.zeros_like(table)
        state["step"] = state["step"].cpu() + 1  # AdamW loads it onto the device
        weight, first, second, gradient = map(
            _local, (table, state["exp_avg"], state["exp_avg_sq"], gradient)
        )
        # A dense gradient is zero in the other rows.
        rows: Any
        if gradient.is_sparse or _counts_rows(weight):
            sparse = gradient.coalesce() if gradient.is_sparse else gradient.to_sparse(1)
            rows, values = sparse.indices()[0], sparse.values()
        else:
            rows, values = slice(None), gradient
        rate, (beta1, beta2), steps = group["lr"], group["betas"], float(state["step"])
        mean = first[rows].lerp(values, 1 - beta1)
        square = (second[rows] * beta2).addcmul_(values, values, value=1 - beta2)
        scale = (square / (1 - beta2**steps)).sqrt_().add_(group["eps"])
        changed = weight[rows] * (1 - rate * group["weight_decay"])
        changed = changed.addcdiv_(mean, scale, value=-rate / (1 - beta1**steps))
        for tensor, new in ((first, mean), (second, square), (weight, changed)):
            if isinstance(rows, slice):
                new = new.where(gradient.any(1, keepdim=True), tensor)
            tensor[rows] = new


def _counts_rows(table: Tensor) -> bool:
    """Whether to count the rows with a gradient; on a GPU this would synchronize with the host."""
    return table.device.type == "cpu"


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if parallel.is_shard(tensor) else tensor  # type: ignore[attr-defined]
