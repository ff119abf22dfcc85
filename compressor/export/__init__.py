"""Checked ONNX graphs from a model, with all that the torch-free runtime needs beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.precision_names import BASE
from compressor.tasks import TASKS

# What needs torch or numpy is imported where it is used: the recipe and the commands' help read
# `precision_names` of this package, and must not wait for them.
if TYPE_CHECKING:
    from compressor.export.task_graphs import Network
    from compressor.results import Check
    from compressor.tasks import Batch


def export_model(
    network: Network,
    batches: Sequence[Batch],
    texts: Sequence[str],
    directory: Path,
    engines: Sequence[str] = (ONNXRUNTIME,),
    pairs: Sequence[str] | None = None,
) -> list[Check]:
    """Write `directory/onnx` and check it: graphs and tokenizer answer as PyTorch does.

    Args:
        batches: ragged batches to compare on.
        texts: rows to compare the tokenizer on.
        engines: what these need beside the graphs is written, and checked, too.
        pairs: a second text of each row, where there is one.

    Raises:
        VerificationError: an answer differs.
        InputError: the checkpoint holds settings that the runtime cannot follow.
    """
    from compressor.export.pytorch import write_checkpoint
    from compressor.export.tokenizer import write_tokenizer
    from compressor.export.tokenizer_check import TokenizerProbe
    from compressor.model.memory import trim_memory
    from compressor.runtime.artifact import GRAPH_DIRECTORY

    checkpoint, task = network.checkpoint, TASKS[network.checkpoint.task]
    graphs = directory / GRAPH_DIRECTORY
    graphs.mkdir(parents=True, exist_ok=True)
    file = graphs / "tokenizer.json"
    write_tokenizer(checkpoint.tokenizer, file, task.graphs.layouts)  # fails sooner than graphs do
    TokenizerProbe.of(checkpoint, texts, pairs).check_file(file)
    task.graphs.export(network, graphs)
    inputs = [batch.inputs() for batch in batches]
    checks: list[Check] = task.graphs.check(network.model, directory, inputs)
    for engine in engines:
        # The graphs of onnxruntime are what was checked above.
        if engine != ONNXRUNTIME:
            if task.engine(engine).dense_only:
                write_checkpoint(network, directory, engine)
            checks += task.graphs.add_engine(network, directory, engine, inputs)
    trim_memory()
    return checks


def graph_bytes(directory: Path, precision: str = BASE) -> int:
    """Size of the graphs of an artifact in one precision, external weights included."""
    from compressor.runtime.artifact import GRAPH_DIRECTORY, read_artifact

    graphs = directory / GRAPH_DIRECTORY
    names = read_artifact(directory).precisions[precision].values()
    return sum(path.stat().st_size for name in names for path in graphs.glob(f"{name}*"))
