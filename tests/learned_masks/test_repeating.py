"""The same mask again: from the same seed, after a stop, and instead of a damaged state."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from tests.helpers.learning import MAKERS, learned_by, learning, trained

pytestmark = pytest.mark.slow


def facts(learned) -> tuple:
    weights = {name: value.clone() for name, value in learned.model.state_dict().items()}
    return learned.mask, learned.scores.values, weights, learned.text


def same(one: tuple, other: tuple) -> bool:
    weights = all(torch.equal(one[2][name], other[2][name]) for name in one[2])
    return weights and (one[0], one[1], one[3]) == (other[0], other[1], other[3])


@pytest.mark.parametrize("method", MAKERS)
def test_the_seed_decides(method: str):
    job, options = learning("bert", batch_size=8), trained("all")
    first = facts(learned_by(method, job, **options))
    torch.manual_seed(99)  # what is random elsewhere must not matter
    assert same(first, facts(learned_by(method, job, **options)))
    other = learned_by(method, dataclasses.replace(job, seed=1), **options)
    assert other.scores.values != first[1]


class Stopped(Exception):
    """What interrupts a training in the next test."""


@pytest.mark.parametrize("stop_at", [5, 14])
@pytest.mark.parametrize("method", MAKERS)
def test_a_stopped_training_goes_on_as_if_it_had_not_stopped(
    method: str, stop_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """3 epochs of 4 steps for the gates, 1 for the weights; stopped within each."""
    monkeypatch.setattr("compressor.training.loop.SAVE_SECONDS", 0.0)
    job, options = learning("bert", batch_size=8), trained("all") | {"epochs": 4, "patience": 99}
    whole = facts(learned_by(method, job, **options))
    calls = 0

    def stop(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == stop_at:
            raise Stopped

    job = dataclasses.replace(job, state=tmp_path / "gates.safetensors")
    with pytest.raises(Stopped):
        learned_by(method, dataclasses.replace(job, progress=stop), **options)
    assert same(whole, facts(learned_by(method, job, **options)))
    assert same(whole, facts(learned_by(method, job, **options)))  # once more, when all is done
