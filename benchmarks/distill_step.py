"""What a step of distillation takes: with AdamW and Muon, with products in fp32 and in bf16.

    python -m benchmarks.distill_step --tatoeba DIR [--threads 1]

The bundled translator's own units, cut by two fifths of the multiply-adds at random, learn from the
dense model, whose hidden states are not remembered, as with much text. All kinds of steps run in
turns on the same batches; those in bf16 where the processor has such products. Results are added to
benchmarks/results/distill-step.json, a section for each processor, and drawn into distill-step.md.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import Any

import torch
from torch import nn

from benchmarks.pages import (
    RESULTS,
    markdown_table,
    publish,
    title_of,
    with_interval,
    write_section,
)
from compressor.model.architectures import layer_paths
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.pipeline.inputs import encode
from compressor.recovery import RecoveryJob
from compressor.recovery.distill import MUON_BATCH_ROWS
from compressor.recovery.distillation import Distillation
from compressor.request import example
from compressor.tasks import TASKS, Batch
from compressor.training.muon import MuonAdamW, layer_matrices, parameter_groups
from compressor.training.precision import Precision, has_bf16

ROWS = 1000
KEPT = 0.6  # of the units of every sublayer
KINDS: tuple[tuple[str, Precision], ...] = (("AdamW", "fp32"), ("Muon", "fp32"), ("Muon", "bf16"))


def problems(tatoeba: str) -> tuple[dict[tuple[str, Precision], Distillation], list[Batch]]:
    """A training for each kind of step, and the batches."""
    checkpoint = open_checkpoint(str(example.model()))
    task = TASKS[checkpoint.task]
    rows = task.read_rows(f"{tatoeba}/valid.tsv", limit=ROWS)
    examples = encode(rows, checkpoint, task)
    mask = Mask.full(checkpoint.layers).without(
        (x.name, unit) for x in checkpoint.layers for unit in range(round(KEPT * x.units), x.units)
    )
    pruned = prune(checkpoint.model, checkpoint.layers, mask)
    job = RecoveryJob(
        dense=checkpoint.model, pruned=pruned, mask=mask, layers=checkpoint.layers, task=task,
        examples=[],
    )  # fmt: skip
    made = {
        kind: Distillation(job, copy.deepcopy(pruned), [], 1e-4, 0.0, kind[1])
        for kind in KINDS
        if kind[1] == "fp32" or has_bf16("cpu")
    }
    return made, task.batches(
        examples, checkpoint.model, batch_tokens=None, batch_size=MUON_BATCH_ROWS
    )


def measure(tatoeba: str) -> list[dict[str, Any]]:
    """Seconds of every kind of step: a row each, with its ratios to the first kind."""
    made, batches = problems(tatoeba)
    optimizers = {kind: _optimizer(kind, problem.student) for kind, problem in made.items()}
    seconds: dict[tuple[str, Precision], list[float]] = {kind: [] for kind in made}
    for batch in (batches[0], *batches):  # the first warms up
        for kind, problem in made.items():
            began = time.perf_counter()
            optimizers[kind].zero_grad()
            problem.loss(batch, 0.0).backward()
            optimizers[kind].step()
            seconds[kind].append(time.perf_counter() - began)
    rows = []
    for (optimizer, precision), found in seconds.items():
        ratios = [a / b for a, b in zip(seconds[KINDS[0]], found, strict=True)][1:]
        rows.append({
            "optimizer": optimizer, "products": precision, "rows": MUON_BATCH_ROWS,
            "ms": 1000 * statistics.median(found[1:]), "batches": len(ratios),
            "ratio": statistics.median(ratios), "range": [min(ratios), max(ratios)],
        })  # fmt: skip
    return rows


def _optimizer(kind: tuple[str, Precision], model: nn.Module) -> MuonAdamW:
    optimizer, precision = kind
    matrices = layer_matrices(model, layer_paths(model)) if optimizer == "Muon" else []
    return MuonAdamW(parameter_groups(model.parameters(), matrices, 1e-4, precision), fused=True)


def draw(sections: dict[str, list[dict[str, Any]]]) -> str:
    """A table for each processor."""
    titles = ["optimizer", "products", "rows a step", "ms a step", "times as fast"]
    parts = []
    for title, rows in sections.items():
        lines = [
            [
                row["optimizer"], row["products"], str(row["rows"]), f"{row['ms']:.0f}",
                with_interval(row["ratio"], row["range"]),
            ]
            for row in rows
        ]  # fmt: skip
        parts.append(
            f"{title}: median of {rows[0]['batches']} batches, and of ratios to the first line, "
            f"with the range of at least nine in ten.\n\n{markdown_table(titles, 'llrrr', lines)}\n"
        )
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tatoeba", required=True, help="sentence pairs: valid.tsv")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    path = RESULTS / "distill-step.json"
    publish(
        "distill-step", draw(write_section(path, title_of(args.threads), measure(args.tatoeba)))
    )


if __name__ == "__main__":
    main()
