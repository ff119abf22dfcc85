"""What a step of distillation takes, with products in fp32 and in bf16.

    python -m benchmarks.distill_step --tatoeba DIR [--threads 1]

The bundled translator's own units, cut by two fifths of the multiply-adds at random, learn from the
dense model in batches of 32 rows whose hidden states are not remembered, as with much text. Both
precisions run in turns on the same batches. Results go to benchmarks/results/distill-step.md.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import torch

from benchmarks.pages import markdown_table, publish, title_of
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.pipeline.inputs import encode
from compressor.recovery import RecoveryJob
from compressor.recovery.distillation import Distillation
from compressor.request import example
from compressor.tasks import TASKS, Batch
from compressor.training.precision import Precision

ROWS = 512
KEPT = 0.6  # of the units of every sublayer
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")


def problems(tatoeba: str) -> tuple[dict[Precision, Distillation], list[Batch]]:
    """A training for each precision, and the batches."""
    checkpoint = open_checkpoint(str(example.model()))
    task = TASKS[checkpoint.task]
    rows = task.read_rows(f"{tatoeba}/valid.tsv", limit=ROWS)
    examples = encode(rows, checkpoint, task)
    mask = Mask.full(checkpoint.layers).without(
        (x.name, unit) for x in checkpoint.layers for unit in range(round(KEPT * x.units), x.units)
    )
    pruned = prune(checkpoint.model, checkpoint.layers, mask)
    job = RecoveryJob(
        dense=checkpoint.model, pruned=pruned, layers=checkpoint.layers, task=task, examples=[]
    )
    made = {
        precision: Distillation(job, copy.deepcopy(pruned), [], 1e-4, 0.0, precision)
        for precision in PRECISIONS
    }
    return made, task.batches(examples, checkpoint.model, batch_tokens=None, batch_size=32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tatoeba", required=True, help="sentence pairs: valid.tsv")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    made, batches = problems(args.tatoeba)
    optimizers = {
        name: torch.optim.AdamW(problem.groups(), fused=True) for name, problem in made.items()
    }
    seconds: dict[Precision, list[float]] = {name: [] for name in made}
    for batch in (batches[0], *batches):  # the first warms up
        for name, problem in made.items():
            began = time.perf_counter()
            optimizers[name].zero_grad()
            problem.loss(batch, 0.0).backward()
            optimizers[name].step()
            seconds[name].append(time.perf_counter() - began)
    ratios = [wide / half for wide, half in zip(seconds["fp32"], seconds["bf16"], strict=True)][1:]
    cells = [
        [name, f"{1000 * statistics.median(found[1:]):.0f}"] for name, found in seconds.items()
    ]
    low, *_, high = statistics.quantiles(ratios, n=20)
    publish(
        "distill-step",
        f"{title_of(args.threads)}: milliseconds a step of 32 rows, median of {len(ratios)} "
        f"batches; bf16 is {statistics.median(ratios):.2f} times as fast, from {low:.2f} to "
        f"{high:.2f} in nine of ten.\n\n{markdown_table(['products', 'ms'], 'lr', cells)}\n",
    )


if __name__ == "__main__":
    main()
