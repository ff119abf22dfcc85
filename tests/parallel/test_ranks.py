"""Several processes, which talk through gloo on CPUs, do what one does."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from compressor import parallel
from compressor.commands import invoke
from compressor.errors import InputError
from compressor.parallel import Ranks, accelerate_options
from compressor.tasks.opened import require_rows_for_ranks
from tests.helpers import rank_cases, toy
from tests.helpers.batches import examples
from tests.helpers.command_line import ROOT, ranks
from tests.helpers.errors import raises
from tests.helpers.runs import recipe_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked from a process"),
]

SHARDED = ROOT / "examples" / "distributed" / "fsdp.yaml"


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """A folder with the state of a training, and what one process computes."""
    folder = tmp_path_factory.mktemp("alone")
    return folder, rank_cases.results(folder) | rank_cases.results_of_whole_models(folder)


def found_by_ranks(folder: Path, *arguments: object) -> list[dict[str, Any]]:
    ended = ranks(2, folder, *arguments, module="tests.helpers.rank_cases")
    assert [rank.returncode for rank in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    return [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(2)]


def same(found: Any, expected: Any, name: str = "") -> None:
    """Counts, masks and texts are equal; numbers differ by rounding."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            same(found[key], value, f"{name} {key}")
    elif isinstance(expected, torch.Tensor):
        # The gradient of these is zero but for rounding, of which AdamW makes whole steps.
        if not name.endswith(("k_proj.bias", "key.bias")):
            most = 5e-5 if name.startswith(" reconstructed") else 2e-5
            scale = max(1.0, float(expected.abs().max()))
            assert float((found - expected).abs().max()) <= most * scale, name
    elif isinstance(expected, (tuple, list)) and expected and isinstance(expected[0], float):
        # Masks are trained for some steps, in which rounding grows.
        relative = 2e-2 if name.startswith(" learned") else 1e-3
        assert found == pytest.approx(expected, rel=relative, abs=1e-5), name
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-5), name
    else:
        assert found == expected, name


def test_ranks_compute_what_one_process_does(alone, tmp_path: Path):
    """Every scoring method, both repairs, both learned masks, layers to drop, translations."""
    found, expected = found_by_ranks(tmp_path), dict(alone[1])
    shards = [rank.pop("rows") for rank in found]
    assert sorted(row for shard in shards for row in shard) == expected.pop("rows")
    tokens = [rank.pop("tokens") for rank in found]
    assert sum(tokens) == expected.pop("tokens")
    longest = max(len(x.source) + len(x.target) for x in examples("marian", rank_cases.ROWS))
    assert max(tokens) - min(tokens) <= longest
    steps = {rank.pop("steps") for rank in found}
    assert len(steps) == 1  # a clock ended the training, the one of rank 0
    assert steps.pop() > 1
    for rank in found:
        same(rank, expected)


def test_sharded_models_are_trained_as_whole_ones(alone, tmp_path: Path):
    """Two processes that share out weights (FSDP): distillation and learned masks.

    A rank is killed in the middle, and the same goes on.
    """
    killed = ranks(2, tmp_path, 3, module="tests.helpers.rank_cases")
    assert [rank.returncode for rank in killed] == [3, -9], killed[0].stderr
    assert killed[0].stdout.split() == ["rank-lost"]
    assert not list(tmp_path.glob("*.pickle"))
    first, second = found_by_ranks(tmp_path, 0)
    for here, there in zip(first.pop("held"), second.pop("held"), strict=True):
        assert here[0] + there[0] == pytest.approx(here[1], rel=0.02)  # and a little padding
        assert max(here[0], there[0]) < 0.55 * here[1]
    folder, expected = alone
    for rank in (first, second):
        same(rank, {name: expected[name] for name in rank})
    states = (load_file(x / rank_cases.STATE) for x in (tmp_path, folder))
    same(*states)  # what a run leaves to resume from


@pytest.fixture(scope="module")
def translated(checkpoints, tmp_path_factory) -> dict[str, str]:
    """As `inputs`, for a translator."""
    return recipe_for(checkpoints["short-marian"], tmp_path_factory.mktemp("rows")).options


def command(inputs: dict[str, str], output: Path, *more: object) -> list[str]:
    """`compress run`, which keeps half of the heads unless `more` says otherwise."""
    words = [
        "run", "-m", inputs["model"], "--calibration", inputs["calibration"],
        "--test", inputs["test"], "-o", output, "--device", "cpu", "--resamples", "100",
        "--no-bench", *(more if "--macs" in more else ("--keep", "0.5", *more)),
    ]  # fmt: skip
    return [*map(str, words)]


def of_run(output: Path) -> tuple[object, ...]:
    """What a run decided and measured."""
    units = json.loads((output / "units.json").read_text("utf-8"))
    report = json.loads((output / "report.json").read_text("utf-8"))
    qualities = [x["quality"]["metrics"] for x in [report["dense"], *report["variants"]]]
    return units["kept"], units["recovery"].split(";")[0], qualities


