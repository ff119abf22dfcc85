"""What `tests/parallel` computes in one process and in several, to compare: `results()`.

As a program it does that on one rank, and writes it to FOLDER/RANK.pickle.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from compressor import parallel
from compressor.importance import METHODS
from compressor.importance.depth import layers_to_drop
from compressor.model.architectures import find_sublayers
from compressor.parallel import launch
from compressor.recovery.translations import translate_lines
from compressor.tasks import TASKS
from compressor.training.text import TextLines
from tests.helpers import stages
from tests.helpers.batches import examples
from tests.helpers.learning import learned_by, learning
from tests.helpers.tiny import TRANSLATORS, tiny_model

ROWS = 17  # of each case; no multiple of 2
MODELS = ("marian", "bert")


def scores(name: str) -> dict[str, Any]:
    """Of every method, and how many passes it made."""
    rows = [replace(x, row=number) for number, x in enumerate(examples(name, ROWS))]
    task = TASKS["translation" if name in TRANSLATORS else "classification"]
    found = {}
    for method in METHODS:
        units = "heads" if method in ("confidence", "ablation", "relevance") else None
        model = tiny_model(name)
        batches = task.batches(parallel.shard(rows), model)
        setup = stages.scoring(name, batches, units, tokenizer=Words(), metric=longest)
        if name in TRANSLATORS:
            setup.model.generation_config.max_length = 8
        found[method] = stages.score(method, setup).values
        if method == "ablation":
            found["ablation of the metric"] = stages.score(method, setup, ablate="metric").values
    batches = task.batches(parallel.shard(rows), tiny_model(name))
    numbers = {"encoder": 2}
    model = tiny_model(name)
    found["layers"] = layers_to_drop(model, find_sublayers(model), batches, task, numbers)
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


def reconstructed(name: str) -> dict[str, Any]:
    found = stages.repair(stages.job(name, rows=ROWS), reconstruct={})
    return {"weights": weights(found.model), "text": found.text}


def distilled(name: str) -> dict[str, Any]:
    """With hidden states for both; the last step of an epoch has one row, fewer than ranks."""
    setup = stages.job(name, rows=8 + 33, seed=3)
    options = {"epochs": 2, "hidden": 1.0, "learning_rate": 1e-3}
    found = stages.repair(setup, distill=options)
    return {"weights": weights(found.model), "text": found.text}


def learned(name: str) -> dict[str, Any]:
    found = {}
    for method in ("hard-concrete", "subset"):
        result = learned_by(method, learning(name, seed=1), epochs=4)
        found[method] = {"keep": result.mask.keep, "scores": result.scores.values}
    return found


def translated(folder: Path) -> bytes:
    """The file of translations of more lines than two ranks take at a time."""
    source, output = folder / "lines.txt", folder / "translated.txt"
    if parallel.is_main():
        source.write_text("".join(f"line {number}\n" for number in range(1500)), "utf-8")
    parallel.agree(None)
    translate_lines(TextLines(source), output, lambda texts: [text.upper() for text in texts])
    return output.read_bytes()


def timed(folder: Path) -> int:
    """Steps of a training that a clock ends: all ranks make as many."""
    setup = stages.job("bert", rows=ROWS)
    found = stages.repair(setup, distill={"epochs": 4000, "minutes": 0.01, "patience": 9999})
    return int(found.text.split("(")[1].split()[0])


CASES: Sequence[Callable[[str], dict[str, Any]]] = (scores, reconstructed, distilled, learned)


def results(folder: Path) -> dict[str, Any]:
    """Name of the case -> what came out."""
    found: dict[str, Any] = {}
    for case in CASES:
        for name in MODELS:
            found[f"{case.__name__} {name}"] = case(name)
    found["translated"] = translated(folder)
    found["rows"] = [row.row for row in parallel.shard(examples("marian", ROWS))]
    found["tokens"] = sum(
        len(row.source) + len(row.target) for row in parallel.shard(examples("marian", ROWS))
    )
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    launch.start("cpu")
    launch.require_same_versions("0.1.0")
    found = results(folder) | {"steps": timed(folder)}
    launch.finish()
    (folder / f"{launch.rank()}.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
