"""Reading a checkpoint's `config.json`, with bounds that are checked before a model is built."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers.activations import ACT2FN

from compressor.errors import InputError
from compressor.model.architecture import (
    COMPUTED_POSITIONS,
    ENCODER_HEADS,
    LEAST_TOKENS,
    Architecture,
    decoder_tokens,
)
from compressor.model.architectures import architecture
from compressor.model.location import CONFIG_FILE, require_checkpoint
from compressor.model.reading import errors_of, malformed, read_object
from compressor.model.stored_configuration import follow_stored
from compressor.storage.input_files import shown

_MALFORMED = "config-malformed"
_MAY_BE_NULL = ("decoder_vocab_size", "num_labels", "_num_labels")
_TOKENS = [
    f"{name}_token_id"
    for name in ("pad", "bos", "eos", "sep", "decoder_start", "forced_bos", "forced_eos")
]
_ACTIVATIONS = (
    "hidden_act", "activation_function", "activation", "dense_act_fn", "hidden_activation",
    "classifier_activation",
)  # fmt: skip
# Ending of a class of transformers that no task here is for -> what its models do.
_OTHER_HEADS = {
    "ForMultipleChoice": "chooses one of several texts",
    "LMHeadModel": "continues texts",
    "ForCausalLM": "continues texts",
    "EncoderModel": "is an encoder–decoder without its decoder",
}
# Setting that nothing may be in -> what the checkpoint is, and what to give instead.
_WHOLE = "give one with all its weights in float32, float16 or bfloat16"
_FORMS = {
    "transformers_weights": f"takes its weights from a file of its own choice; {_WHOLE}",
    "quantization_config": f"is quantized; {_WHOLE}",
    "compression_config": f"is quantized; {_WHOLE}",
}
_MODELS = {
    "is_decoder": "is a decoder, whose tokens do not see those behind them",
    "add_cross_attention": "is one part of an encoder–decoder",
    "pruned_heads": "lost heads in an earlier transformers, and version 5 reads no such checkpoint",
    "tie_encoder_decoder": "has one set of weights for encoder and decoder, and version 5 of "
    "transformers reads no such checkpoint",
}


def read_configuration(directory: Path, trust_remote_code: bool) -> Any:
    """Read and check the configuration of a checkpoint.

    Args:
        directory: of the checkpoint.
        trust_remote_code: whether transformers may run the checkpoint's own code.

    Returns:
        The configuration of transformers, with the values of the file.

    Raises:
        InputError: there is none, it cannot be read, the architecture is not supported, or it
            describes a model that cannot be.
    """
    require_checkpoint(directory)
    path = directory / CONFIG_FILE
    values = read_object(path, _MALFORMED)
    with errors_of(path, _MALFORMED):
        entry = architecture(str(values.get("model_type", "none"))[:100], str(directory))
        bounds = entry.size_bounds()
        _require_variant(values, entry, path)
        _require_sizes(values, bounds)
        config: Any = transformers.AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=trust_remote_code
        )
        follow_stored(config, values, entry, path)
        loaded = {name: getattr(config, name, None) for name in bounds}  # whatever its name is
        _require_sizes({name: x for name, x in loaded.items() if x is not None}, bounds)
        if (refused := entry.refuse(config)) is not None:
            problem = f"describes a model of type {config.model_type} that cannot be pruned"
            raise _unsupported(path, problem, refused)
        if entry.decoder is None:
            _require_class_names(values, config)
        _require_values(config, entry, path)
    # These change how the model is run, not what it computes; scoring and recovery rely on the
    # usual values.
    config._attn_implementation, config.output_attentions = None, False
    config.return_dict = True
    config.chunk_size_feed_forward = 0
    return config


def require_layers(config: Any, tensors: int, path: Path) -> None:
    """Raise `InputError` if fewer tensors than layers are stored, before the layers are built.

    Args:
        config: that asks for the layers.
        tensors: how many are stored.
        path: of the configuration, for the message.
    """
    for stack in architecture(config.model_type).stacks:
        layers = getattr(config, stack.layers)
        if layers > tensors:
            reason = f"{stack.layers} is {layers:,}, and only {tensors:,} tensors are stored"
            raise malformed(path, reason, _MALFORMED)


def _require_variant(values: Mapping[str, Any], entry: Architecture, path: Path) -> None:
    """Check what transformers takes for another model, or passes over, by the same name."""
    generates = entry.decoder is not None
    heads = dict(_OTHER_HEADS)
    settings = dict(_MODELS)
    if generates:
        heads |= {x.ending: f"is for {x.task}" for x in ENCODER_HEADS.values() if x.ending}
        del settings["is_decoder"], settings["add_cross_attention"]
    names = values.get("architectures")
    name = str(names[0])[:100] if isinstance(names, list) and names else ""
    for ending, does in heads.items():
        if name.endswith(ending):
            raise _unsupported(path, f"names the class {name}, which {does}")
    for setting, reason in (_FORMS | settings).items():
        value = values.get(setting)
        if any(value.values()) if isinstance(value, dict) else value:
            form = "checkpoint-form-unsupported"
            id = form if setting in _FORMS else "architecture-variant-unsupported"
            raise _unsupported(path, f"sets {setting}", f"the model {reason}", id)
    joined = values.get("is_encoder_decoder")
    if joined is not None and bool(joined) is not generates:
        raise _unsupported(path, f"sets is_encoder_decoder to {str(joined)[:20]}")
    positions = values.get("position_embedding_type")
    if positions not in (None, "absolute"):
        problem = f"sets position_embedding_type to {str(positions)[:40]}"
        reason = "transformers has no such positions any more"
        raise _unsupported(path, problem, reason, "positions-unsupported")
    maps = values.get("auto_map")
    for auto_class, code in maps.items() if isinstance(maps, dict) else ():
        is_ours = str(code).startswith("modeling_pruned.")  # which is copied, and never run
        if str(auto_class).startswith("AutoModel") and not is_ours:
            problem = f"names the model's own code (auto_map: {code!s:.100})"
            raise _unsupported(path, problem, "remove auto_map if it is an ordinary model")


def _unsupported(
    path: Path, problem: str, reason: str = "", id: str = "architecture-variant-unsupported"
) -> InputError:
    return InputError(
        f"{path} {problem}, which is not supported{reason and f' ({reason})'}; give an encoder "
        "such as bert, or an encoder–decoder that generates texts, as transformers saves them",
        id=id,
    )


def _require_sizes(values: Mapping[str, Any], bounds: Mapping[str, tuple[int, int]]) -> None:
    for name, (least, most) in bounds.items():
        value = values.get(name, least)
        is_left_out = value is None and name in _MAY_BE_NULL
        if not is_left_out and not (type(value) is int and least <= value <= most):
            raise ValueError(f"{name} is {shown(value, 40)}, not a number from {least} to {most:,}")


def _require_values(config: Any, entry: Architecture, path: Path) -> None:
    """Raise ValueError for an impossible value that transformers has made of the file's."""
    width = int(getattr(config, entry.width))
    for stack in entry.stacks if entry.head_width is None else ():
        heads = int(getattr(config, stack.heads))
        if width % heads:
            raise ValueError(f"{stack.heads} is {heads}, which does not divide the width {width}")
    if entry.decoder is not None:
        encoder, decoder = (getattr(config, stack.layers) for stack in entry.stacks)
        entry.require_depth(encoder, decoder, str(path))
    # Padding has one number on both sides.
    rows = min(int(config.vocab_size), decoder_tokens(config))
    for name in _TOKENS if entry.decoder else ("pad_token_id",):
        ids = getattr(config, name, None)
        for value in ids if isinstance(ids, list) else [ids]:
            if value is not None and not (type(value) is int and 0 <= value < rows):
                raise ValueError(f"{name} is {shown(value, 40)}, not a token below {rows:,}")
    for name in _ACTIVATIONS:
        value = getattr(config, name, None)
        if value not in (None, *ACT2FN):
            raise ValueError(f"{name} is {shown(value, 40)}, which transformers does not know")
    for name, value in vars(config).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}, not a finite number")
    if entry.positions_after_padding and config.pad_token_id is None:
        raise ValueError("pad_token_id is missing, and positions are counted from it on")
    most = entry.most_positions(config)
    if most is not None and most < LEAST_TOKENS:
        name = str(entry.positions)
        behind = f" behind pad_token_id {config.pad_token_id}" * entry.positions_after_padding
        raise ValueError(
            f"{name} is {getattr(config, name)}, which leaves a text {max(most, 0)} "
            f"positions{behind}, and it needs {LEAST_TOKENS}"
        )
    positions = config.max_position_embeddings if entry.computes_positions(config) else 0
    if positions * width > COMPUTED_POSITIONS:
        raise ValueError(f"{positions:,} positions of width {width:,} are too many")


