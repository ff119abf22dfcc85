"""Two processes that share out a model's weights (FSDP) train it as one process does."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from compressor import parallel
from compressor.errors import EnvironmentProblem
from compressor.parallel import Ranks, accelerate_options
from compressor.tasks.batching import Batch, parts_of_rank
from tests.helpers import shard_cases
from tests.helpers.command_line import ranks
from tests.helpers.errors import raises
from tests.parallel.test_ranks import is_key_bias


def largest_difference(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """Of all weights but those whose gradient is rounding alone, of which AdamW makes steps."""
    assert found.keys() == expected.keys()
    assert all(found[name].shape == expected[name].shape for name in expected)
    return max(
        float((found[name] - expected[name]).abs().max())
        for name in expected
        if not is_key_bias(name)
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked from a process")
def test_sharded_models_are_trained_as_whole_ones(tmp_path: Path):
    """Distillation and learned masks; a rank is killed in the middle, and the same goes on."""
    killed = ranks(2, tmp_path, 3, module="tests.helpers.shard_cases")
    assert [rank.returncode for rank in killed] == [3, -9], killed[0].stderr
    assert killed[0].stdout.split() == ["rank-lost"]
    assert not list(tmp_path.glob("*.pickle"))
    alone = tmp_path / "alone"  # goes on with what two ranks saved
    alone.mkdir()
    shutil.copy(tmp_path / "marian-distill.safetensors", alone)
    ended = ranks(2, tmp_path, module="tests.helpers.shard_cases")
    assert [rank.returncode for rank in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    first, second = (pickle.loads((tmp_path / f"{x}.pickle").read_bytes()) for x in range(2))
    for here, there in zip(first.pop("held"), second.pop("held"), strict=True):
        assert here[0] + there[0] == pytest.approx(here[1], rel=0.02)  # and a little padding
        assert max(here[0], there[0]) < 0.55 * here[1]
    check(first, second, 0.0)
    expected = shard_cases.results(tmp_path / "whole")
    check(first, expected, 2e-6)
    resumed = shard_cases.distilled("marian", alone / "marian.safetensors")
    assert resumed["text"] == expected["distilled marian"]["text"]
    assert largest_difference(resumed["weights"], expected["distilled marian"]["weights"]) < 2e-6
    for name in shard_cases.NAMES:  # what a run leaves to resume from
        file = f"{name}-distill.safetensors"
        states = (load_file(x / file) for x in (tmp_path, tmp_path / "whole"))
        assert largest_difference(*states) < 2e-6


def check(found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, result in expected.items():
        own = dict(found[name])
        most = 10 * tolerance if name.startswith("learned") else tolerance  # more steps
        assert largest_difference(own.pop("weights"), result["weights"]) <= most, name
        assert own == {what: value for what, value in result.items() if what != "weights"}


def test_ranks_compute_as_many_parts_of_a_batch(monkeypatch):
    """The first has three lines of five, in parts of one; the second makes up for the third."""
    batch = Batch({"input_ids": torch.arange(10).view(5, 2)}, range(5))
    found = {}
    for rank in range(2):
        monkeypatch.setattr(parallel, "_ranks", Ranks(rank, 2, shards=True))
        found[rank] = [(part.rows, part.spare) for part in parts_of_rank(batch, 2)]
    assert found[0] == [((0,), False), ((2,), False), ((4,), False)]
    assert found[1] == [((1,), False), ((3,), False), ((0,), True)]
    monkeypatch.setattr(parallel, "_ranks", Ranks(1, 2))
    assert [part.rows for part in parts_of_rank(batch, 2)] == [(1,), (3,)]


FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"FSDP_VERSION": "1"}, "fsdp_version is 1, .* set it to 2"),
        ({"FSDP_OFFLOAD_PARAMS": "true"}, "fsdp_offload_params is true, .* set it to false"),
        ({"FSDP_RESHARD_AFTER_FORWARD": "false"}, "set it to true"),
        ({"FSDP_ACTIVATION_CHECKPOINTING": "true"}, "set it to false"),
        ({"FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP"}, "set it to TRANSFORMER_BASED_WRAP"),
        ({"FSDP_TRANSFORMER_CLS_TO_WRAP": "BertLayer"}, "BertLayer, .* leave it out"),
        ({"FSDP_IGNORED_MODULES": "lm_head"}, "leave it out"),
        ({"ACCELERATE_USE_PARALLELISM_CONFIG": "true"}, "parallelism"),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "DeepSpeed"),
    ],
)
def test_what_accelerate_can_ask_of_fsdp_and_a_run_does_not(monkeypatch, environment, message):
    for variable, value in (FSDP | environment).items():
        monkeypatch.setenv(variable, value)
    with raises(EnvironmentProblem, "accelerate-option-unsupported") as caught:
        accelerate_options.wants_shards()
    assert re.search(message, str(caught.value))


def test_transformers_does_not_hear_of_fsdp(monkeypatch):
    """It would leave the ranks behind the first with models without weights."""
    usual = {"FSDP_OFFLOAD_PARAMS": "false", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
    for variable, value in (FSDP | usual).items():
        monkeypatch.setenv(variable, value)
    assert accelerate_options.wants_shards()
    assert "ACCELERATE_USE_FSDP" not in os.environ
    assert not accelerate_options.wants_shards()
