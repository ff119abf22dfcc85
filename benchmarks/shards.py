"""What a process holds when models are sharded (FSDP), beside whole ones in every process.

    python -m benchmarks.shards [--processes 2]

A translator of 49 million parameters with random weights is distilled for a few steps of 32 short
rows, on processors, where the processes talk through gloo. `held` is the memory of weights,
gradients and moments after a step, `peak` how far the resident memory of the process that needs
most rises above what it was before, when it held the model to distill from and the one to distill,
whole. Freed memory goes back to the system both ways. The state to resume from is written, too.
Results go to benchmarks/results/shards.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.pages import markdown_table, publish, title_of
from compressor import parallel
from compressor.model.architectures import find_sublayers
from compressor.model.sublayers import Mask
from compressor.parallel import launch
from compressor.recovery import RecoveryJob, recover
from compressor.recovery.distill import Distill
from compressor.tasks import TASKS, Example
from compressor.throughput.memory_process import host_peak_mib
from compressor.training import loop

VOCABULARY, STEPS, ROWS = 10_000, 4, 160
MIB = 2**20


def translator() -> nn.Module:
    """Marian with random weights, 49 million of them."""
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        f"{side}_{what}": number
        for side in ("encoder", "decoder")
        for what, number in (("layers", 6), ("attention_heads", 8), ("ffn_dim", 2048))
    }
    config = MarianConfig(
        vocab_size=VOCABULARY, decoder_vocab_size=VOCABULARY, d_model=512,
        max_position_embeddings=64, forced_eos_token_id=None, pad_token_id=0, eos_token_id=2,
        decoder_start_token_id=0, **sizes,
    )  # fmt: skip
    return MarianMTModel(config)


def rows() -> list[Example]:
    """Random ids, 8 of each language."""
    draw = random.Random(0)

    def ids() -> tuple[int, ...]:
        return (*(draw.randrange(3, VOCABULARY) for _ in range(7)), 2)

    return [Example(number, ids(), ids()) for number in range(ROWS)]


def perturbed(model: nn.Module) -> nn.Module:
    """A model of the same size that has something to learn."""
    made = translator()
    with torch.no_grad():
        for found, own in zip(made.parameters(), model.parameters(), strict=True):
            found.copy_(own + 0.01 * torch.randn_like(own))
    return made


def bytes_of(tensors: Any) -> int:
    """Memory of what this process has of some tensors."""
    local = (x.to_local() if parallel.is_shard(x) else x for x in tensors)
    return sum(x.numel() * x.element_size() for x in local)


def measure() -> dict[str, float]:
    """MiB of one process: what it held at the last step, and how far its memory rose."""
    held: dict[str, float] = {}
    step = loop._Run.step

    def noted(run: Any, batch: Any) -> None:
        step(run, batch)
        parameters = [p for group in run.optimizer.param_groups for p in group["params"]]
        moments = [x for found in run.optimizer.state.values() for x in found.values()]
        held["student"] = bytes_of(parameters) / MIB
        held["gradients"] = bytes_of(p.grad for p in parameters if p.grad is not None) / MIB
        held["moments"] = bytes_of(moments) / MIB
        held["teacher"] = bytes_of(run.problem.job.dense.parameters()) / MIB

    loop._Run.step = noted  # type: ignore[method-assign, assignment]
    dense = translator()
    pruned, layers = perturbed(dense), find_sublayers(dense)
    with tempfile.TemporaryDirectory() as folder:
        job = RecoveryJob(
            dense=dense, pruned=pruned, mask=Mask.full(layers), layers=layers,
            task=TASKS["translation"], examples=rows(), state=Path(folder) / "state.safetensors",
        )  # fmt: skip
        Path("/proc/self/clear_refs").write_text("5", "utf-8")  # the peak from here on
        before = host_peak_mib() or 0.0
        recover([Distill(epochs=1, steps=STEPS)], job)
        held["peak"] = (host_peak_mib() or 0.0) - before
    return held


def worker(shards: bool) -> None:
    """One process: print what each of them held."""
    launch.start("cpu", shards)
    found = parallel.gather(measure())
    if parallel.is_main():
        print(json.dumps({name: max(one[name] for one in found) for name in found[0]}))
    launch.finish()


def of_processes(count: int, way: str) -> dict[str, float]:
    """The most that one of several processes held, in MiB."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "-m"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "262144"}
    ended = subprocess.run(
        [sys.executable, "-m", *launcher, "benchmarks.shards", "--worker", way],
        env=environment, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--worker", choices=["whole", "sharded"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker == "sharded")
        return
    found = {way: of_processes(args.processes, way) for way in ("whole", "sharded")}
    titles = ["MiB a process", "whole", "sharded", "share"]
    cells = [
        [name, f"{value:.0f}", f"{part:.0f}", f"{part / value:.2f}"]
        for (name, value), part in zip(
            found["whole"].items(), found["sharded"].values(), strict=True
        )
    ]
    count = sum(p.numel() for p in translator().parameters())
    publish(
        "shards",
        f"{title_of(1)} for each of {args.processes} processes: a translator of {count:,} "
        f"parameters, distilled for {STEPS} steps.\n\n{markdown_table(titles, 'lr', cells)}\n",
    )


if __name__ == "__main__":
    main()