def _require_class_names(values: Mapping[str, Any], config: Any) -> None:
    """Raise ValueError for contradictory names of classes; transformers silently takes some."""
    names: dict[int, str] = config.id2label
    if set(names) != set(range(len(names))) or not all(isinstance(x, str) for x in names.values()):
        raise ValueError("id2label does not give a name to each class from 0 on")
    listed = values.get("id2label")
    for key in ("num_labels", "_num_labels"):
        count = values.get(key)
        if listed is not None and count not in (None, len(listed)):
            raise ValueError(f"{key} is {count}, and id2label has {len(listed)} names")
    for number, name in names.items():
        if not name.strip() or set(name) & set("\t\r\n"):
            raise ValueError(f"the name {name[:40]!r} of class {number} is not a line of text")
    # In a cell with several labels, white space around a name does not count.
    for name, count in Counter(name.strip() for name in names.values()).items():
        if count > 1:
            raise ValueError(f"id2label gives {name[:40]!r} to two classes: rename one")
    numbers = {name: number for number, name in names.items()}
    for name, number in (values.get("label2id") or {}).items():
        # Many files name classes in one of the two alone, and have LABEL_0 and so on in the other.
        if str(numbers.get(name, number if listed else None)) != str(number):
            raise ValueError(f"label2id has {name[:40]!r} for {number}, unlike id2label")
