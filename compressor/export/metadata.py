"""`onnx/graphs.json`: what the runtime must know about the graphs beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from compressor.model.checkpoint import Checkpoint
from compressor.model.sublayers import Mask
from compressor.storage.files import write_json
from compressor.tasks import TASKS

GRAPHS = "graphs.json"


def write_metadata(
    checkpoint: Checkpoint,
    model: nn.Module,
    mask: Mask,
    files: dict[str, str],
    directory: Path,
    tokens: list[int] | None = None,
) -> None:
    """Write `graphs.json` for float32 graphs in `directory`.

    Args:
        tokens: as the graphs were exported with; a list goes to a file beside `graphs.json`.

    Raises:
        InputError: the generation configuration holds settings the runtime cannot follow.
    """
    data: dict[str, Any] = {
        "schema": 1,
        "task": checkpoint.task,
        "precisions": {"fp32": files},
        "default_precision": "fp32",
        "tokenizer": "tokenizer.json",
        "max_source_tokens": checkpoint.max_source_tokens,
        "pad_token_id": int(checkpoint.tokenizer.pad_token_id),
        "inputs": list(checkpoint.entry.inputs),
    }
    own = TASKS[checkpoint.task].graphs.describe(checkpoint, model, mask, directory, tokens)
    write_json(directory / GRAPHS, data | own)
