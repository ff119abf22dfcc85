"""Saving a pruned checkpoint in the format and precision of the one it was made from."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import nn
from transformers import PretrainedConfig

from compressor.model.checkpoint import Checkpoint
from compressor.model.generation import save_generation
from compressor.model.pruning_record import (
    KEPT_UNITS,
    MODELING,
    PRUNING_RECORD,
    pruned_config,
    recorded_mask,
    render_pruning_record,
)
from compressor.model.sentence_files import write_settings
from compressor.model.sentence_head import HEAD
from compressor.model.stored_weights import INDEX, PATTERN
from compressor.model.tokenizer import save_tokenizer
from compressor.model.weights import computed_weights
from compressor.storage.files import write_json

SHARD_BYTES = 50 * 10**9  # of a file of weights in float32, as transformers has it


def round_to(model: nn.Module, dtype: torch.dtype) -> None:
    """Round all weights to `dtype`, in place, so that what is saved is what was measured."""
    if dtype == torch.float32:
        return
    computed = computed_weights(model)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and name not in computed:
            tensor.copy_(tensor.to(dtype))


def save_checkpoint(
    source: Checkpoint, model: nn.Module, record: Mapping[str, Any], directory: Path
) -> list[Path]:
    """Write a pruned model in the source's format and precision, with `units.json` beside it.

    The source of its class is copied, so that transformers can open it without this package; a
    model that has lost whole layers alone needs none. The weights must already be representable in
    the stored dtype (see `round_to`).

    Args:
        source: the checkpoint that the model was made from.
        model: without skipped layers (`compressor.model.depth`).
        record: the contents of `units.json`.

    Returns:
        The files written at the root of the directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    _save_weights(model, source.dtype, directory)
    config = pruned_config(model, recorded_mask(record).of_layers_left())
    save_settings(source, model, directory, config)
    source.entry.head.save(model, source.max_source_tokens, source.directory, directory)
    if hasattr(config, KEPT_UNITS):
        shutil.copyfile(MODELING, directory / MODELING.name)
    (directory / PRUNING_RECORD).write_text(render_pruning_record(record), encoding="utf-8")
    return [p for p in directory.iterdir() if p.is_file() and before.get(p) != p.stat().st_mtime_ns]


def _save_weights(model: nn.Module, dtype: torch.dtype, directory: Path) -> None:
    """Write `model.safetensors`, or several files and their index for a large model."""
    computed = computed_weights(model)
    state: dict[str, torch.Tensor] = {}
    saved_memory = set()
    for name, value in model.state_dict().items():
        # A head is in files of its own, and tied weights are saved once.
        in_head = name.startswith(f"{HEAD}.")
        if not in_head and name not in computed and value.data_ptr() not in saved_memory:
            saved_memory.add(value.data_ptr())
            state[name] = value
    split = split_torch_state_dict_into_shards(
        state, filename_pattern=PATTERN, max_shard_size=SHARD_BYTES
    )
    total = 0
    for file, names in split.filename_to_tensors.items():
        # Converted file by file, to have one copy in memory.
        tensors = {
            name: (x.to(dtype) if x.is_floating_point() else x).contiguous()
            for name, x in ((name, state[name]) for name in names)
        }
        total += sum(tensor.nbytes for tensor in tensors.values())
        save_file(tensors, directory / file, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": {"total_size": total}, "weight_map": split.tensor_to_filename}
        write_json(directory / INDEX, index)


def save_settings(
    source: Checkpoint, model: nn.Module, directory: Path, config: PretrainedConfig
) -> None:
    """Write all of a checkpoint but its weights: `config`, other settings and the tokenizer."""
    config.save_pretrained(directory)
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        save_generation(generation, directory)
    save_tokenizer(source.tokenizer, directory)
    write_settings(source.directory, directory)
    # Files of a Marian tokenizer, should its class not have written them itself.
    for name in ("source.spm", "target.spm", "vocab.json", "target_vocab.json"):
        if (source.directory / name).exists() and not (directory / name).exists():
            shutil.copyfile(source.directory / name, directory / name)
