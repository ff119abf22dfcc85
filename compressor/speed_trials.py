"""Timing choices of heads before they are built: their graphs against those of the dense model.

Time does not depend on the weights, so the graphs are those of the dense model without the heads;
they are neither repaired nor checked, and deleted once timed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from compressor.checkpoint import Checkpoint
from compressor.export.graphs import export_graphs
from compressor.export.metadata import write_metadata
from compressor.export.vocabulary import output_tokens
from compressor.heads import HeadMask, kind_of
from compressor.journey import Journey
from compressor.memory import release
from compressor.report.schema import CostTable, LayerCost, Throughput, Timing
from compressor.runtime.artifact import GRAPH_DIRECTORY
from compressor.speed_budget import counts_to_measure, layer_costs, trial_mask
from compressor.surgery import prune
from compressor.throughput import Subject, benchmark

# What each graph of a translator holds; the encoder's also makes the cross-attention's keys.
_GRAPH_KINDS = {"encoder": {"encoder_self", "cross"}, "decoder": {"decoder_self", "cross"}}


def measure_costs(journey: Journey, dense: Path, batch_size: int) -> CostTable:
    """The cost table at one batch size; one resumable stage for each kind of attention.

    Args:
        dense: the artifact of the dense model.
    """
    rows: list[LayerCost] = []
    seconds: list[float] = []
    lengths = ""
    for kind in journey.full.kinds():
        flags = [flags for name, flags in journey.full.keep.items() if kind_of(name) == kind]
        counts = counts_to_measure(len(flags[0]), journey.floors[kind])
        if not counts:
            continue
        masks = {f"{kind}={count}": trial_mask(journey.full, kind, count) for count in counts}
        title = f"timing layers of {kind} with {', '.join(map(str, counts))} heads"
        found = time_masks(journey, dense, f"cost-{kind}", title, masks, batch_size)
        timings = {row.variant: row for row in found.rows}
        by_count = {count: timings[f"{kind}={count}"] for count in counts}
        rows += layer_costs(kind, len(flags), by_count)
        seconds.append(batch_size / timings["dense"].sentences_per_second)
        lengths = found.lengths
    mean = sum(seconds) / len(seconds)
    return CostTable(batch_size=batch_size, dense_seconds=mean, lengths=lengths, rows=rows)


def time_mask(
    journey: Journey, dense: Path, mask: HeadMask, number: int, batch_size: int
) -> Timing:
    """Timing of one choice of heads, with its speed-up over dense; a resumable stage."""
    title = f"timing a choice of {mask.count()} of {mask.total()} heads (try {number})"
    found = time_masks(journey, dense, f"speed-{number}", title, {"choice": mask}, batch_size)
    return next(row for row in found.rows if row.variant == "choice")


def time_masks(
    journey: Journey,
    dense: Path,
    stage: str,
    title: str,
    masks: Mapping[str, HeadMask],
    batch_size: int,
) -> Throughput:
    """Time models without the heads that masks remove, in turns with the dense one.

    Rows, lengths, threads and device are those of the run's throughput measurement.

    Args:
        stage: name of the stage that keeps the result; the same name must mean the same masks.
        masks: name of each model -> its heads; `dense` is taken.
    """

    def compute() -> Throughput:
        with TemporaryDirectory(dir=journey.workspace.state, prefix="trial-") as directory:
            subjects = [Subject("dense", dense, journey.full.counts())]
            for number, (name, mask) in enumerate(masks.items(), 1):
                path = Path(directory) / str(number)
                export_trial(journey.checkpoint, mask, dense, path)
                subjects.append(Subject(name, path, mask.counts()))
                journey.talk.progress("graphs", number, len(masks))
            return _benchmark(journey, subjects, batch_size)

    data = journey.workspace.stage(stage, title, lambda: compute().model_dump())
    return Throughput.model_validate(data)


def _benchmark(journey: Journey, subjects: list[Subject], batch_size: int) -> Throughput:
    recipe = journey.recipe
    return benchmark(
        subjects,
        rows=journey.test or journey.rows,
        batch_sizes=[batch_size],
        lengths=recipe.lengths,
        target_length=recipe.target_length,
        device=journey.device,
        threads=recipe.threads,
        seconds=recipe.bench_seconds,
        memory=False,
        progress=journey.talk.say,
    )


def export_trial(checkpoint: Checkpoint, mask: HeadMask, dense: Path, directory: Path) -> None:
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
