"""Export of a model to verified ONNX graphs, with all files that the torch-free runtime needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.errors import UsageError
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.precision_names import BASE
from compressor.tasks import TASKS

# Modules that need torch or numpy are imported where they are used, since the recipe and the
# commands' help import `precision_names` of this package, and must be fast.
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
    """Write `directory/onnx`, and what engines need, and check all against the checkpoint.

    UsageError for an engine that runs dense models only, if units are removed.

    Args:
        batches: ragged batches to compare on.
        texts, pairs: rows to compare the tokenizer on, and their second texts, if any.
    """
    from compressor.export.tokenizer import write_tokenizer
    from compressor.export.tokenizer_check import TokenizerProbe
    from compressor.model.memory import trim_memory
    from compressor.runtime.artifact import GRAPH_DIRECTORY
    from compressor.runtime.engines.pytorch import PYTORCH_DIRECTORY

    checkpoint, task = network.checkpoint, TASKS[network.checkpoint.task]
    graphs = directory / GRAPH_DIRECTORY
    graphs.mkdir(parents=True, exist_ok=True)
    file = graphs / "tokenizer.json"
    write_tokenizer(checkpoint.tokenizer, file)  # fails sooner than graphs do
    TokenizerProbe.of(checkpoint, texts, pairs).check_file(file)
    task.graphs.export(network, graphs)
    inputs = [batch.inputs() for batch in batches]
    checks: list[Check] = task.graphs.check(network.model, directory, inputs)
    for engine in engines:
        if engine == ONNXRUNTIME:  # its graphs were checked above
            continue
        if task.engine(engine).dense_only:
            if network.mask.counts() != network.mask.totals():
                raise UsageError(
                    f"the engine {engine} runs dense models only, and {checkpoint.name} is pruned; "
                    "leave it out of --engines",
                    id="engine-for-dense-models",
                )
            model: Any = network.model
            model.save_pretrained(directory / PYTORCH_DIRECTORY)
        checks += task.graphs.add_engine(network, directory, engine, inputs)
    trim_memory()
    return checks


def graph_bytes(directory: Path, precision: str = BASE) -> int:
    """Size of the graphs of an artifact in one precision, external weights included."""
    from compressor.runtime.artifact import GRAPH_DIRECTORY, read_artifact

    graphs = directory / GRAPH_DIRECTORY
    names = read_artifact(directory).precisions[precision].values()
    return sum(path.stat().st_size for name in names for path in graphs.glob(f"{name}*"))
