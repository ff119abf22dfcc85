"""What `tests/parallel/test_sharding.py` trains in one process, and in several that shard models.

As a program it does that on one rank, and writes it to FOLDER/RANK.pickle. With a second argument
rank 1 is killed after so many steps of the first training.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from compressor import parallel
from compressor.errors import EnvironmentProblem
from compressor.parallel import launch, sharding
from compressor.tasks import Example
from compressor.training import loop
from tests.helpers import stages
from tests.helpers.learning import learned_by, learning
from tests.helpers.rank_cases import weights
from tests.helpers.texts import translated
from tests.helpers.tiny import tiny_model

NAMES = ("marian", "bert")
ROWS = 8 + 33  # the last step of an epoch has one row, fewer than ranks


def distilled(name: str, state: Path) -> dict[str, Any]:
    """Two epochs, with hidden states, Marian's also on text; the dense model is as it was."""
    folder = state.parent / f"text-{parallel.rank()}"
    folder.mkdir(parents=True, exist_ok=True)
    text = translated(folder, 65) if name == "marian" else None
    setup = stages.job(name, rows=ROWS, seed=3, state=state, text=text)
    before = weights(setup.dense)
    found = stages.repair(setup, distill={"epochs": 2, "hidden": 1.0, "learning_rate": 1e-3})
    assert all(torch.equal(x, before[n]) for n, x in weights(setup.dense).items())
    return {"weights": weights(found.model), "text": found.text}


def learned(name: str) -> dict[str, Any]:
    """A mask, and the encoder's weights along; without dropout, whose noise depends on ranks."""
    model = tiny_model(name)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for rate in ("dropout", "activation_dropout", "attention_dropout"):
            if isinstance(getattr(module, rate, None), float):
                setattr(module, rate, 0.0)
    options = {"epochs": 4, "train_weights": "encoder", "learning_rate": 1e-3}
    found = learned_by("hard-concrete", learning(name, model=model, seed=1), **options)
    keep = {layer: list(units) for layer, units in found.mask.keep.items()}
    return {"keep": keep, "weights": weights(found.model)}


def results(folder: Path) -> dict[str, Any]:
    """Name of the case -> what came out. Of BERT's held-out rows rank 1 has none."""
    found: dict[str, Any] = {}
    for name, shard in zip(NAMES, (parallel.shard, all_to_the_first), strict=True):
        with patch.object(parallel, "shard", shard):
            found[f"distilled {name}"] = distilled(name, folder / f"{name}.safetensors")
            found[f"learned {name}"] = learned(name)
    return found


def all_to_the_first(rows: Sequence[Example]) -> Sequence[Example]:
    """As `parallel.shard` might deal fewer rows than there are ranks."""
    return rows if parallel.is_main() else []


def measured(held: list[tuple[int, int]]) -> None:
    """From now on note the bytes of the weights of a sharded model here, and of the whole one."""
    shard = sharding.sharded

    def noted(model: nn.Module, *arguments: Any) -> nn.Module:
        made = shard(model, *arguments)
        held.append((sharding.local_bytes(made), sharding.local_bytes(model)))
        return made

    sharding.sharded = noted


def kill_after(steps: int) -> None:
    """Save after every step, and kill rank 1 when it is to add up gradients after so many."""
    loop.SAVE_SECONDS, loop._MOST_SAVING = 0.0, 1e9
    left = iter(range(steps))
    backward = torch.Tensor.backward

    def killed(loss: torch.Tensor) -> None:
        if next(left, None) is None and parallel.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        backward(loss)

    torch.Tensor.backward = killed


def main() -> None:
    folder, held = Path(sys.argv[1]), []
    launch.start("cpu", shards=True)
    measured(held)
    if len(sys.argv) > 2:
        kill_after(int(sys.argv[2]))
    try:
        found = results(folder) | {"held": held}
    except EnvironmentProblem as problem:
        print(problem.id)
        os._exit(problem.exit_code)
    launch.finish()
    (folder / f"{launch.rank()}.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
