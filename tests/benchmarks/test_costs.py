"""The law of costs from made-up measurements, and the stages of a real command."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace

import pytest

from benchmarks import costs, stages

COEFFICIENTS = {"constant": 3.0, "weights": 0.05, "products": 40.0, "solved": 90.0}


def row(case: costs.Case) -> dict:
    case = replace(case, tokens=20.0)
    found = {}
    for stage in costs.TERMS:
        values = costs.terms(case, stage)
        seconds = sum(COEFFICIENTS[name] * value for name, value in values.items())
        found[stage] = {
            "seconds": seconds, "cpu_seconds": seconds, "written_mib": 10.0,
            "peak_mib": 400 + 8 * case.weights / 2**20,
        }  # fmt: skip
    return {**asdict(case), "stages": found}


def test_the_law_is_found_again():
    rows = [row(case) for case in costs.CASES]
    for stage, law in costs.fit(rows).items():
        assert law["largest_residual"] < 1e-6
        for name, value in law["coefficients"].items():
            assert value == pytest.approx(COEFFICIENTS[name], rel=1e-4), (stage, name)
    constant, per_weight, residual = costs.peak_law(rows)
    assert (constant, per_weight) == pytest.approx((400, 8))
    assert residual < 1e-6


def test_gpus_take_products_and_leave_the_rest():
    laws = costs.fit([row(case) for case in costs.CASES])
    case = replace(costs.LARGER[0], tokens=20.0)
    core, one, eight = (costs.predict(case, laws, gpus) for gpus in (0, 1, 8))
    assert core > one > eight
    kept = [
        COEFFICIENTS[name] * value
        for stage in costs.TERMS
        for name, value in costs.terms(case, stage).items()
        if name not in costs.GPU
    ]
    assert eight > sum(kept)  # constants and writing stay
    text = costs.page({"hardware": "a processor", "cases": [row(x) for x in costs.CASES]})
    assert "| 3.3B |" in text
    assert "8.0 bytes for each weight" in text


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures by way of /proc")
def test_a_command_without_stages_has_one():
    (load,) = stages.measure(["doctor"])
    assert load.name == "load"
    assert load.seconds > 0
    assert load.cpu_seconds > 0
    assert load.peak_mib > 10
