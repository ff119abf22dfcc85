"""Loading checkpoints: dense or pruned, from a local directory or a hub id.

A pruned checkpoint is an ordinary one plus `units.json`, which says which units of each sublayer
are left. Both are loaded strictly: every weight comes from the file, and every weight of the file
is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from compressor.errors import InputError
from compressor.model.architecture import POSITIONS, Architecture, decoder_tokens
from compressor.model.architectures import architecture, architecture_of, find_sublayers
from compressor.model.configuration import first_line, read_configuration, require_layers
from compressor.model.cross_encoder import is_cross_encoder, note_settings
from compressor.model.generation import check_generation, require_start
from compressor.model.heads import ENCODER, ENCODER_HEADS, head_in
from compressor.model.location import require_own_files, resolve
from compressor.model.memory import drop_mapped_weights
from compressor.model.modeling_pruned import WeightsMisfit
from compressor.model.pruning_record import (
    KEPT_UNITS,
    PRUNING_RECORD,
    PruningRecord,
    pruned_class,
    pruned_config,
    read_pruning_record,
    without_code,
)
from compressor.model.quiet import quiet_transformers
from compressor.model.sentence_files import read_sentence_settings
from compressor.model.sentence_settings import MODULES, SENTENCE_TRANSFORMER, SentenceSettings
from compressor.model.sentence_texts import follow_settings
from compressor.model.stored_weights import StoredTensor, stored_dtype, stored_tensors, weight_files
from compressor.model.sublayers import Mask, Sublayer
from compressor.model.tokenizer import load_tokenizer
from compressor.model.weights import (
    MOST_TIMES_STORED,
    require_fit,
    require_not_larger,
    require_ties,
    require_usable,
)
from compressor.storage.manifest import require_checkpoint_unchanged

_COPIED_AT_ONCE = 64 << 20  # bytes that are in memory twice, in the file's mapping and as a copy


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model with all that later stages need to know about it.

    Args:
        layers: the sublayers of the dense model, also where units are already removed; not those of
            whole layers that are dropped.
        mask: the units that are left of them.
        name: as the user gave it: a path or a hub id.
        revision: the commit, of a model from the hub.
        dtype: how the weights are stored; computation is in float32.
        task: name of the task that it was opened for.
        pruning: the contents of its `units.json`; None for a dense checkpoint.
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
        """Its architecture's entry in the table."""
        return architecture_of(self.model)

    @property
    def max_source_tokens(self) -> int:
        """The longest input it has positions for, special tokens included."""
        positions = self.entry.most_positions(self.model.config) or POSITIONS
        return int(min(positions, self.tokenizer.model_max_length))


def load(directory: str | Path, *, verify: bool = True) -> nn.Module:
    """The PyTorch model of a compressed (or dense) checkpoint directory, in evaluation mode.

    Strict: raises `InputError` if any weight is missing, of the wrong shape, or not finite, or if
    one is left over (but for heads of other tasks, which `architectures.ARCHITECTURES` lists).

    Args:
        verify: check the files against `manifest.json` first, where there is one; a pruned
            checkpoint without one is warned of.
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
        task: None takes the one that a pruned checkpoint was pruned for, or the usual one of models
            of its class: regression where a classifier has one output, reranking where it is a
            cross-encoder, several labels per text where its `problem_type` says so.
        auto_class: the class of transformers that opens models for the task; None: the one in
            `ENCODER_HEADS`. It counts where `architectures` in `config.json` names no head.
        verify: check the files of a checkpoint that this tool wrote against its manifest first;
            warn where there is none.
        dense: refuse a checkpoint that has lost units already.

    Raises:
        InputError: nothing there, unsupported architecture, unsafe or incomplete weights, or a
            pruned checkpoint where a dense one is wanted.
    """
    directory = resolve(model, revision, allow_pickle)
    require_own_files(directory)
    if verify:
        require_checkpoint_unchanged(directory, warn=(directory / PRUNING_RECORD).exists())
    settings = read_sentence_settings(directory)
    config = read_configuration(directory, trust_remote_code)
    note_settings(config, settings)
    pruning = _read_pruning(directory, config, model, dense)
    if task is None and pruning is not None:
        task = pruning.contents.get("task")
    entry = _entry(config, task, auto_class, settings)
    stored = stored_tensors(weight_files(directory, allow_pickle))
    network, sublayers = _load(directory, config, entry, pruning, stored)
    tokenizer = load_tokenizer(directory, config, trust_remote_code)
    entry.head.complete(network, directory, settings, allow_pickle)
    if entry.head is ENCODER or is_cross_encoder(config):
        follow_settings(tokenizer, config, settings)
    commit = directory.name if directory.parent.name == "snapshots" else revision
    return Checkpoint(
        model=network.eval(),
        tokenizer=tokenizer,
        layers=sublayers,
        mask=Mask.full(sublayers) if pruning is None else pruning.mask.of_layers_left(),
        directory=directory,
        name=model,
        revision=commit,
        dtype=stored_dtype(stored),
        task=task or entry.head.usual_task(config),
        pruning=pruning,
    )


