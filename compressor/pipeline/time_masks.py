"""Timing choices of units before they are built: their graphs against those of the dense model.

Time does not depend on the weights, so the graphs are those of the dense model without the units;
they are neither repaired nor checked, and deleted once timed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from compressor.budgets.speed import counts_to_measure, layer_costs, trial_mask
from compressor.export.graphs import export_graphs
from compressor.export.metadata import write_metadata
from compressor.export.vocabulary import output_tokens
from compressor.model.checkpoint import Checkpoint
from compressor.model.memory import release
from compressor.model.sublayers import Mask, kind_of
from compressor.model.surgery import prune
from compressor.pipeline.context import Context
from compressor.pipeline.stages import stage
from compressor.results import CostTable, LayerCost, Throughput, Timing
from compressor.runtime.artifact import GRAPH_DIRECTORY
from compressor.storage.staging import staging
from compressor.tasks import get_task
from compressor.throughput import Subject, benchmark

# What each graph of a translator holds; the encoder's also makes the cross-attention's keys.
_GRAPH_KINDS = {
    "encoder": {"encoder_self", "cross", "encoder_ffn"},
    "decoder": {"decoder_self", "cross", "decoder_ffn"},
}
_CHOICE = "choice"


def measure_costs(context: Context, dense: Path, batch_size: int) -> CostTable:
    """The cost table at one batch size; one resumable stage for each kind of sublayer.

    Args:
        dense: the artifact of the dense model.
    """
    rows: list[LayerCost] = []
    seconds: list[float] = []
    lengths = ""
    for kind in dict.fromkeys(sublayer.kind for sublayer in context.sublayers):
        totals = [n for name, n in context.full.totals().items() if kind_of(name) == kind]
        counts = counts_to_measure(totals[0], context.floors[kind], kind, context.multiples)
        if not counts:
            continue
        found = _time_kind(context, kind, ", ".join(map(str, counts)), counts, dense, batch_size)
        timings = {row.variant: row for row in found.rows}
        by_count = {count: timings[f"{kind}={count}"] for count in counts}
        rows += layer_costs(kind, len(totals), by_count)
        seconds.append(batch_size / timings["dense"].sentences_per_second)
        lengths = found.lengths
    mean = sum(seconds) / len(seconds)
    return CostTable(batch_size=batch_size, dense_seconds=mean, lengths=lengths, rows=rows)


@stage("costs")
def _time_kind(
    context: Context, kind: str, counts: str, numbers: list[int], dense: Path, batch_size: int
) -> Throughput:
    """Models with all sublayers of a kind at some number of units, timed against dense."""
    masks = {f"{kind}={count}": trial_mask(context.full, kind, count) for count in numbers}
    return _time_masks(context, dense, masks, batch_size)


@stage("timed-choice")
def time_mask(context: Context, dense: Path, mask: Mask, number: int, batch_size: int) -> Timing:
    """Timing of one choice of units, with its speed-up over dense.

    Args:
        number: of the try, from 1.
    """
    found = _time_masks(context, dense, {_CHOICE: mask}, batch_size)
    return next(row for row in found.rows if row.variant == _CHOICE)


def _time_masks(
    context: Context, dense: Path, masks: Mapping[str, Mask], batch_size: int
) -> Throughput:
    """Time models without the units that masks remove, in turns with the dense one.

    Rows, lengths, threads and device are those of the run's throughput measurement.

    Args:
        masks: name of each model -> its units; `dense` is taken.
    """
    settings = context.recipe.throughput
    assert settings is not None
    with staging(context.workspace.state) as staged:
        subjects = [Subject("dense", dense, context.full.counts())]
        for number, (name, mask) in enumerate(masks.items(), 1):
            path = staged / str(number)
            export_trial(context.checkpoint, mask, dense, path)
            subjects.append(Subject(name, path, mask.counts()))
            context.progress.update("graphs", number, len(masks))
        return benchmark(
            subjects,
            rows=context.data.timed,
            batch_sizes=[batch_size],
            lengths=settings.lengths,
            target_length=settings.target_length,
            device=context.device,
            threads=settings.threads,
            seconds=settings.seconds,
            memory=False,
            progress=context.progress.message,
        )


def export_trial(checkpoint: Checkpoint, mask: Mask, dense: Path, directory: Path) -> None:
    """Write unchecked graphs of the dense weights without the units that `mask` removes.

    A translator's graph from which no unit goes is copied from the artifact `dense`: exporting
    takes far longer than timing.
    """
    graphs = directory / GRAPH_DIRECTORY
    graphs.mkdir(parents=True)
    shutil.copy(dense / GRAPH_DIRECTORY / "tokenizer.json", graphs)
    changed = {kind for kind in mask.kinds() if mask.count(kind) < mask.total(kind)}
    same = [role for role, kinds in _GRAPH_KINDS.items() if not changed & kinds]
    if not get_task(checkpoint.entry.task).generates:
        same = []
    for role in same:
        for path in (dense / GRAPH_DIRECTORY).glob(f"{role}.onnx*"):  # weights may lie beside it
            shutil.copy(path, graphs)
    model = prune(checkpoint.model, checkpoint.layers, mask)
    tokens = output_tokens(checkpoint)
    files = export_graphs(model, checkpoint.layers, mask, graphs, skip=same, tokens=tokens)
    write_metadata(checkpoint, model, mask, files, graphs, tokens)
    release(model)
