"""Files of the engine `pytorch` in an artifact: the dense model's checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.errors import UsageError
from compressor.runtime.engines.pytorch import PYTORCH_DIRECTORY

if TYPE_CHECKING:
    from compressor.export.task_graphs import Network


def write_checkpoint(network: Network, directory: Path, engine: str) -> None:
    """Write the network into an artifact with `save_pretrained`.

    Raises:
        UsageError: units are removed from it, or its task is not one of transformers' own.
    """
    if network.mask.counts() != network.mask.totals():
        raise UsageError(
            f"the engine {engine} runs dense models only, and {network.checkpoint.name} is pruned; "
            "leave it out of --engines",
            id="engine-for-dense-models",
        )
    model: Any = network.model
    model.save_pretrained(directory / PYTORCH_DIRECTORY)
