"""Reading a checkpoint's `config.json`, with bounds that are checked before a model is built.

A number that is out of bounds would build for hours, fill the memory, or end in an error of the
library that names neither the file nor the number.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers.activations import ACT2FN

from compressor.errors import InputError
from compressor.model.architecture import COMPUTED_POSITIONS, LABELS, Architecture, decoder_tokens
from compressor.model.architectures import architecture, require_depth
from compressor.model.heads import require_class
from compressor.model.location import require_checkpoint
from compressor.storage.input_files import read_json

_MAY_BE_NULL = ("decoder_vocab_size", "num_labels", "_num_labels")
_DTYPES = ("float32", "float16", "bfloat16", "float64", "auto", None)
_TOKENS = (
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
)
_ACTIVATIONS = (
    "hidden_act", "activation_function", "activation", "dense_act_fn", "hidden_activation",
    "classifier_activation",
)  # fmt: skip
# Settings that make something else of an encoder.
_DECODERS = {
    "is_decoder": "a decoder, whose tokens do not see those behind them",
    "add_cross_attention": "one part of an encoder–decoder",
}
_OWN_CODE = "modeling_pruned."  # which `compress` copies, and never runs
# What makes transformers read weights from somewhere else, or in another form.
_FOREIGN = {
    "transformers_weights": "takes its weights from a file of its own choice",
    "quantization_config": "is quantized",
    "compression_config": "is quantized",
}


def read_configuration(directory: Path, trust_remote_code: bool) -> Any:
    """The configuration of a checkpoint; raises InputError where the model is not supported."""
    require_checkpoint(directory)
    path = directory / "config.json"
    try:
        values = read_json(path)
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; give a checkpoint's directory",
            id="config-unreadable",
        ) from error
    except ValueError as error:
        raise _malformed(path, str(error)) from error
    if not isinstance(values, dict):
        raise _malformed(path, "it is not a JSON object")
    entry = architecture(str(values.get("model_type", "none"))[:100], str(directory))
    _require_form(values, path)
    require_class(values, entry.decoder is not None, path)
    _require_variant(values, entry, path)
    _require_bounds(values, entry, path)
    try:
        config = transformers.AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # whatever the library trips over is in the files
        raise _malformed(path, first_line(error)) from error
    _require_whole(config, entry, path)
    refused = entry.refuse(config)
    if refused is not None:
        raise InputError(
            f"{path} describes a {config.model_type} that cannot be pruned: {refused}; give "
            "another checkpoint",
            id="architecture-variant-unsupported",
        )
    if entry.decoder is None:
        _require_class_names(path, values, config)
    # These change how the model is run, not what it computes; scoring and recovery rely on the
    # usual values.
    config._attn_implementation, config.output_attentions = None, False
    config.return_dict = True
    config.chunk_size_feed_forward = 0
    return config


def require_layers(config: Any, tensors: int, path: Path) -> None:
    """Raise InputError if fewer tensors than layers are stored, before the layers are built."""
    for stack in architecture(config.model_type).stacks:
        layers = getattr(config, stack.layers)
        if layers > tensors:
            raise _malformed(
                path, f"{stack.layers} is {layers:,}, and only {tensors:,} tensors are stored"
            )


def first_line(error: BaseException) -> str:
    """The first line of an error's message that says something; its class where none does."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return (" ".join(lines) if text.endswith(":") else text)[:300]  # what follows `:` says more


def _require_form(values: Mapping[str, Any], path: Path) -> None:
    """Check that all weights are in the checkpoint, in a form that is read."""
    for name, reason in _FOREIGN.items():
        if values.get(name) is not None:
            method = values[name].get("quant_method") if isinstance(values[name], dict) else None
            raise InputError(
                f"{path} sets {name}: the checkpoint {reason}{f' ({method})' if method else ''}, "
                "which is not supported; give one with all its weights in float32, float16 or "
                "bfloat16",
                id="checkpoint-form-unsupported",
            )
    positions = values.get("position_embedding_type")
    if positions not in (None, "absolute"):
        raise InputError(
            f"{path} sets position_embedding_type to {str(positions)[:40]}, whose weights in the "
            "attention transformers no longer knows; give a checkpoint with absolute positions",
            id="positions-unsupported",
        )


def _require_variant(values: Mapping[str, Any], entry: Architecture, path: Path) -> None:
    """Check what transformers takes for another model, or passes over, by the same name."""
    generates = entry.decoder is not None
    kinds = {} if generates else {n: x for n, x in _DECODERS.items() if values.get(n)}
    joined = values.get("is_encoder_decoder")
    if joined is not None and bool(joined) is not generates:
        kind = "an encoder without a decoder" if generates else "one part of an encoder–decoder"
        kinds = {"is_encoder_decoder": kind}
    for name, kind in kinds.items():
        raise InputError(
            f"{path} sets {name} to {str(values[name]).lower()[:20]}, which makes the model "
            f"{kind}, and that is not supported; if it was not trained so, remove the setting, "
            "else give another model",
            id="architecture-variant-unsupported",
        )
    heads = values.get("pruned_heads")
    if any(heads.values()) if isinstance(heads, dict) else heads:
        raise InputError(
            f"{path} names heads that an earlier transformers removed (pruned_heads), and version "
            "5 reads no such checkpoint; give the one from before their removal",
            id="architecture-variant-unsupported",
        )
    maps = values.get("auto_map")
    for auto_class, code in maps.items() if isinstance(maps, dict) else ():
        if str(auto_class).startswith("AutoModel") and not str(code).startswith(_OWN_CODE):
            raise InputError(
                f"{path} names code of its own for the model (auto_map: {str(code)[:100]}), which "
                f"is not run; give a model of transformers' own code, or, if this is an ordinary "
                f"{values['model_type']}, remove auto_map",
                id="architecture-variant-unsupported",
            )