def test_a_translator_is_compressed_as_by_one_process(translated, tmp_path: Path):
    """Depth, scores, learning from text, beams, evaluation; rank 0 alone writes and speaks."""
    text = tmp_path / "text.txt"
    text.write_text("\n".join(toy.sentences(20, seed=5)), "utf-8")
    more = (
        "--macs", "0.6", "--recover", "reconstruct+distill", "--distill-epochs", "1",
        "--distill-text", text, "--distill-beams", "2",
    )  # fmt: skip
    ended = ranks(2, *command(translated, tmp_path / "two", *more))
    assert [rank.returncode for rank in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    assert "recovering (reconstruct+distill)" in ended[0].stderr
    assert (ended[1].stdout, ended[1].stderr) == ("", "")
    assert invoke(command(translated, tmp_path / "one", *more)) == 0
    assert of_run(tmp_path / "two") == of_run(tmp_path / "one")


@pytest.mark.parametrize(
    ("fault", "id", "status"),
    [
        pytest.param("version", "ranks-differ-in-versions", 3, marks=pytest.mark.attack),
        ("rows", "ranks-differ-in-inputs", 4),
        pytest.param("missing", "file-missing", 4, marks=pytest.mark.attack),
        pytest.param("absent", "ranks-missing", 3, marks=pytest.mark.attack),
    ],
)
def test_one_message_before_anything_is_computed(inputs, tmp_path: Path, fault, id, status):
    words = command(inputs, tmp_path / "out")
    own = {0: {"COMPRESS_RANK_SECONDS": "8"}, 1: {"FAULT": fault}}
    ended = ranks(2, *words, "--json", own=own)
    check_one_message(ended, id, status)
    assert not list(tmp_path.glob("out/.compress/*.json"))


def check_one_message(ended: list[Any], id: str, status: int) -> None:
    """One rank speaks, on stderr and as JSON; its exit status is that of the error."""
    spoke = [rank for rank in ended if rank.stdout]
    assert len(spoke) == 1, [rank.stderr for rank in ended]
    answer = json.loads(spoke[0].stdout)
    assert (answer["id"], answer["exit_status"]) == (id, status), answer
    assert spoke[0].returncode == status
    assert sum(rank.stderr.count("error: ") for rank in ended) == 1


@pytest.mark.attack
@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSTOP"])
def test_the_same_command_goes_on_when_a_rank_was_lost(inputs, tmp_path: Path, capsys, signal):
    """A killed rank ends its connections; a stopped one does not answer any more."""
    words = command(inputs, tmp_path / "out")
    own = {rank: {"COMPRESS_RANK_SECONDS": "6"} for rank in range(2)}
    own[1]["FAULT"] = signal
    ended = ranks(2, *words, "--json", own=own)
    check_one_message(ended, "rank-lost", 3)
    assert ended[1].returncode == -9
    if signal == "SIGSTOP":
        return  # what is saved is the same
    assert invoke(words) == 0
    assert "exporting the dense model to compare with: done before" in capsys.readouterr().err


@pytest.mark.attack
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate", "accelerate FSDP"])
def test_launchers_start_it(inputs, tmp_path: Path, launcher: str):
    """With a configuration file of accelerate's: bf16, on processors."""
    config = tmp_path / "accelerate.yaml"
    config.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: bf16\n"
        "num_machines: 1\nnum_processes: 2\n",
        "utf-8",
    )
    start = {
        "torchrun": ["torch.distributed.run", "--nproc-per-node", "2"],
        "accelerate": ["accelerate.commands.launch", "--config_file", str(config)],
        "accelerate FSDP": ["accelerate.commands.launch", "--config_file", str(SHARDED)],
    }[launcher]
    words = command(inputs, tmp_path / "out", "--recover", "distill", "--distill-epochs", "1")
    line = [sys.executable, "-m", *start, "-m", "compressor", *words]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("reading inputs") == 1
    assert ("models are sharded" in ended.stderr) == (launcher == "accelerate FSDP")
    recipe = yaml.safe_load((tmp_path / "out" / "recipe.yaml").read_text("utf-8"))
    # Without a precision of the launcher's the processor decides.
    assert recipe["distill_precision"] in (
        {"bf16"} if launcher == "accelerate" else {"bf16", "fp32"}
    )


def test_more_ranks_than_rows(monkeypatch):
    monkeypatch.setattr(parallel, "_ranks", Ranks(0, 12))
    with raises(InputError, "fewer-rows-than-ranks"):
        require_rows_for_ranks(23)
    require_rows_for_ranks(24)


FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}


@pytest.mark.parametrize(
    ("name", "environment", "id", "status"),
    [
        ("score", {}, "command-for-one-process", 2),
        ("run", {"COMPRESS_RANK_SECONDS": "soon"}, "rank-seconds-invalid", 3),
        ("run", {"ACCELERATE_MIXED_PRECISION": "fp16"}, "accelerate-option-unsupported", 3),
        ("run", {"ACCELERATE_USE_DEEPSPEED": "true"}, "accelerate-option-unsupported", 3),
        ("run", FSDP | {"FSDP_VERSION": "1"}, "accelerate-option-unsupported", 3),
        ("run", {"accelerate": ""}, "accelerate-missing", 3),
    ],
)
def test_a_launcher_that_asks_for_what_cannot_be(
    inputs, tmp_path: Path, monkeypatch, capsys, name, environment, id, status
):
    launched = {
        "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }  # fmt: skip
    for variable, value in (launched | environment).items():
        monkeypatch.setenv(variable, value)
    if "accelerate" in environment:
        monkeypatch.setitem(sys.modules, "accelerate", None)
    words = command(inputs, tmp_path / "out")
    assert invoke([name, *words[1:], "--json"]) == status
    assert json.loads(capsys.readouterr().out)["id"] == id


def test_transformers_does_not_hear_of_fsdp(monkeypatch):
    """It would leave the ranks behind the first with models without weights."""
    for variable, value in FSDP.items():
        monkeypatch.setenv(variable, value)
    assert accelerate_options.wants_shards()
    assert "ACCELERATE_USE_FSDP" not in os.environ
    assert not accelerate_options.wants_shards()
