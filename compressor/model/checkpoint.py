"""Loading checkpoints: dense or pruned, from a local directory or a hub id.

A pruned checkpoint is an ordinary one plus `units.json`, which says which units are left.
transformers 5 cannot load it (unit counts differ from layer to layer); `load` can, strictly:
every weight comes from the file and every weight of the file is used.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn
from transformers.utils import logging as hub_logging

from compressor.errors import InputError
from compressor.model.architectures import (
    CLASSIFIER,
    Architecture,
    architecture,
    find_sublayers,
)
from compressor.model.location import has_safetensors, require_weights, resolve, stored_dtype
from compressor.model.pruning_record import PruningRecord, read_pruning_record, record_of
from compressor.model.sublayers import Mask, Sublayer
from compressor.model.surgery import remove_units
from compressor.model.weights import load_strictly

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model with all that later stages need to know about it.

    Args:
        layers: the sublayers of the dense model, also where units are already gone.
        mask: the units that are left of them.
        directory: where its files are.
        name: as the user gave it: a path or a hub id.
        revision: the commit, of a model from the hub.
        dtype: how the weights are stored; computation is in float32.
        pruning: what its `units.json` says; None of a dense checkpoint.
    """

    model: nn.Module
    tokenizer: Any
    layers: list[Sublayer]
    mask: Mask
    directory: Path
    name: str
    revision: str | None
    dtype: torch.dtype
    pruning: PruningRecord | None = None

    @property
    def attention(self) -> list[Sublayer]:
        """The sublayers that are attentions."""
        return [sublayer for sublayer in self.layers if sublayer.is_attention]

    @property
    def entry(self) -> Architecture:
        """Its architecture's entry in the table."""
        return architecture(self.model.config.model_type)  # type: ignore[union-attr,arg-type]


def open_checkpoint(
    model: str,
    *,
    revision: str | None = None,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
) -> Checkpoint:
    """Load model and tokenizer in float32 on the CPU, in evaluation mode.

    Args:
        model: a directory, or a hub id.

    Raises:
        InputError: nothing there, unsupported architecture, unsafe or incomplete weights.
    """
    directory = resolve(model, revision, allow_pickle)
    config = _config(directory, trust_remote_code)
    entry = architecture(config.model_type, model)
    if entry.auto_class == CLASSIFIER:
        _require_one_of_several_classes(directory, config)
    require_weights(directory, allow_pickle)
    pruning = None
    if record_of(directory) is not None:
        pruning = read_pruning_record(directory)
        network, sublayers, mask = _load_pruned(directory, config, entry, pruning.mask)
    else:
        network, sublayers = _load_dense(directory, config, entry, allow_pickle)
        mask = Mask.full(sublayers)
    commit = directory.name if directory.parent.name == "snapshots" else revision
    return Checkpoint(
        model=network.eval(),
        tokenizer=_tokenizer(directory, trust_remote_code),
        layers=sublayers,
        mask=mask,
        directory=directory,
        name=model,
        revision=commit,
        dtype=stored_dtype(directory),
        pruning=pruning,
    )


def open_dense(
    model: str,
    *,
    revision: str | None = None,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
) -> Checkpoint:
    """`open_checkpoint` for what is to be pruned.

    Raises:
        InputError: as for `open_checkpoint`, or units were removed already.
    """
    checkpoint = open_checkpoint(
        model,
        revision=revision,
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
    )
    if checkpoint.pruning is not None:
        dense = checkpoint.pruning.dense_model
        origin = "" if dense is None else f" ({dense})"
        raise InputError(
            f"{model} has lost units already; give the dense checkpoint it was made from{origin}",
            id="checkpoint-already-pruned",
        )
    return checkpoint


def load(directory: str | Path) -> nn.Module:
    """The PyTorch model of a compressed (or dense) checkpoint directory, in evaluation mode.

    Strict: raises `InputError` if any weight is missing or of the wrong shape, or if one is left
    over (of a dense model: in its attention; a pooler that the task has no use for is ignored).
    """
    return open_checkpoint(str(directory)).model


