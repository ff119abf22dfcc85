"""Reading a checkpoint's `config.json`, with bounds that are checked before a model is built.

A number that is out of bounds would build for hours, fill the memory, or end in an error of the
library that names neither the file nor the number.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers.activations import ACT2FN

from compressor.errors import InputError
from compressor.model.architecture import (
    COMPUTED_POSITIONS,
    ENCODER_HEADS,
    LABELS,
    Architecture,
    decoder_tokens,
)
from compressor.model.architectures import architecture, require_depth
from compressor.model.location import require_checkpoint
from compressor.storage.input_files import read_json, shown

_MAY_BE_NULL = ("decoder_vocab_size", "num_labels", "_num_labels")
_DTYPES = ("float32", "float16", "bfloat16", "float64", "auto", None)
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
    _require_variant(values, entry, path)
    _require_none(_wrong_sizes(values, entry), path)
    try:
        config = transformers.AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # whatever the library trips over is in the files
        raise _malformed(path, first_line(error)) from error
    _require_none(_wrong_values(config, entry, path), path)
    refused = entry.refuse(config)
    if refused is not None:
        raise InputError(
            f"{path} describes a {config.model_type} that cannot be pruned: {refused}; give "
            "another checkpoint",
            id="architecture-variant-unsupported",
        )
    if entry.decoder is None:
        _require_none(_wrong_class_names(values, config, path), path)
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
    generates, heads = entry.decoder is not None, dict(_OTHER_HEADS)
    advice = "give one for classification, tokens, questions or embeddings"
    if generates:
        heads |= {x.ending: f"is for {x.task}" for x in ENCODER_HEADS.values() if x.ending}
        advice = (
            "of encoder–decoders give one that generates texts (…ForConditionalGeneration), for "
            "other tasks an encoder such as bert"
        )
    names = values.get("architectures")
    name = str(names[0])[:100] if isinstance(names, list) and names else ""
    for ending, does in heads.items():
        if name.endswith(ending):
            raise InputError(
                f"{path} names the class {name}, which {does}, and that is not supported; {advice}",
                id="architecture-variant-unsupported",
            )
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
    pruned = values.get("pruned_heads")
    if any(pruned.values()) if isinstance(pruned, dict) else pruned:
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


def _wrong_sizes(values: Mapping[str, Any], entry: Architecture) -> Iterator[str]:
    for name, (least, most) in entry.size_bounds().items():
        value = values.get(name, least)
        is_left_out = value is None and name in _MAY_BE_NULL
        if not is_left_out and not (is_whole(value) and least <= value <= most):
            yield f"{name} is {shown(value, 40)}, not a number from {least} to {most:,}"
    for name in ("dtype", "torch_dtype"):
        if name in values and values[name] not in _DTYPES:
            known = ", ".join(filter(None, _DTYPES))
            yield f"{name} is {shown(values[name], 40)}, none of {known}"
    for name in ("id2label", "label2id"):
        labels = values.get(name)
        if isinstance(labels, dict | list) and len(labels) > LABELS:
            yield f"{name} has {len(labels):,} labels, more than {LABELS:,}"


def is_whole(value: Any) -> bool:
    """Whether a value of a JSON file is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong_values(config: Any, entry: Architecture, path: Path) -> Iterator[str]:
    """What transformers has made of the file's values, whatever their names are there."""
    sizes = {name: getattr(config, name, None) for name in entry.size_bounds()}
    yield from _wrong_sizes({n: v for n, v in sizes.items() if v is not None}, entry)
    width = int(getattr(config, entry.width))
    for stack in entry.stacks if entry.head_width is None else ():
        heads = int(getattr(config, stack.heads))
        if width % heads:
            yield f"{stack.heads} is {heads}, which does not divide the width {width}"
    if entry.decoder is not None:
        encoder, decoder = (getattr(config, stack.layers) for stack in entry.stacks)
        require_depth(entry, encoder, decoder, str(path))
    # Padding has one number on both sides.
    rows = min(int(config.vocab_size), decoder_tokens(config))
    for name in _TOKENS if entry.decoder else ("pad_token_id",):
        ids = getattr(config, name, None)
        for value in ids if isinstance(ids, list) else [ids]:
            if value is not None and not (is_whole(value) and 0 <= value < rows):
                yield f"{name} is {shown(value, 40)}, not a token below {rows:,}"
    for name in _ACTIVATIONS:
        value = getattr(config, name, None)
        if value not in (None, *ACT2FN):
            yield f"{name} is {shown(value, 40)}, which transformers does not know"
    for name, value in vars(config).items():
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{name} is {value}, not a finite number"
    positions = config.max_position_embeddings if entry.computes_positions(config) else 0
    if positions * width > COMPUTED_POSITIONS:
        yield f"{positions:,} positions of width {width:,} are too many"


def _wrong_class_names(values: Mapping[str, Any], config: Any, path: Path) -> Iterator[str]:
    """Whether every class has one name, a line of text that no other class has.

    Where names in the file contradict each other, transformers silently takes some of them.
    """
    names: dict[int, str] = config.id2label
    if set(names) != set(range(len(names))) or not all(isinstance(x, str) for x in names.values()):
        yield "id2label does not give a name to each class from 0 on"
    listed = values.get("id2label")
    for key in ("num_labels", "_num_labels"):
        count = values.get(key)
        if listed is not None and count not in (None, len(listed)):
            yield f"{key} is {count}, and id2label has {len(listed)} names"
    if listed is not None and len(listed) != len(names):
        yield "id2label has two names of one class"
    for number, name in names.items():
        if not name.strip() or set(name) & set("\t\r\n"):
            yield f"the name {name[:40]!r} of class {number} is not a line of text"
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
        if str(numbers.get(name, number if listed else None)) != str(number):
            yield f"label2id has {name[:40]!r} for {number}, unlike id2label"


def _require_none(reasons: Iterator[str], path: Path) -> None:
    for reason in reasons:
        raise _malformed(path, reason)


def _malformed(path: Path, reason: str) -> InputError:
    return InputError(
        f"{path} is not a model configuration: {reason}; get the checkpoint again",
        id="config-malformed",
    )
