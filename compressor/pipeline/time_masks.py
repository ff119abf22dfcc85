"""Timing choices of heads before they are built: their graphs against those of the dense model.

Time does not depend on the weights, so the graphs are those of the dense model without the heads;
they are neither repaired nor checked, and deleted once timed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from compressor.budgets.speed import counts_to_measure, layer_costs, trial_mask
from compressor.export.graphs import export_graphs
from compressor.export.metadata import write_metadata
from compressor.export.vocabulary import output_tokens
from compressor.model.checkpoint import Checkpoint
from compressor.model.memory import release
from compressor.model.sublayers import Mask, kind_of
from compressor.model.surgery import prune
from compressor.pipeline.context import Context
from compressor.results import CostTable, LayerCost, Throughput, Timing
from compressor.runtime.artifact import GRAPH_DIRECTORY
from compressor.throughput import Subject, benchmark

# What each graph of a translator holds; the encoder's also makes the cross-attention's keys.
_GRAPH_KINDS = {"encoder": {"encoder_self", "cross"}, "decoder": {"decoder_self", "cross"}}


def measure_costs(context: Context, dense: Path, batch_size: int) -> CostTable:
    """The cost table at one batch size; one resumable stage for each kind of attention.

    Args:
        dense: the artifact of the dense model.
    """
    rows: list[LayerCost] = []
    seconds: list[float] = []
    lengths = ""
    for kind in context.full.kinds():
        flags = [flags for name, flags in context.full.keep.items() if kind_of(name) == kind]
        counts = counts_to_measure(len(flags[0]), context.floors[kind])
        if not counts:
            continue
        masks = {f"{kind}={count}": trial_mask(context.full, kind, count) for count in counts}
        title = f"timing layers of {kind} with {', '.join(map(str, counts))} heads"
        found = time_masks(context, dense, f"cost-{kind}", title, masks, batch_size)
        timings = {row.variant: row for row in found.rows}
        by_count = {count: timings[f"{kind}={count}"] for count in counts}
        rows += layer_costs(kind, len(flags), by_count)
        seconds.append(batch_size / timings["dense"].sentences_per_second)
        lengths = found.lengths
    mean = sum(seconds) / len(seconds)
    return CostTable(batch_size=batch_size, dense_seconds=mean, lengths=lengths, rows=rows)


def time_mask(context: Context, dense: Path, mask: Mask, number: int, batch_size: int) -> Timing:
    """Timing of one choice of heads, with its speed-up over dense; a resumable stage."""
    title = f"timing a choice of {mask.count()} of {mask.total()} heads (try {number})"
    found = time_masks(context, dense, f"speed-{number}", title, {"choice": mask}, batch_size)
    return next(row for row in found.rows if row.variant == "choice")


def time_masks(
    context: Context,
    dense: Path,
    stage: str,
    title: str,
    masks: Mapping[str, Mask],
    batch_size: int,
) -> Throughput:
    """Time models without the heads that masks remove, in turns with the dense one.

    Rows, lengths, threads and device are those of the run's throughput measurement.

    Args:
        stage: name of the stage that keeps the result; the same name must mean the same masks.
        masks: name of each model -> its heads; `dense` is taken.
    """

    def compute() -> Throughput:
        with TemporaryDirectory(dir=context.workspace.state, prefix="trial-") as directory:
            subjects = [Subject("dense", dense, context.full.counts())]
            for number, (name, mask) in enumerate(masks.items(), 1):
                path = Path(directory) / str(number)
                export_trial(context.checkpoint, mask, dense, path)
                subjects.append(Subject(name, path, mask.counts()))
                context.progress.update("graphs", number, len(masks))
            return _benchmark(context, subjects, batch_size)

    data = context.workspace.stage(stage, title, lambda: compute().model_dump())
    return Throughput.model_validate(data)


def _benchmark(context: Context, subjects: list[Subject], batch_size: int) -> Throughput:
    recipe = context.recipe
    return benchmark(
        subjects,
        rows=context.test or context.rows,
        batch_sizes=[batch_size],
        lengths=recipe.lengths,
        target_length=recipe.target_length,
        device=context.device,
        threads=recipe.threads,
        seconds=recipe.bench_seconds,
        memory=False,
        progress=context.progress.message,
    )


def export_trial(checkpoint: Checkpoint, mask: Mask, dense: Path, directory: Path) -> None:
    """Write unchecked graphs of the dense weights without the heads that `mask` removes.

    A translator's graph from which no head goes is copied from the artifact `dense`: exporting
    takes far longer than timing.
    """
    graphs = directory / GRAPH_DIRECTORY
    graphs.mkdir(parents=True)
    shutil.copy(dense / GRAPH_DIRECTORY / "tokenizer.json", graphs)
    changed = {kind for kind in mask.kinds() if mask.count(kind) < mask.total(kind)}
    same = [role for role, kinds in _GRAPH_KINDS.items() if not changed & kinds]
    if checkpoint.entry.task != "translation":
        same = []
    for role in same:
        for path in (dense / GRAPH_DIRECTORY).glob(f"{role}.onnx*"):  # weights may lie beside it
            shutil.copy(path, graphs)
    model = prune(checkpoint.model, checkpoint.layers, mask)
    tokens = output_tokens(checkpoint)
    files = export_graphs(model, checkpoint.layers, mask, graphs, skip=same, tokens=tokens)
    write_metadata(checkpoint, model, mask, files, graphs, tokens)
    release(model)
