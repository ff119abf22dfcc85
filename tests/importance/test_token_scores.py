"""Scores of tokens: errors by hand, row by row, and the order that they have to go in."""

from __future__ import annotations

import dataclasses
import itertools
import types

import numpy as np
import pytest
import torch
from torch import nn

import compressor.importance.token_scores as token_scores_module
from compressor.importance import ScoringJob
from compressor.importance.statistics import collect_statistics
from compressor.importance.token_scores import (
    in_order,
    levels_below,
    measured_errors,
    spread_rows,
    telescoped,
    token_scores,
)
from compressor.model.layers import find_sublayers
from compressor.model.sublayers import Mask, belongs
from compressor.model.surgery import prune, skipped
from compressor.tasks import TASKS, Batch
from tests.helpers.batches import labelled_batch
from tests.helpers.stages import score
from tests.helpers.tiny import tiny_model
from tests.helpers.tokens import (
    bert_by_hand,
    heads_and_tenths,
    one_token_model,
    rows_in,
)


def scoring(model=None, mask=None, task: str = "classification", **options) -> ScoringJob:
    model = model or one_token_model()
    layers = find_sublayers(model)
    return ScoringJob(
        model=model,
        layers=layers,
        mask=(mask or (lambda layers: Mask.full(layers).with_tokens()))(layers),
        batches=[labelled_batch(model, rows=4, seed=seed) for seed in range(2)],
        task=TASKS[task],
        **options,
    )


def errors_by_hand(model, setup: ScoringJob, left: list[int]) -> dict[tuple[int, int], float]:
    """2 KL per row, times the squared gradient over the Fisher information's trace, in NumPy."""
    slopes = information = 0.0
    sums = dict.fromkeys(levels_below(left), 0.0)
    rows = rows_in(setup.batches)
    for ids, label in rows:
        wanted = log_probabilities(bert_by_hand(model, ids, left)[0])
        dense = np.exp(wanted)
        slopes += ((dense - np.eye(len(dense))[label]) ** 2).sum()
        information += (dense * (1 - dense)).sum()
        for i, tenths in sums:
            cut = [*left[:i], *(min(n, tenths) for n in left[i:])]
            found = log_probabilities(bert_by_hand(model, ids, cut)[0])
            sums[i, tenths] += (dense * (wanted - found)).sum()
    return {x: 2 * total * slopes / information / len(rows) for x, total in sums.items()}


def log_probabilities(logits: torch.Tensor) -> np.ndarray:
    values = logits.double().numpy()
    return values - np.log(np.exp(values).sum())


def test_errors_against_rows_by_hand():
    setup = scoring()
    expected = errors_by_hand(setup.model, setup, [10, 10])
    found = measured_errors(setup, [10, 10])
    assert found.keys() == expected.keys()
    assert min(expected[i, 0] for i in (0, 1)) > 0.01
    for level, error in expected.items():
        assert found[level] == pytest.approx(error, rel=1e-3, abs=1e-6)


def test_errors_come_on_top_of_what_is_gone():
    """Heads, neurons and tokens; by hand in a model that has neither heads nor neurons."""
    setup = scoring(mask=heads_and_tenths(8, 5))
    units = Mask({n: x for n, x in setup.mask.keep.items() if "tokens" not in n})
    pruned = prune(tiny_model("bert"), setup.layers, units)
    expected = errors_by_hand(pruned, setup, [8, 5])
    found = measured_errors(setup, setup.mask.handed_on())
    assert len(found) == 13
    for level, error in expected.items():
        assert found[level] == pytest.approx(error, rel=2e-3, abs=1e-6)
    scores = score("second-order", setup).values
    for layer, left in enumerate((8, 5)):
        values = scores[f"encoder_tokens.{layer}"]
        assert all(x > 0 for x in values[:left])
        assert values[left:] == (0.0,) * (10 - left)


def test_scores_of_what_a_schedule_drops_add_up_to_its_error():
    """From one layer on: exactly before they are put in order, and of all tenths after it."""
    setup = scoring()
    errors = measured_errors(setup, [10, 10])
    parts = telescoped(errors, [10, 10])
    for i, tenths in levels_below([10, 10]):
        dropped = sum(sum(layer[tenths:]) for layer in parts[i:])
        assert dropped == pytest.approx(errors[i, tenths], abs=1e-12)
    scores = token_scores(setup)
    assert sum(map(sum, scores.values())) == pytest.approx(errors[0, 0], rel=1e-6)


