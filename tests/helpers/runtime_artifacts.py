"""Small artifacts for the runtime's tests, with the PyTorch models they were made from."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compressor.export.ctranslate2 import write_translator
from compressor.export.task_graphs import Network
from compressor.export.tokenizer import write_tokenizer
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask, Sublayer
from compressor.model.surgery import prune
from compressor.storage.hashes import sha256_of
from compressor.storage.outputs import write_manifest
from compressor.tasks import TASKS
from tests.helpers import toy
from tests.helpers.tiny import ragged_batch, uneven_mask


@dataclass(frozen=True)
class Exported:
    """What is in `directory`, and what it must answer like."""

    directory: Path
    model: Any
    tokenizer: Any


def export(
    checkpoint: Path,
    mask_of: Callable[[list[Sublayer]], Mask],
    directory: Path,
    change: Callable[[Any], None] = lambda model: None,
    *,
    engine: str | None = None,
    tokens: list[int] | None = None,
) -> Exported:
    """Prune and export a checkpoint without the program's own checks.

    Args:
        change: applied to the pruned model before it is exported.
        engine: `ctranslate2` for what that needs, too.
        tokens: that a decoder scores; None: all.
    """
    opened = open_checkpoint(str(checkpoint))
    mask = mask_of(opened.layers)
    model = prune(opened.model, opened.layers, mask)
    change(model)
    graphs = directory / "onnx"
    network = Network(opened, model, mask, tokens)
    TASKS[opened.task].graphs.export(network, graphs)
    write_tokenizer(opened.tokenizer, graphs / "tokenizer.json")
    if engine is not None:
        write_translator(network, directory / engine, "fp32")
    write_hashes(directory)
    return Exported(directory, model, opened.tokenizer)


def write_both(checkpoint: Path) -> None:
    """Export a checkpoint into its own directory, without the program's own checks."""
    opened = open_checkpoint(str(checkpoint), verify=False)
    graphs = checkpoint / "onnx"
    TASKS[opened.task].graphs.export(Network(opened, opened.model, opened.mask), graphs)
    write_tokenizer(opened.tokenizer, graphs / "tokenizer.json")
    write_hashes(checkpoint)


def write_hashes(directory: Path) -> None:
    """List all files in the manifest, as they are now."""
    written = [path for path in directory.rglob("*") if path.is_file()]
    hashes = {path.relative_to(directory).as_posix(): sha256_of(path) for path in written}
    hashes.pop("manifest.json", None)
    write_manifest(directory, {"tool": "compress tests"}, hashes)


def vary(model: Any, end: float = 6) -> None:
    """Give a translator an output layer of its own, so that it does not repeat its input.

    Args:
        end: bias of the end token, with which sentences end at various lengths within the limit; of
            models without such a bias, what its weights are multiplied by.
    """
    rows, width = model.lm_head.weight.shape
    generator = torch.Generator().manual_seed(4)
    model.lm_head.weight = torch.nn.Parameter(0.5 * torch.randn(rows, width, generator=generator))
    settings = model.generation_config
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias[0, settings.eos_token_id] = end
    else:
        model.lm_head.weight.data[settings.eos_token_id] *= end
        settings.suppress_tokens = [model.config.pad_token_id]  # which no trained model generates


@torch.no_grad()
def balance(model: Any) -> None:
    """Center a classifier's logits, so that not one label wins for every text."""
    logits = model(**ragged_batch(model, rows=10)).logits
    last = [layer for layer in model.classifier.modules() if isinstance(layer, torch.nn.Linear)][-1]
    last.bias.sub_(logits.mean(0))


# Exporting takes seconds, so tests of several files share what comes out.
@cache
def translator() -> Exported:
    """A Marian model with SentencePiece vocabularies, different units in every layer."""
    directory = new_directory()
    dense = toy.marian_with_pieces(directory / "dense")
    return export(dense, uneven_mask, directory / "out", vary)


@cache
def classifier(name: str) -> Exported:
    """A classifier of the architecture with different units in every layer."""
    directory = new_directory()
    dense = toy.classifier(directory / "dense", name)
    return export(dense, uneven_mask, directory / "out", balance)


def largest(values: np.ndarray) -> float:
    """The largest absolute value, by which tolerances are measured."""
    return float(np.abs(values).max())


def new_directory() -> Path:
    path = Path(tempfile.mkdtemp(prefix="compress-tests-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
