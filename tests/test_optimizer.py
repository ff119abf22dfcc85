"""Embedding tables in training: rows whose tokens a step had, beside PyTorch's own optimizers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from compressor.training import optimizer
from compressor.training.optimizer import (
    RowAdamW,
    clip_gradients,
    embedding_tables,
    sparse_gradients,
)

ROWS, WIDTH = 12, 4
EPS = 1e-15  # SparseAdam adds it before the correction of the second moment, AdamW after
# Tokens of each step; of them 3 occurs twice in one, and 11 never.
STEPS = [[1, 3, 3, 5], [2, 3], [0, 1, 10]]


def train(make, *, sparse: bool, decay: float = 0.0) -> Tensor:
    torch.manual_seed(0)
    table, factors = nn.Parameter(torch.randn(ROWS, WIDTH)), torch.randn(ROWS, WIDTH)
    optimizer = make(table, decay)
    for tokens in STEPS:
        optimizer.zero_grad()
        ids = torch.tensor(tokens)
        found = functional.embedding(ids, table, sparse=sparse)
        (found * factors[ids]).pow(2).sum().backward()
        optimizer.step()
    return table.detach()


def by_rows(table: nn.Parameter, decay: float) -> RowAdamW:
    return RowAdamW([{"params": [table]}], [table], lr=0.1, eps=EPS, weight_decay=decay, fused=True)


@pytest.mark.parametrize("sparse", [True, False])
def test_rows_change_as_in_sparse_adam(sparse: bool):
    found = train(by_rows, sparse=sparse)
    expected = train(lambda table, _: torch.optim.SparseAdam([table], lr=0.1, eps=EPS), sparse=True)
    torch.testing.assert_close(found, expected)


def test_on_a_gpu_all_rows_are_computed_and_the_same_ones_change(monkeypatch):
    expected = train(by_rows, sparse=True, decay=0.5)
    monkeypatch.setattr(optimizer, "_counts_rows", lambda table: False)
    table = nn.Embedding(ROWS, WIDTH)
    with sparse_gradients([table]):
        assert not table.sparse
    torch.testing.assert_close(train(by_rows, sparse=False, decay=0.5), expected)


@pytest.mark.parametrize("sparse", [True, False])
def test_rows_of_other_tokens_stay_to_the_bit(sparse: bool):
    torch.manual_seed(0)
    before = torch.randn(ROWS, WIDTH)
    found = train(by_rows, sparse=sparse, decay=0.5)
    never, had = [4, 6, 7, 8, 9, 11], [0, 1, 2, 3, 5, 10]
    assert torch.equal(found[never], before[never])
    assert not torch.isclose(found[had], before[had]).any()


@pytest.mark.parametrize("largest", [0.5, 1e6])
def test_sparse_gradients_are_clipped_as_dense_ones(largest: float):
    ids, factor = torch.tensor([1, 3, 3, 5]), torch.arange(WIDTH) + 1.0
    gradients = []
    for sparse in (True, False):
        table, other = nn.Parameter(torch.ones(ROWS, WIDTH)), nn.Parameter(torch.ones(3))
        found = functional.embedding(ids, table, sparse=sparse)
        ((found * factor).sum() + other.pow(2).sum()).backward()
        clip_gradients([table, other, nn.Parameter(torch.ones(2))], largest)
        gradients.append((table.grad.to_dense(), other.grad))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


def test_a_table_that_is_an_output_projection_too_is_none():
    model = nn.ModuleDict({"tied": nn.Embedding(5, 3), "own": nn.Embedding(5, 3)})
    model["head"] = nn.Linear(3, 5)
    model["head"].weight = model["tied"].weight
    (table,) = embedding_tables(model)
    assert table is model["own"]
    with sparse_gradients([table]):
        table(torch.tensor([2])).sum().backward()
    assert table.weight.grad.is_sparse
    assert not table.sparse