def schedules(left: list[int]):
    for tenths in itertools.product(*(range(n + 1) for n in left)):
        if all(a >= b for a, b in itertools.pairwise(tenths)):
            yield tenths


@pytest.mark.parametrize("seed", range(8))
def test_the_lowest_scores_are_the_best_schedule_for_its_tokens(seed: int):
    """Of all schedules, at any price of a tenth; errors of several layers add up."""
    rng = np.random.default_rng(seed)
    left = [5, 4, 4]
    values = [(rng.normal(size=n) + 0.7).tolist() for n in left]
    fitted = in_order(values, left)
    for layer, (row, n) in enumerate(zip(fitted, left, strict=True)):
        assert row == sorted(row, reverse=True)
        later = fitted[layer + 1] if layer + 1 < len(left) else []
        assert all(a >= b for a, b in zip(row, later, strict=False))
        assert len(row) == n

    def excess(tenths, price: float) -> float:
        return sum(sum(x - price for x in row[s:]) for row, s in zip(values, tenths, strict=True))

    for price in np.linspace(0.05, 2.5, 15):
        chosen = tuple(sum(x >= price for x in row) for row in fitted)
        best = min(excess(tenths, price) for tenths in schedules(left))
        assert excess(chosen, price) == pytest.approx(best, abs=1e-9)
        if chosen != tuple(left):
            dropped = sum(sum(row[s:]) for row, s in zip(fitted, chosen, strict=True))
            lowest = min(x for row in fitted for x in row)
            if lowest > 0:  # none was raised to zero
                measured = sum(sum(row[s:]) for row, s in zip(values, chosen, strict=True))
                assert dropped == pytest.approx(measured)


def test_numbers_in_order_stay():
    values = [[5.0, 3.0, 1.0], [4.0, 2.0, 0.5]]
    assert in_order(values, [3, 3]) == values
    assert in_order([[2.0, 2.0]], [2]) == [[2.0, 2.0]]
    assert in_order([[-1.0, -2.0]], [2]) == [[0.0, 0.0]]


def test_scores_rise_in_the_order_in_which_tenths_go():
    scores = token_scores(scoring(one_token_model("bert", seed=3)))
    first, second = scores["encoder_tokens.0"], scores["encoder_tokens.1"]
    for values in (first, second):
        assert all(a > b > 0 for a, b in itertools.pairwise(values))
    assert all(a > b for a, b in zip(first, second, strict=True))


def test_a_regression_is_scored_in_the_unit_of_its_squared_error():
    """Mean squared change of the numbers, times the mean squared error of the dense model's."""
    model = one_token_model()
    model.classifier = nn.Linear(32, 1)
    setup = scoring(model, task="regression")
    changes, errors = [], []
    for ids, label in rows_in(setup.batches):
        dense, cut = (float(bert_by_hand(model, ids, x)[0]) for x in ([10, 10], [10, 3]))
        changes.append((dense - cut) ** 2)
        errors.append((dense - label) ** 2)
    expected = np.mean(changes) * np.mean(errors)
    assert measured_errors(setup, [10, 10])[1, 3] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("units", ["heads", None])
def test_tokens_are_scored_beside_any_units_and_counted(units: str | None):
    setup = scoring()
    steps: list[tuple[int, int]] = []
    layers = [x for x in setup.layers if units and belongs(x.name, units)]
    setup = dataclasses.replace(setup, layers=layers, progress=lambda *x: steps.append(x))
    found = score("second-order", setup)
    names = [x.name for x in layers] + ["encoder_tokens.0", "encoder_tokens.1"]
    assert list(found.values) == names
    runs = 2 * (21 + bool(layers))  # two batches; all tenths, 9 … 0 of both layers, gradients
    assert steps == [(done, runs) for done in range(1, runs + 1)]
    assert found.cost["forward_passes"] == runs


def test_without_tokens_in_the_mask_nothing_is_added():
    setup = scoring(mask=Mask.full)
    found = score("second-order", setup)
    assert list(found.values) == [x.name for x in setup.layers]
    assert found.cost["forward_passes"] == 2


def test_layers_that_are_dropped_have_no_tenths():
    setup = scoring()
    mask = setup.mask.without_layers(["encoder.1"])
    layers = [x for x in setup.layers if x.index != 1]
    with skipped(setup.model, setup.layers, mask):
        found = token_scores(dataclasses.replace(setup, mask=mask, layers=layers))
    assert list(found) == ["encoder_tokens.0"]
    smaller = one_token_model()
    del smaller.bert.encoder.layer[1]
    expected = errors_by_hand(smaller, setup, [10])
    assert sum(found["encoder_tokens.0"]) == pytest.approx(expected[0, 0], rel=1e-3)


