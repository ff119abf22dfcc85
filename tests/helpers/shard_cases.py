"""What `tests/parallel/test_sharding.py` distills in one process and in several that shard models."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import torch

from compressor import parallel
from compressor.parallel import launch, sharding
from tests.helpers import stages
from tests.helpers.rank_cases import weights

CASES = ("marian", "bert")
ROWS = 8 + 33  # the last step of an epoch has one row, fewer than ranks


def distilled(name: str, state: Path | None = None, **options: Any) -> dict[str, Any]:
    """Two epochs with hidden states."""
    setup = stages.job(name, rows=ROWS, seed=3, state=state)
    before = weights(setup.dense)
    chosen = {"epochs": 2, "hidden": 1.0, "learning_rate": 1e-3, **options}
    found = stages.repair(setup, distill=chosen)
    assert all(torch.equal(x, before[n]) for n, x in weights(setup.dense).items())
    return {"weights": weights(found.model), "text": found.text}


def main() -> None:
    folder = Path(sys.argv[1])
    launch.start("cpu", shards=True)
    held: list[tuple[int, int]] = []
    plain = sharding.sharded

    def counted(model, layers, device):
        made = plain(model, layers, device)
        held.append((sharding.bytes_held(made), sharding.bytes_held(model)))
        return made

    sharding.sharded = counted
    found: dict[str, Any] = {f"distilled {name}": distilled(name, folder / f"{name}.safetensors") for name in CASES}
    found["held"] = held
    launch.finish()
    (folder / f"{launch.rank()}.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
