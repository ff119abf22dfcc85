"""Embedding tables and matrices in training, beside PyTorch's own optimizers and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from compressor.training import optimizer as optimizer_module
from compressor.training.optimizer import (
    MuonAdamW,
    clip_gradients,
    embedding_tables,
    orthogonalize,
    parameter_groups,
    sparse_gradients,
)
from compressor.training.precision import products_in

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


def by_rows(table: nn.Parameter, decay: float) -> MuonAdamW:
    return MuonAdamW(
        [{"params": [table]}], [table], lr=0.1, eps=EPS, weight_decay=decay, fused=True
    )


@pytest.mark.parametrize("sparse", [True, False])
def test_rows_change_as_in_sparse_adam_and_others_stay_to_the_bit(sparse: bool):
    found = train(by_rows, sparse=sparse)
    expected = train(lambda table, _: torch.optim.SparseAdam([table], lr=0.1, eps=EPS), sparse=True)
    torch.testing.assert_close(found, expected)
    torch.manual_seed(0)
    before = torch.randn(ROWS, WIDTH)
    found = train(by_rows, sparse=sparse, decay=0.5)
    never, had = [4, 6, 7, 8, 9, 11], [0, 1, 2, 3, 5, 10]
    assert torch.equal(found[never], before[never])
    assert not torch.isclose(found[had], before[had]).any()


@pytest.mark.parametrize("sparse", [True, False])
def test_rows_decay_as_in_torchs_adamw(sparse: bool, monkeypatch):
    """Where all rows have a gradient in every step."""
    monkeypatch.setattr("tests.test_optimizer.STEPS", [list(range(ROWS))] * 3)
    expected = train(
        lambda table, decay: torch.optim.AdamW([table], lr=0.1, eps=EPS, weight_decay=decay),
        sparse=False,
        decay=0.5,
    )
    torch.testing.assert_close(train(by_rows, sparse=sparse, decay=0.5), expected)


def test_on_a_gpu_all_rows_are_computed_and_the_same_ones_change(monkeypatch):
    expected = train(by_rows, sparse=True, decay=0.5)
    monkeypatch.setattr(optimizer_module, "_on_cpu", lambda tensor: False)
    table = nn.Embedding(ROWS, WIDTH)
    with sparse_gradients([table]):
        assert not table.sparse
    torch.testing.assert_close(train(by_rows, sparse=False, decay=0.5), expected)


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
    torch.testing.assert_close(*gradients)


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


SHAPES = [(6, 16), (16, 6), (6, 16), (8, 8)]  # wide, tall, a second wide one, square
RATE, DECAY = 0.02, 0.1


def matrices(seed: int = 0) -> list[nn.Parameter]:
    torch.manual_seed(seed)
    return [nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def steps(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], count: int) -> None:
    """Towards targets that other random numbers give."""
    targets = [parameter + 1 for parameter in matrices(1)]
    for _ in range(count):
        optimizer.zero_grad()
        for parameter, target in zip(parameters, targets, strict=False):
            (parameter - target).pow(2).sum().backward()
        optimizer.step()


def singular(values: np.ndarray) -> np.ndarray:
    """What the iteration makes of singular values, by hand."""
    for _ in range(3):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return values


def test_singular_vectors_stay_and_singular_values_come_near_one():
    rng = np.random.default_rng(0)
    for scale, shape in ((1e-3, (10, 40)), (1.0, (40, 10)), (1e3, (10, 10))):
        matrix = scale * rng.normal(size=shape)
        own = orthogonalize(torch.from_numpy(matrix)).numpy()
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        wanted = singular(values / np.sqrt(np.square(values).sum()))
        np.testing.assert_allclose(own, left * wanted @ right, atol=1e-3)
        assert wanted[values > 0.02 * np.sqrt(np.square(values).sum())].min() > 0.65
        assert wanted.max() < 1.25


def test_matrices_are_trained_as_by_torch(monkeypatch):
    """Which orthogonalizes in bfloat16 on any processor; other groups are trained by AdamW."""
    monkeypatch.setattr(optimizer_module, "has_bf16", lambda device: True)
    own, other = matrices(), matrices()
    groups = [{"params": own, "lr": RATE, "muon": "bf16"}]
    steps(MuonAdamW(groups, weight_decay=DECAY), own, 4)
    theirs = torch.optim.Muon(other, RATE, DECAY, ns_steps=3, adjust_lr_fn="match_rms_adamw")
    steps(theirs, other, 4)
    for found, expected, before in zip(own, other, matrices(), strict=True):
        assert (found - expected).norm() < 0.05 * (expected - before).norm()

    own, other = matrices(), matrices()
    groups = [{"params": own[1:]}, {"params": own[:1], "muon": "fp32"}]
    steps(MuonAdamW(groups, lr=RATE), own, 3)
    steps(torch.optim.AdamW(other, lr=RATE), other, 3)
    torch.testing.assert_close(own[1:], other[1:])


def test_matrices_of_similar_shape_are_changed_together_as_one_by_one(monkeypatch):
    """As on a GPU: wide and tall ones in a stack, with a smaller one, the square one alone."""
    monkeypatch.setattr("tests.test_optimizer.SHAPES", [*SHAPES, (14, 5)])
    own, other, stacks = matrices(), matrices(), []

    def orthogonalized(x: Tensor) -> Tensor:
        stacks.append(tuple(x.shape))
        return orthogonalize(x)

    with monkeypatch.context() as patch:
        patch.setattr(optimizer_module, "_on_cpu", lambda tensor: False)
        patch.setattr(optimizer_module, "orthogonalize", orthogonalized)
        steps(MuonAdamW([{"params": own, "lr": RATE, "muon": "fp32"}], weight_decay=DECAY), own, 2)
    steps(MuonAdamW([{"params": other, "lr": RATE, "muon": "fp32"}], weight_decay=DECAY), other, 2)
    assert stacks == 2 * [(4, 6, 16), (8, 8)]
    torch.testing.assert_close(own, other)


def test_attention_stays_in_single_precision_where_products_are_halves():
    """On a processor; the weights of attention are not rounded, and what it returns is not."""
    torch.manual_seed(0)
    inputs = [torch.randn(1, 2, 5, 4) for _ in range(3)]
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    expected = functional.scaled_dot_product_attention(
        *(x.bfloat16().float() for x in inputs), attn_mask=mask
    )
    with products_in("bf16", "cpu"):
        query, key, value = (x.bfloat16() for x in inputs)
        found = functional.scaled_dot_product_attention(query, key, value=value, attn_mask=mask)
        product = inputs[0] @ inputs[1].mT
    assert (found.dtype, product.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(found, expected)
    with products_in("fp32", "cpu"):
        assert (inputs[0] @ inputs[1].mT).dtype == torch.float32


def test_products_of_the_layers_are_chosen_each_once():
    layer = nn.ModuleDict({"up": nn.Linear(4, 8), "norm": nn.LayerNorm(8)})
    layer["down"] = nn.Linear(4, 8)
    layer["down"].weight = layer["up"].weight
    layer["bias"] = nn.Embedding(32, 2)  # T5's, by distance
    layer["none"] = nn.Linear(0, 4, bias=False)
    model = nn.ModuleDict({"words": nn.Embedding(9, 4), "layer": layer, "head": nn.Linear(4, 9)})

    _, muon = parameter_groups(model, model.parameters(), ["layer"], RATE, "fp32")
    assert [id(x) for x in muon["params"]] == [id(layer["up"].weight)]
    assert (muon["muon"], muon["lr"]) == ("fp32", RATE)
    (group,) = parameter_groups(model, model.parameters(), [], RATE, "fp32")
    assert len(group["params"]) == len(list(model.parameters()))
