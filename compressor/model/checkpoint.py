"""Opening checkpoints, dense or pruned, from a local directory or a hub id; saving pruned ones."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import nn
from transformers import PretrainedConfig

from compressor.errors import InputError
from compressor.model import location, pruning_record
from compressor.model.architecture import ENCODER, ENCODER_HEADS, POSITIONS, Architecture, head_in
from compressor.model.architectures import architecture, architecture_of
from compressor.model.configuration import read_configuration
from compressor.model.files import CheckpointFiles
from compressor.model.generation import read_generation, save_generation
from compressor.model.one_token import read_one_token
from compressor.model.pruning_record import (
    KEPT_UNITS,
    MODELING_FILES,
    PRUNING_RECORD,
    PruningRecord,
)
from compressor.model.reading import malformed
from compressor.model.sentence_head import HEAD, write_layout, write_settings
from compressor.model.sentence_settings import (
    SENTENCE_TRANSFORMER,
    is_cross_encoder,
    note_cross_encoder,
    read_sentence_settings,
)
from compressor.model.stored_configuration import configuration_difference
from compressor.model.stored_tokenizer import difference_of
from compressor.model.sublayers import Mask, Sublayer
from compressor.model.token_selection import hand_on
from compressor.model.token_units import why_all_tokens
from compressor.model.tokenizer import (
    follow_sentence_settings,
    load_tokenizer,
    require_embeddings,
    save_tokenizer,
)
from compressor.model.weights import computed_weights, load_model
from compressor.storage.files import write_json
from compressor.storage.manifest import require_checkpoint_unchanged, require_own_files

SHARD_BYTES = 50 * 10**9  # of a file of weights in float32, as transformers has it


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model with all that later stages need to know about it.

    Args:
        model: in float32 on the CPU, in evaluation mode.
        tokenizer: of transformers.
        layers: sublayers of the dense model, but for those of dropped layers.
        mask: the units of them that are left.
        directory: of its files.
        name: as the user gave it: a path or a hub id.
        revision: the commit, of a model from the hub.
        dtype: in which weights are stored; computation is in float32.
        task: that it was opened for.
        pruning: its `units.json`; None of a dense checkpoint.
    """

    model: nn.Module
    tokenizer: Any
    layers: list[Sublayer]
    mask: Mask
    directory: Path
    name: str
    revision: str | None
    dtype: torch.dtype
    task: str
    pruning: PruningRecord | None = None

    @property
    def published_name(self) -> str:
        """The hub id, or the name of the directory without its parents."""
        return self.name if self.revision is not None else self.directory.resolve().name

    @property
    def attention(self) -> list[Sublayer]:
        """The sublayers that are attentions."""
        return [sublayer for sublayer in self.layers if sublayer.is_attention]

    @property
    def entry(self) -> Architecture:
        """The entry of its architecture."""
        return architecture_of(self.model)

    @property
    def notes(self) -> list[str]:
        """Sentences on what is followed of its files that transformers alone would not follow."""
        texts = (
            difference_of(self.tokenizer),
            configuration_difference(self.model.config, self.entry),
        )
        return [f"{text[0].upper()}{text[1:]}." for text in texts if text]

    @property
    def max_source_tokens(self) -> int:
        """Length of the longest input that it has positions for, special tokens included."""
        positions = self.entry.most_positions(self.model.config) or POSITIONS
        return int(min(positions, self.tokenizer.model_max_length))

    @property
    def needs_all_tokens(self) -> str:
        """Why tokens cannot be units of it, in words; empty: they can."""
        return why_all_tokens(self.model)

    def require_pairs(self) -> None:
        """Raise InputError if a pair of texts has a token type that the model does not know."""
        types = self.entry.token_types(self.model)
        require_embeddings(self.tokenizer, self.model, types, self.directory, pair=True)


def load(directory: str | Path, *, verify: bool = True) -> nn.Module:
    """Load the PyTorch model of a compressed (or dense) checkpoint, in evaluation mode.

    No weight is ever initialized at random: each must be in the checkpoint, and nothing may be left
    over but heads of other tasks.

    Args:
        directory: of the checkpoint, such as an artifact of `compress run`.
        verify: check the files against `manifest.json` first; a pruned checkpoint without one is
            warned of.

    Returns:
        The model in float32 on the CPU.

    Raises:
        InputError: a file has changed or cannot be read, the architecture is not supported, or a
            weight is missing, left over, of another shape, or not finite.
    """
    return open_checkpoint(str(directory), verify=verify).model


def open_checkpoint(
    model: str,
    *,
    task: str | None = None,
    auto_class: str | None = None,
    revision: str | None = None,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    verify: bool = True,
    dense: bool = False,
) -> Checkpoint:
    """Load model and tokenizer in float32 on the CPU, in evaluation mode.

    Args:
        model: a directory, or a hub id.
        task: None takes that of a pruned checkpoint, or the usual one of models of its class.
        auto_class: of transformers, where `architectures` in `config.json` names no head; None: the
            one of the task in `ENCODER_HEADS`.
        revision: branch, tag or commit, of a hub id.
        allow_pickle: whether weights may be read from pickles, without code in them.
        trust_remote_code: whether transformers may run the code of the tokenizer.
        verify: check the files against `manifest.json` first.
        dense: refuse a checkpoint that has lost units already.

    Raises:
        InputError: nothing is there, the architecture is not supported, weights are unsafe or
            incomplete, or the checkpoint is pruned where a dense one is wanted.
    """
    directory = location.resolve(model, revision, allow_pickle)
    require_own_files(directory)
    if verify:
        require_checkpoint_unchanged(directory, warn=(directory / PRUNING_RECORD).exists())
    sentence = read_sentence_settings(directory)  # first: other modules may need no config.json
    config = read_configuration(directory, trust_remote_code)
    note_cross_encoder(config, sentence)
    pruning = pruning_record.find_pruning_record(directory, config)
    if dense and pruning is not None:
        raise InputError(
            f"{model} has lost units already; give the dense checkpoint it was made from "
            f"({pruning.contents.get('model', 'unknown')})",
            id="checkpoint-already-pruned",
        )
    pruning_record.without_code(config)
    weights = location.weight_files(directory, allow_pickle)
    files = CheckpointFiles(
        directory=directory,
        name=model,
        revision=directory.name if directory.parent.name == "snapshots" else revision,
        config=config,
        sentence=sentence,
        pruning=pruning,
        tensors=location.stored_tensors(weights),
        generation=read_generation(directory, config),
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
    )
    return build_checkpoint(files, task, auto_class)


