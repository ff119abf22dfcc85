"""Small artifacts for the runtime's tests, with the PyTorch models they were made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compressor.architectures import AttentionLayer
from compressor.checkpoint import open_checkpoint
from compressor.export.graphs import export_graphs
from compressor.export.metadata import write_metadata
from compressor.export.tokenizer import write_tokenizer
from compressor.heads import HeadMask
from compressor.surgery import prune


@dataclass(frozen=True)
class Exported:
    """What is in `directory`, and what it must answer like."""

    directory: Path
    model: Any
    tokenizer: Any


def export(
    checkpoint: Path,
    mask_of: Callable[[list[AttentionLayer]], HeadMask],
    directory: Path,
    change: Callable[[Any], None] = lambda model: None,
) -> Exported:
    """Prune and export a checkpoint without the program's own checks.

    Args:
        change: applied to the pruned model before it is exported.
    """
    opened = open_checkpoint(str(checkpoint))
    mask = mask_of(opened.layers)
    model = prune(opened.model, opened.layers, mask)
    change(model)
    graphs = directory / "onnx"
    files = export_graphs(model, opened.layers, mask, graphs)
    write_tokenizer(opened.tokenizer, graphs / "tokenizer.json")
    write_metadata(opened, model, mask, files, graphs)
    return Exported(directory, model, opened.tokenizer)