class quiet_transformers(warnings.catch_warnings):
    """Silence the messages of transformers; what matters is checked and raised here."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
        self.verbosity = hub_logging.get_verbosity()
        hub_logging.set_verbosity_error()
        hub_logging.disable_progress_bar()

    def __exit__(self, *error: Any) -> None:
        hub_logging.set_verbosity(self.verbosity)
        super().__exit__(*error)


def _config(directory: Path, trust_remote_code: bool) -> Any:
    path = directory / "config.json"
    if not path.exists():
        raise InputError(
            f"{directory} has no config.json; give a checkpoint's directory", id="config-missing"
        )
    try:
        model_type = json.loads(path.read_text(encoding="utf-8")).get("model_type", "unknown")
    except (ValueError, AttributeError) as error:
        raise InputError(
            f"{path} is not a model configuration: {error}", id="config-malformed"
        ) from error
    architecture(model_type, str(directory))
    config = transformers.AutoConfig.from_pretrained(
        directory, local_files_only=True, trust_remote_code=trust_remote_code
    )
    positions = getattr(config, "position_embedding_type", None)
    if positions not in (None, "absolute"):
        raise InputError(
            f"{directory} has {positions} positions, with weights in its attention that the "
            "transformers library no longer knows; give a checkpoint with absolute positions",
            id="positions-unsupported",
        )
    # These change how the model is called, not what it computes; scoring and recovery rely on the
    # usual values.
    config.return_dict = True
    config.chunk_size_feed_forward = 0
    return config


def _require_one_of_several_classes(directory: Path, config: Any) -> None:
    multi_label = "multi_label_classification"
    if config.num_labels < 2 or config.problem_type in (multi_label, "regression"):
        kind = "several labels" if config.problem_type == multi_label else "a number"
        raise InputError(
            f"{directory} answers with {kind} per text (problem_type {config.problem_type}, "
            f"{config.num_labels} labels), and only classifiers with one of several labels are "
            "supported; give one of those",
            id="classifier-unsupported",
        )


def _load_dense(
    directory: Path, config: Any, entry: Architecture, allow_pickle: bool
) -> tuple[nn.Module, list[Sublayer]]:
    auto = getattr(transformers, entry.auto_class)
    safe = not allow_pickle or has_safetensors(directory)
    with quiet_transformers():
        try:
            model, info = auto.from_pretrained(
                directory,
                config=config,
                dtype=torch.float32,
                use_safetensors=safe,
                local_files_only=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(
                f"cannot load {directory} as a {config.model_type}: {reason}",
                id="weights-unreadable",
            ) from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise InputError(
            f"{directory} lacks {len(missing)} of the weights that {type(model).__name__} needs "
            f"(first: {missing[0]}); fine-tune it for {entry.task} first",
            id="weights-do-not-fit",
        )
    sublayers = find_sublayers(model)
    blocks = tuple(f"{sublayer.block}." for sublayer in sublayers if sublayer.is_attention)
    unknown = sorted(name for name in info["unexpected_keys"] if name.startswith(blocks))
    if unknown:
        raise InputError(
            f"{directory} has {len(unknown)} weights in its attention that {type(model).__name__} "
            f"does not know (first: {unknown[0]}); what the model says would not be what it was "
            "trained to say",
            id="weights-do-not-fit",
        )
    return model, sublayers


def _load_pruned(
    directory: Path, config: Any, entry: Architecture, recorded: Mask
) -> tuple[nn.Module, list[Sublayer], Mask]:
    with quiet_transformers():
        model = getattr(transformers, entry.auto_class).from_config(config, dtype=torch.float32)
    sublayers = find_sublayers(model)
    full = Mask.full(sublayers)
    attention = {sublayer.name for sublayer in sublayers if sublayer.is_attention}
    # A record from before neurons could be removed names the attention sublayers alone.
    mask = Mask({**full.keep, **recorded.keep})
    if mask.totals() != full.totals() or not set(recorded.keep) >= attention:
        raise InputError(
            f"{record_of(directory)} and config.json disagree about the dense model's units; "
            "prune the dense checkpoint again",
            id="units-file-of-another-model",
        )
    if (directory / "generation_config.json").exists():
        model.generation_config = transformers.GenerationConfig.from_pretrained(directory)
    remove_units(model, sublayers, mask)
    load_strictly(model, directory / WEIGHTS)
    return model, sublayers, mask


def _tokenizer(directory: Path, trust_remote_code: bool) -> Any:
    with quiet_transformers():
        try:
            return transformers.AutoTokenizer.from_pretrained(
                directory, local_files_only=True, trust_remote_code=trust_remote_code
            )
        except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(
                f"cannot load the tokenizer of {directory}: {reason}", id="tokenizer-unreadable"
            ) from error