def build_checkpoint(
    files: CheckpointFiles, task: str | None = None, auto_class: str | None = None
) -> Checkpoint:
    """Build model and tokenizer of a checkpoint's files; arguments as of `open_checkpoint`.

    Raises:
        InputError: the weights or the tokenizer are not those of the model in `config.json`.
    """
    directory, config = files.directory, files.config
    if task is None and files.pruning is not None:
        task = files.pruning.contents.get("task")
    entry = _entry(files, task, auto_class)
    network, sublayers = load_model(files, entry)
    tokenizer = load_tokenizer(files)
    entry.head.complete(network, directory, files.sentence, files.allow_pickle)
    if entry.head is ENCODER or is_cross_encoder(config):
        follow_sentence_settings(tokenizer, config, files.sentence)
    require_embeddings(tokenizer, network, entry.token_types(network), directory)
    record = files.pruning
    mask = Mask.full(sublayers) if record is None else record.mask.of_layers_left()
    read_one_token(network)
    if mask.total("tokens") and (why := why_all_tokens(network)):
        reason = f"it says that tokens are left out, and {why}"
        raise malformed(directory / PRUNING_RECORD, reason, "units-file-of-another-model")
    hand_on(network, mask.handed_on())
    return Checkpoint(
        model=network.eval(),
        tokenizer=tokenizer,
        layers=sublayers,
        mask=mask,
        directory=directory,
        name=files.name,
        revision=files.revision,
        dtype=location.stored_dtype(files.tensors),
        task=task or entry.head.usual_task(config),
        pruning=record,
    )


def _entry(files: CheckpointFiles, task: str | None, auto_class: str | None) -> Architecture:
    config, sentence = files.config, files.sentence
    entry = architecture(config.model_type)
    embeds = sentence is not None and sentence.kind == SENTENCE_TRANSFORMER
    if embeds and task is None:
        return entry.for_class(ENCODER.auto_class)
    names = config.architectures if isinstance(config.architectures, list) else []
    named = next(filter(None, (head_in(str(name)) for name in names)), None)
    if named is not None:
        return entry.for_class(named.auto_class)
    if auto_class is None:
        auto_class = next((x for x, head in ENCODER_HEADS.items() if head.task == task), None)
    return entry.for_class(auto_class or entry.auto_class)


def round_to(model: nn.Module, dtype: torch.dtype) -> None:
    """Round all weights to `dtype`, in place, so that what is saved is what was measured."""
    if dtype == torch.float32:
        return
    computed = computed_weights(model)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and name not in computed:
            tensor.copy_(tensor.to(dtype))


def save_checkpoint(
    source: Checkpoint, model: nn.Module, record: Mapping[str, Any] | None, directory: Path
) -> list[Path]:
    """Write a model, after `round_to`, in the form in which its source is stored.

    Args:
        source: the checkpoint that it was made from.
        model: without skipped layers (`surgery.without_skipped`).
        record: the contents of `units.json`; None of a dense model.
        directory: made if it is missing.

    Returns:
        The files that were written at the root.
    """
    directory.mkdir(parents=True, exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    _save_weights(model, source.dtype, directory)
    mask = source.mask
    if record is not None:
        mask = pruning_record.recorded_mask(record).of_layers_left()
    config = pruning_record.pruned_config(model, mask)
    save_settings(source, model, directory, config)
    if hasattr(model, HEAD):
        write_layout(model, source.max_source_tokens, source.directory, directory)
    if hasattr(config, KEPT_UNITS):  # so that transformers opens it without this package
        for path in MODELING_FILES:
            shutil.copyfile(path, directory / path.name)
    if record is not None:
        text = pruning_record.render_pruning_record(record)
        (directory / PRUNING_RECORD).write_text(text, encoding="utf-8")
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
        state, filename_pattern=location.PATTERN, max_shard_size=SHARD_BYTES
    )
    total = 0
    for file, names in split.filename_to_tensors.items():
        # Converted file by file, to have one copy in memory.
        found = {name: state[name] for name in names}
        tensors = {
            name: (x.to(dtype) if x.is_floating_point() else x).contiguous()
            for name, x in found.items()
        }
        total += sum(tensor.nbytes for tensor in tensors.values())
        save_file(tensors, directory / file, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": {"total_size": total}, "weight_map": split.tensor_to_filename}
        write_json(directory / location.INDEX, index)


def save_settings(
    source: Checkpoint, model: nn.Module, directory: Path, config: PretrainedConfig
) -> None:
    """Write all of a checkpoint but its weights.

    Args:
        source: where the tokenizer and further files are from.
        model: whose generation settings are written.
        directory: to write to.
        config: to write.
    """
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