@pytest.mark.parametrize("name", ["bert", "modernbert", "mpnet"])
def test_statistics_with_tokens_gone_are_the_pruned_models(name: str):
    """Gated, and pruned: fewer heads, neurons and tokens. Each layer sees the tokens it keeps."""
    model = one_token_model(name)
    setup = scoring(model, heads_and_tenths(7, 4))
    pruned = prune(model, setup.layers, setup.mask)
    layers = find_sublayers(pruned)
    smaller = dataclasses.replace(setup, model=pruned, layers=layers, mask=Mask.full(layers))
    expected, _ = collect_statistics(smaller)
    found, _ = collect_statistics(setup)
    for layer in layers:
        dense = next(x for x in setup.layers if x.name == layer.name)
        kept = setup.mask.kept(layer.name)
        columns = [unit * dense.unit_width + i for unit in kept for i in range(dense.unit_width)]
        covariance, sensitivity = found[layer.name]
        part = covariance[columns][:, columns]
        for actual, wanted in zip((part, sensitivity), expected[layer.name], strict=True):
            torch.testing.assert_close(
                actual, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max())
            )


def test_the_rows_a_batch_has_do_not_matter():
    setup = scoring()
    together = measured_errors(setup, [10, 10])
    alone = dataclasses.replace(
        setup, batches=[x.lines([row]) for x in setup.batches for row in range(len(x.rows))]
    )
    for level, error in measured_errors(alone, [10, 10]).items():
        assert error == pytest.approx(together[level], rel=1e-3, abs=1e-7)


def test_few_of_many_rows_are_measured(monkeypatch: pytest.MonkeyPatch):
    setup = scoring()
    rows = [x.lines([row]) for x in setup.batches for row in range(len(x.rows))]
    few = dataclasses.replace(setup, batches=[rows[0], rows[3], rows[6]])
    expected = measured_errors(few, [10, 10])
    tokens = sum(x["input_ids"].numel() for x in setup.batches)
    monkeypatch.setattr(token_scores_module, "MOST_TOKENS", tokens // 3 + 1)
    monkeypatch.setattr(token_scores_module, "LEAST_ROWS", 1)
    for level, error in measured_errors(setup, [10, 10]).items():
        assert error == pytest.approx(expected[level], rel=1e-3, abs=1e-7)


@pytest.mark.parametrize(
    ("sizes", "most", "least", "lines"),
    [
        ([3, 4], 35, 1, [[0, 1, 2], [0, 1, 2, 3]]),
        ([3, 4], 34, 1, [[0, 2], [1, 3]]),
        ([3, 4], 1, 1, [[0], [3]]),
        ([3, 4], 1, 4, [[0, 1, 2], [0, 1, 2, 3]]),
        ([3, 5], 1, 4, [[0, 2], [1, 3]]),
        ([1, 1, 1, 4], 18, 1, [[0], [0], [0], [1, 3]]),  # at least one of each
    ],
)
def test_rows_are_taken_evenly(
    sizes: list[int], most: int, least: int, lines: list[list[int]], monkeypatch: pytest.MonkeyPatch
):
    """Of rows of five tokens."""
    monkeypatch.setattr(token_scores_module, "MOST_TOKENS", most)
    monkeypatch.setattr(token_scores_module, "LEAST_ROWS", least)
    batches = [Batch({"input_ids": torch.arange(n)[:, None].expand(n, 5)}, range(n)) for n in sizes]
    found = spread_rows(batches)
    assert [x["input_ids"][:, 0].tolist() for x in found] == [list(x.rows) for x in found] == lines


def test_the_model_is_left_as_it_was():
    setup = scoring(mask=heads_and_tenths(6, 3))
    before = {path: type(module) for path, module in setup.model.named_modules()}
    logits = setup.task.logits(setup.model, setup.batches[0])
    score("second-order", setup)
    assert {path: type(module) for path, module in setup.model.named_modules()} == before
    assert torch.equal(setup.task.logits(setup.model, setup.batches[0]), logits)
    hooks = [x for x in setup.model.modules() if x._forward_hooks or x._forward_pre_hooks]
    assert not hooks
    assert not isinstance(vars(setup.model).get("forward"), types.FunctionType)
