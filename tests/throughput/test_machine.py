"""The measured speed of a machine, on which the limits rest."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from compressor.errors import EnvironmentProblem, UsageError
from compressor.throughput import machine as machine_module
from compressor.throughput.machine import measure_machine
from tests.helpers.errors import raises


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure on tiny operands: what comes out is not looked at."""
    monkeypatch.setattr(machine_module, "SIZES", {"cpu": (16, 1), "cuda": (16, 1)})
    monkeypatch.setattr(machine_module, "SECONDS", 0.0)
    measure_machine.cache_clear()
    yield
    measure_machine.cache_clear()


@pytest.mark.parametrize(("precision", "weights"), [("fp32", 4), ("fp16", 2), ("int8", 1)])
def test_machine_is_measured_once_in_each_precision(
    quick: None, precision: str, weights: int
) -> None:
    machine = measure_machine("cpu", 1, precision)

    assert machine.weight_bytes == weights
    assert min(machine.stored_rate, machine.value_rate, machine.bandwidth, machine.launch) > 0
    assert all(map(np.isfinite, dataclasses.astuple(machine)))
    assert measure_machine("cpu", 1, precision) is machine


def test_a_gpus_rates_are_free_of_the_start_of_a_run(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of runs that take a while to start, then some time per node, the rates are the nodes'."""
    seconds = {"MatMul": 2e-6, "Abs": 3e-6}

    def run(
        operator: str, inputs: list[np.ndarray], chain: int, device: str, threads: int
    ) -> float:
        return 50e-6 + chain * seconds[operator]

    monkeypatch.setattr(machine_module, "best_seconds", run)
    machine = measure_machine("cuda", 1, "fp16")
    assert machine.value_rate == pytest.approx(16**3 / 2e-6)
    assert machine.bandwidth == pytest.approx(2 * 2**20 / 3e-6)


def test_chains_of_products_stay_of_their_size(quick: None) -> None:
    """What overflows on the way would not be the work that is meant."""
    square = np.random.default_rng(0).standard_normal((256, 256), np.float32) / 16
    value = square
    for _ in range(machine_module.EXTRA_NODES + 1):
        value = value @ square
    assert 0.2 < np.abs(value).mean() / np.abs(square).mean() < 5


def test_unknown_precisions_and_missing_devices_cannot_be_measured(quick: None) -> None:
    with raises(UsageError, "precision-unknown"):
        measure_machine("cpu", 1, "fp4")
    if not torch.cuda.is_available():
        with pytest.raises(EnvironmentProblem, match="device 'cuda' was requested"):
            measure_machine("cuda", 1, "fp32")
