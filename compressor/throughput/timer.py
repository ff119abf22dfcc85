"""Speed of choices of units, for a budget that searches by it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compressor.export.candidate_graphs import add_candidates
from compressor.export.precisions import write_precision
from compressor.export.task_graphs import Network
from compressor.model.checkpoint import Checkpoint
from compressor.model.memory import release
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune, without_skipped
from compressor.runtime.artifact import GRAPH_DIRECTORY
from compressor.steps.context import Context
from compressor.steps.results import Throughput
from compressor.steps.values import DENSE, DecoderTokens, Exported
from compressor.storage.names import BASE, ONNXRUNTIME
from compressor.tasks import TASKS, Rows
from compressor.tasks.opened import ModelAndRows
from compressor.throughput.bench import Subject, benchmark

RANGE_ROWS = 32  # Time does not depend on the ranges of int8 activations.


@dataclass(frozen=True)
class RunTimer:
    """Times choices of units against the dense model (`budgets.Timer`)."""

    dense: Exported
    scored: DecoderTokens  # tokens that decoders of smaller models score
    engine: str
    precision: str  # of the dense model's engine; others are timed in float32
    settings: Mapping[str, Any]  # keywords of `benchmark`
    opened: ModelAndRows  # to remove units from
    rows: Rows  # whose lengths are timed
    context: Context

    def time(
        self, masks: Mapping[str, Mask], batch: int, what: str, *, all_tokens: bool = False
    ) -> Throughput:
        """See `Timer`."""
        checkpoint = self.opened.checkpoint
        every = DecoderTokens(TASKS[checkpoint.task].graphs.output_tokens(checkpoint))
        scored = every if all_tokens else self.scored
        precision = self.precision if self.engine == self.dense.model.engine else BASE
        inputs = masks, batch, self.dense, scored, self.engine, precision, self.settings
        return self.context.steps.do(
            time_masks,
            *inputs,
            title=f"timing {what}",
            opened=self.opened,
            rows=self.rows,
            context=self.context,
        )


def time_masks(
    masks: Mapping[str, Mask],
    batch: int,
    dense: Exported,
    scored: DecoderTokens,
    engine: str,
    precision: str,
    settings: Mapping[str, Any],
    *,
    opened: ModelAndRows,
    rows: Rows,
    context: Context,
) -> Throughput:
    """Time the exported dense model without the units that masks remove, in turns with itself.

    Time does not depend on the weights, so nothing is recovered or checked.

    Args:
        masks: name of each subject -> the units that it keeps.
        batch: rows in a batch.
        dense: the dense model, exported in the precision.
        scored: tokens that decoders of smaller models score.
        engine: that is timed.
        precision: that is timed.
        settings: keywords of `benchmark`.
        opened: the dense model, and rows that the ranges of int8 activations are taken from.
        rows: whose lengths are timed.
        context: where they are timed.
    """
    exported, checkpoint = dense.directory, opened.checkpoint
    examples = opened.examples[:RANGE_ROWS] if opened.calibrated else ()
    with context.steps.staging() as folder:
        full = Mask.full(checkpoint.layers).counts()
        subjects = [Subject(DENSE, exported, full, precision, engine)]
        for number, (name, mask) in enumerate(masks.items(), 1):
            path = folder / str(number)
            export_trial(checkpoint, mask, scored, exported, path, engine)
            if precision != BASE:
                write_precision(path, precision, examples, device=context.device)
            counts = mask.of_layers_left().counts()
            subjects.append(Subject(name, path, counts, precision, engine))
            context.progress.update("graphs", number, len(masks))
        how = {**settings, "batch_sizes": [batch], "memory": False}
        return benchmark(
            subjects,
            rows=rows,
            device=context.device,
            seed=context.seed,
            progress=context.progress.message,
            **how,
        )


def export_trial(
    checkpoint: Checkpoint,
    mask: Mask,
    scored: DecoderTokens,
    dense: Path,
    directory: Path,
    engine: str = ONNXRUNTIME,
) -> None:
    """Write an engine's files of the dense weights without the units that `mask` removes.

    Args:
        checkpoint: the dense model.
        mask: the units that are kept.
        scored: tokens that the decoder scores.
        dense: the exported dense model, which graphs are copied from that lose nothing: exporting
            takes far longer than timing.
        directory: for the files.
        engine: that runs them.
    """
    graphs = directory / GRAPH_DIRECTORY
    graphs.mkdir(parents=True)
    shutil.copy(dense / GRAPH_DIRECTORY / "tokenizer.json", graphs)
    changed = {kind for kind in mask.kinds() if mask.count(kind) < mask.total(kind)}
    task_graphs = TASKS[checkpoint.task].graphs
    scores_as_dense = scored.tokens == task_graphs.output_tokens(checkpoint)
    same = [
        role
        for role, kinds in task_graphs.parts.items()
        if not changed & kinds and (scores_as_dense or role == "encoder")
    ]
    for role in same:
        for path in (dense / GRAPH_DIRECTORY).glob(f"{role}.onnx*"):  # weights may lie beside it
            shutil.copy(path, graphs)
    pruned = prune(checkpoint.model, checkpoint.layers, mask)
    small = without_skipped(checkpoint, pruned, mask)
    network = Network(small, small.model, small.mask, scored.tokens)
    needs_graphs = not task_graphs.write_engine(network, directory, engine)
    task_graphs.export(network, graphs, skip=same if needs_graphs else task_graphs.parts)
    if needs_graphs and scored.candidates is not None:
        add_candidates(directory, scored.candidates.table)
    release(small.model, keep=checkpoint.model)