def _read_pruning(directory: Path, config: Any, name: str, dense: bool) -> PruningRecord | None:
    """The contents of `units.json`; None for a dense checkpoint."""
    if not (directory / PRUNING_RECORD).exists():
        if getattr(config, KEPT_UNITS, None):
            raise InputError(
                f"{directory} has a pruned model, and no {PRUNING_RECORD} that says which units "
                f"are kept; copy {PRUNING_RECORD} from the artifact that it was made from",
                id="units-file-missing",
            )
        return None
    pruning = read_pruning_record(directory)
    if dense:
        origin = f" ({pruning.contents['model']})" if pruning.contents.get("model") else ""
        raise InputError(
            f"{name} has lost units already; give the dense checkpoint it was made from{origin}",
            id="checkpoint-already-pruned",
        )
    return pruning


def _entry(
    config: Any, task: str | None, auto_class: str | None, settings: SentenceSettings | None
) -> Architecture:
    """The entry for the class of transformers that the checkpoint is opened with.

    With `modules.json` for embeddings, and no task, that is an encoder alone; else the class that
    `architectures` names; else that of the task; else the architecture's usual one.
    """
    entry = architecture(config.model_type)
    embeds = settings is not None and settings.kind == SENTENCE_TRANSFORMER
    if embeds and entry.decoder:
        raise InputError(
            f"{MODULES} makes embeddings by the encoder of a {config.model_type} without its "
            "decoder, which is not supported; give a model that is an encoder, such as bert",
            id="architecture-variant-unsupported",
        )
    if embeds and task is None:
        return entry.for_class(ENCODER.auto_class)
    names = config.architectures if isinstance(config.architectures, list) else []
    named = next(filter(None, (head_in(str(name)) for name in names)), None)
    if named is not None:
        return entry.for_class(named.auto_class)
    if auto_class is None:
        auto_class = next((x for x, head in ENCODER_HEADS.items() if head.task == task), None)
    return entry.for_class(auto_class or entry.auto_class)


def _load(
    directory: Path,
    config: Any,
    entry: Architecture,
    pruning: PruningRecord | None,
    stored: Mapping[str, StoredTensor],
) -> tuple[nn.Module, list[Sublayer]]:
    """The model, and the dense model's sublayers; sizes are checked before memory is taken."""
    if entry.decoder:
        check_generation(directory, decoder_tokens(config))
    path = directory / "config.json"
    require_layers(config, len(stored), path)
    without_code(config)
    model_class = getattr(transformers, entry.auto_class)
    outline = _outline(path, config, model_class.from_config)
    sublayers = find_sublayers(outline)
    if pruning is not None:
        mask = pruning.mask.of_layers_left()
        if mask.totals() != Mask.full(sublayers).totals():
            raise InputError(
                f"{directory / PRUNING_RECORD} and config.json disagree about the dense model's "
                "units; prune the dense checkpoint again",
                id="units-file-of-another-model",
            )
        require_not_larger(outline, stored, path, MOST_TIMES_STORED)
        model_class, config = pruned_class(outline), pruned_config(outline, mask)
        outline = _outline(path, config, model_class._from_config)
    require_not_larger(outline, stored, path)
    with quiet_transformers():
        try:
            model, info = model_class.from_pretrained(
                directory,
                config=config,
                dtype=torch.float32,
                use_safetensors=all(x.file.suffix == ".safetensors" for x in stored.values()),
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        except WeightsMisfit as error:
            raise InputError(str(error), id="weights-do-not-fit") from error
        except Exception as error:  # whatever the library trips over is in the files
            raise InputError(
                f"cannot load {directory} as a {config.model_type}: {first_line(error)}",
                id="weights-unreadable",
            ) from error
    if pruning is None:  # the class of a pruned model checks for itself
        require_fit(model, info, stored, entry, directory)
    else:
        _move_weights(model)
    require_ties(outline, model, directory, entry.weights.untied)
    require_usable(model, stored)
    if entry.decoder:
        require_start(model.generation_config, directory)
    return model, sublayers


def _outline(path: Path, config: Any, build: Callable[..., nn.Module]) -> nn.Module:
    """The model that the configuration at `path` describes, whose weights take no memory."""
    with quiet_transformers():
        try:
            with torch.device("meta"):
                return build(config, dtype=torch.float32)
        except Exception as error:  # whatever the library trips over is in the files
            raise InputError(
                f"{path} describes no {config.model_type} that can be built: {first_line(error)}; "
                "get the checkpoint again",
                id="config-not-buildable",
            ) from error


def _move_weights(model: nn.Module) -> None:
    """Copy all weights out of the mapped file.

    They lie at any address there, and kernels then add up in another order: a reloaded model would
    not give the saved one's last bits.
    """
    copied = 0
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
        copied += tensor.nbytes
        if copied > _COPIED_AT_ONCE:
            drop_mapped_weights()
            copied = 0