def _require_bounds(values: Mapping[str, Any], entry: Architecture, path: Path) -> None:
    for name, (least, most) in entry.size_bounds().items():
        value = values.get(name, least)
        if value is None and name in _MAY_BE_NULL:
            continue
        if not _is_whole(value) or not least <= value <= most:
            reason = f"not a number from {least} to {most:,}"
            raise _malformed(path, f"{name} is {_shortened(value)}, {reason}")
    for name in ("dtype", "torch_dtype"):
        if name in values and values[name] not in _DTYPES:
            known = ", ".join(filter(None, _DTYPES))
            raise _malformed(path, f"{name} is {_shortened(values[name])}, none of {known}")
    for name in ("id2label", "label2id"):
        labels = values.get(name)
        if isinstance(labels, dict | list) and len(labels) > LABELS:
            raise _malformed(path, f"{name} has {len(labels):,} labels, more than {LABELS:,}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shortened(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 40 else text[:40] + "…"


def _require_whole(config: Any, entry: Architecture, path: Path) -> None:
    """Check what transformers has made of the values, whatever their names are in the file."""
    sizes = {name: getattr(config, name, None) for name in entry.size_bounds()}
    _require_bounds({n: v for n, v in sizes.items() if v is not None}, entry, path)
    width = int(getattr(config, entry.sizes.width))
    for stack in entry.stacks if entry.sizes.head_width is None else ():
        heads = int(getattr(config, stack.heads))
        if width % heads:
            reason = f"{stack.heads} is {heads}, which does not divide the width {width}"
            raise _malformed(path, reason)
    if entry.decoder is not None:
        encoder, decoder = (getattr(config, stack.layers) for stack in entry.stacks)
        require_depth(entry, encoder, decoder, str(path))
    # Padding has one number on both sides.
    rows = min(int(config.vocab_size), decoder_tokens(config))
    for name in _TOKENS if entry.decoder else ("pad_token_id",):
        ids = getattr(config, name, None)
        for value in ids if isinstance(ids, list) else [ids]:
            if value is not None and not (_is_whole(value) and 0 <= value < rows):
                shown = _shortened(value)
                raise _malformed(path, f"{name} is {shown}, not a token below {rows:,}")
    for name in _ACTIVATIONS:
        if getattr(config, name, None) not in (None, *ACT2FN):
            shown = _shortened(getattr(config, name))
            raise _malformed(path, f"{name} is {shown}, which transformers does not know")
    for name, value in vars(config).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise _malformed(path, f"{name} is {value}, not a finite number")
    if entry.computes_positions(config):
        positions = config.max_position_embeddings
        if positions * width > COMPUTED_POSITIONS:
            raise _malformed(path, f"{positions:,} positions of width {width:,} are too many")


def _require_class_names(path: Path, values: Mapping[str, Any], config: Any) -> None:
    """Check that every class has one name, a line of text that no other class has.

    Args:
        values: the contents of `config.json`; where names contradict each other, transformers
            silently takes some of them.
    """
    names: dict[int, str] = config.id2label
    if set(names) != set(range(len(names))) or not all(isinstance(x, str) for x in names.values()):
        raise _malformed(path, "id2label does not give a name to each class from 0 on")
    given = values.get("id2label")
    for key in ("num_labels", "_num_labels"):
        count = values.get(key)
        if given is not None and count not in (None, len(given)):
            raise _malformed(path, f"{key} is {count}, and id2label has {len(given)} names")
    if given is not None and len(given) != len(names):
        raise _malformed(path, "id2label has two names of one class")
    for number, name in names.items():
        if not name.strip() or set(name) & set("\t\r\n"):
            reason = f"the name {name[:40]!r} of class {number} is not a line of text"
            raise _malformed(path, reason)
    # In a cell with several labels, white space around a name does not count.
    counts = Counter(name.strip() for name in names.values())
    if len(counts) < len(names):
        raise InputError(
            f"{path}: id2label gives {counts.most_common(1)[0][0][:40]!r} to two classes, whose "
            "outputs could not be distinguished; rename one",
            id="label-name-repeated",
        )
    numbers = {name: number for number, name in names.items()}
    for name, number in (values.get("label2id") or {}).items():
        # Many files name classes in one of the two alone, and have LABEL_0 and so on in the other.
        if str(numbers.get(name, number if given else None)) != str(number):
            raise _malformed(path, f"label2id has {name[:40]!r} for {number}, unlike id2label")


def _malformed(path: Path, reason: str) -> InputError:
    return InputError(
        f"{path} is not a model configuration: {reason}; get the checkpoint again",
        id="config-malformed",
    )
