"""What `tests/parallel` computes in one process and in several, to compare.

As a program it does that on one rank, and writes it to FOLDER/RANK.pickle. A second argument says
that ranks share out the weights of a model, and after how many steps of the first training rank 1
is killed; 0: it is not.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from compressor import parallel
from compressor.errors import EnvironmentProblem
from compressor.importance import METHODS
from compressor.importance.depth import layers_to_drop
from compressor.model.layers import find_sublayers
from compressor.parallel import launch, sharding
from compressor.recovery.translations import translate_lines
from compressor.tasks import TASKS, Example
from compressor.training import loop
from compressor.training.text import TextLines
from tests.helpers import stages
from tests.helpers.batches import examples
from tests.helpers.stages import learned_by, learning
from tests.helpers.texts import translated
from tests.helpers.tiny import tiny_model

ROWS = 17  # no multiple of 2
STATE = "state-distill.safetensors"  # what is left to resume from


def scores() -> dict[str, Any]:
    """Of every method, and layers to drop; of rows whose tokens weigh differently."""
    rows = [replace(x, row=number) for number, x in enumerate(examples("marian", ROWS))]
    found: dict[str, Any] = {}
    for method in METHODS:
        units = "heads" if method in ("confidence", "ablation", "relevance") else None
        model = tiny_model("marian")
        batches = TASKS["translation"].batches(parallel.shard(rows), model)
        setup = stages.scoring("marian", batches, units, tokenizer=Words(), metric=longest)
        setup.model.generation_config.max_length = 8
        found[method] = stages.score(method, setup).values
        if method == "ablation":
            found["ablation of the metric"] = stages.score(method, setup, ablate="metric").values
    layers, numbers = find_sublayers(model), {"encoder": 1}
    found["layers"] = layers_to_drop(model, layers, batches, TASKS["translation"], numbers)
    return found


class Words:
    """A tokenizer whose texts are the ids."""

    eos_token_id = 2

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        return " ".join(map(str, ids))

    def batch_decode(self, rows: Any, **options: Any) -> list[str]:
        return [self.decode(row.tolist()) for row in rows]


def longest(answers: Sequence[str]) -> tuple[float, str]:
    """A metric that looks at the order of the rows, too."""
    total = sum((number % 7 + 1) * sum(map(ord, text)) for number, text in enumerate(answers))
    return total / 1000, "sum"


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def distilled(folder: Path) -> dict[str, Any]:
    """A translator, also on text, with hidden states; the dense model is as it was.

    The last step of an epoch has one row, fewer than ranks.
    """
    lines = folder / f"text-{parallel.rank()}"
    lines.mkdir(parents=True, exist_ok=True)
    options = {"state": folder / "state.safetensors", "text": translated(lines, 76), "seed": 3}
    setup = stages.job("marian", rows=8 + 33, **options)
    before = weights(setup.dense)
    found = stages.repair(
        setup, distill={"epochs": 2, "hidden": 1.0, "learning_rate": 1e-3, "precision": "fp32"}
    )
    assert all(torch.equal(x, before[n]) for n, x in weights(setup.dense).items())
    return {"weights": weights(found.model), "text": found.text}


def learned(method: str, **trained: Any) -> dict[str, Any]:
    """A classifier's mask, and its weights; without dropout, whose noise depends on ranks."""
    model = tiny_model("bert")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    found = learned_by(method, learning("bert", model=model, seed=1), epochs=4, **trained)
    keep = {layer: list(units) for layer, units in found.mask.keep.items()}
    return {"keep": keep, "scores": found.scores.values, "weights": weights(found.model)}


def results(folder: Path) -> dict[str, Any]:
    """Name of the training -> what came out."""
    trained = {"train_weights": "encoder", "learning_rate": 1e-3}
    return {"distilled": distilled(folder), "learned": learned("hard-concrete", **trained)}


def results_of_whole_models(folder: Path) -> dict[str, Any]:
    """What is computed the same way however weights are held."""
    repaired = stages.repair(stages.job("marian", rows=ROWS), reconstruct={})
    rows = parallel.shard(examples("marian", ROWS))
    return {
        "scores": scores(),
        "reconstructed": {"weights": weights(repaired.model), "text": repaired.text},
        "learned subset": learned("subset"),
        "translated": translated_lines(folder),
        "rows": [row.row for row in rows],
        "tokens": sum(len(row.source) + len(row.target) for row in rows),
    }


def translated_lines(folder: Path) -> bytes:
    """The file of translations of more lines than two ranks take at a time."""
    source, output = folder / "lines.txt", folder / "translated.txt"
    if parallel.is_main():
        source.write_text("".join(f"line {number}\n" for number in range(1500)), "utf-8")
    parallel.agree(None)
    translate_lines(TextLines(source), output, lambda texts: [text.upper() for text in texts])
    return output.read_bytes()


def timed() -> int:
    """Steps of a training that a clock ends: all ranks make as many."""
    setup = stages.job("bert", rows=ROWS)
    found = stages.repair(setup, distill={"epochs": 4000, "minutes": 0.01, "patience": 9999})
    return int(found.text.split("(")[1].split()[0])


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


def results_of_shards(folder: Path, steps: int) -> dict[str, Any]:
    """Rank 1 has none of the held-out rows."""
    held: list[tuple[int, int]] = []
    measured(held)
    if steps:
        kill_after(steps)
    try:
        with patch.object(parallel, "shard", all_to_the_first):
            return results(folder) | {"held": held}
    except EnvironmentProblem as problem:
        print(problem.id)
        os._exit(problem.exit_code)


def main() -> None:
    folder, shards = Path(sys.argv[1]), len(sys.argv) > 2
    launch.start("cpu", shards=shards)
    launch.require_same_versions("0.2.0.dev0")
    if shards:
        found = results_of_shards(folder, int(sys.argv[2]))
    else:
        found = results(folder) | results_of_whole_models(folder) | {"steps": timed()}
    launch.finish()
    (folder / f"{launch.rank()}.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
