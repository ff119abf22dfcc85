"""Which weights of a model are stored and counted, and what loaded ones must be."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from compressor.errors import InputError
from compressor.model.architecture import Architecture
from compressor.model.architectures import architecture_of
from compressor.model.heads import ENCODER
from compressor.model.stored_weights import StoredTensor

# Numbers of positions and types, which earlier versions of transformers stored as well.
_NUMBERING = r"(^|\.)(position_ids|token_type_ids)$|(^|\.)(encoder|decoder)\.version$"
# A pruned checkpoint's dense model may be larger than what is stored by this factor.
MOST_TIMES_STORED = 256
_CHECKED_AT_ONCE = 1 << 20  # numbers

# What is around a model, by the beginning of its weights' names -> how to save it without.
_WRAPPERS = {
    "module.": ("torch.nn.DataParallel", "save `model.module` with save_pretrained"),
    "_orig_mod.": ("torch.compile", "save `model._orig_mod` with save_pretrained"),
    "_fsdp_wrapped_module.": (
        "FullyShardedDataParallel",
        "save it with `Trainer.save_model`, which leaves that out",
    ),
}
_OTHER_WRAPPER = (
    "another model around it, as PyTorch Lightning has one",
    "save the inner model with save_pretrained",
)
_INNER = re.compile(rf"\b({'|'.join(map(re.escape, _WRAPPERS))})")
# Part of a weight's name -> the form of weights that has it.
_FORMS = {
    r"\blora_|\bbase_layer\.": "an adapter (LoRA) beside the weights that it changes; merge them "
    "with `merge_and_unload()` of PEFT, and save that with save_pretrained",
    r"\b(qweight|qzeros|scales|g_idx|SCB|weight_format|weight_scale)$|\.(absmax|quant_map|"
    r"quant_state\.\w+)$": "quantized weights; give the checkpoint from before quantization, in "
    "float32, float16 or bfloat16",
}


def computed_weights(model: nn.Module) -> set[str]:
    """Names of weights that are computed, not stored: sinusoidal positions."""
    return set(getattr(model, "_keys_to_ignore_on_save", None) or ())


def count_parameters(model: nn.Module) -> int:
    """Number of stored weights; tied ones count once."""
    computed = computed_weights(model)
    return sum(p.numel() for name, p in model.named_parameters() if name not in computed)


def require_fit(
    model: nn.Module,
    info: Mapping[str, Any],
    stored: Collection[str],
    entry: Architecture,
    directory: Path,
) -> None:
    """Check that the stored weights of a dense model are its own, and set spare ones to zero.

    Args:
        info: on the loading, as `from_pretrained` gives it.
        stored: names of all stored tensors.
    """
    what = type(model).__name__
    missing = sorted(info["missing_keys"])
    if entry.weights.spare is not None:
        spare = [name for name in missing if re.search(entry.weights.spare, name)]
        for name in spare:  # which were drawn at random
            model.get_parameter(name).data.zero_()
        missing = [name for name in missing if name not in spare]
    if missing or info["unexpected_keys"]:
        _require_plain_names(stored, {*missing}, what, directory)
    encoder = f"{entry.base}.(?!pooler\\.)"
    if missing and entry.decoder is None and not any(re.match(encoder, x) for x in missing):
        raise InputError(
            f"{directory} is an encoder without the head of a {what} ({missing[0]}); name --task "
            f"{ENCODER.task} for its embeddings of texts, or fine-tune it for {entry.task} first",
            id="weights-do-not-fit",
        )
    if missing:
        hint = "its config.json belongs to another model, or weights are missing: get it again"
        if all(x.split(".")[-2:-1] in (["lm_head"], ["embed_tokens"]) for x in missing):
            hint = (
                "if these are the embeddings, set tie_word_embeddings to true in config.json (of "
                "Marian, share_encoder_decoder_embeddings too)"
            )
        raise InputError(
            f"{directory} lacks {len(missing)} of the weights that {what} needs "
            f"(first: {missing[0]}); {hint}",
            id="weights-do-not-fit",
        )
    for name, held, wanted in sorted(info["mismatched_keys"]):
        raise InputError(
            f"{directory} stores {name} as {_shape(held)}, but by its config.json {what} has "
            f"{_shape(wanted)}; get the checkpoint again",
            id="weights-do-not-fit",
        )
    harmless = re.compile("|".join((_NUMBERING, *entry.weights.unused)))
    unknown = sorted(name for name in info["unexpected_keys"] if not harmless.search(name))
    if unknown:
        raise InputError(
            f"{directory} has {len(unknown)} weights that {what} does not know (first: "
            f"{unknown[0]}); the model would not answer as it was trained to",
            id="weights-do-not-fit",
        )


def _require_plain_names(
    stored: Collection[str], missing: Collection[str], model: str, directory: Path
) -> None:
    """Check that weights of a model are not stored in another form, or under a wrapper's names."""
    for pattern, form in _FORMS.items():
        name = next((name for name in sorted(stored) if re.search(pattern, name)), None)
        if name is not None:
            raise InputError(
                f"{directory} stores {name}, which is of {form}", id="weights-do-not-fit"
            )
    prefixes: Counter[str] = Counter()  # of stored names that then end with a missing one
    for name in stored:
        plain = _INNER.sub("", name)
        if plain != name and plain in missing:
            prefixes[_INNER.search(name)[0]] += 1  # type: ignore[index]
            continue
        parts = plain.split(".")
        ends = (".".join(parts[i:]) for i in range(1, len(parts)))
        end = next((x for x in ends if x in missing), None)
        if end is not None:
            prefixes[plain.removesuffix(end)] += 1
    for prefix, count in prefixes.most_common(1):
        if 2 * count > len(missing):
            wrapper, advice = _WRAPPERS.get(prefix, _OTHER_WRAPPER)
            raise InputError(
                f"the names of the weights in {directory} have {prefix!r} before those of {model}, "
                f"which comes from {wrapper}; {advice}, or rename them",
                id="weights-do-not-fit",
            )


def require_not_larger(
    model: nn.Module, stored: Mapping[str, StoredTensor], path: Path, times: int = 2
) -> None:
    """Check that a model, which takes no memory yet, is not much larger than what is stored of it.

    Else it is not the stored one, and might not fit into memory.

    Args:
        path: of the configuration that it was made from.
        times: how many times larger it may be.
    """
    wanted = count_parameters(model)
    held = sum(torch.Size(tensor.shape).numel() for tensor in stored.values())
    if wanted > times * held:
        raise InputError(
            f"{path} describes a model of {wanted:,} weights, and {held:,} are stored; get the "
            "checkpoint again",
            id="weights-do-not-fit",
        )


def require_usable(model: nn.Module, stored: Mapping[str, StoredTensor]) -> None:
    """Raise InputError if loaded weights were not stored as floats, or are no finite numbers."""
    state = model.state_dict()
    for name, tensor in stored.items():
        if tensor.dtype is None and name in state and state[name].is_floating_point():
            raise InputError(
                f"{tensor.file} stores {name} in a form that only quantized models have; give a "
                "checkpoint in float32, float16 or bfloat16",
                id="weights-not-float",
            )
    bias = architecture_of(model).logits_bias
    for name, value in state.items():
        # In parts, since PyTorch makes copies.
        parts = value.flatten().split(_CHECKED_AT_ONCE) if value.is_floating_point() else ()
        if all(bool(part.isfinite().all()) for part in parts):
            continue
        # A bias of minus infinity bans a token.
        if name == bias and not (value.isnan() | (value == torch.inf)).any():
            continue
        file = stored[name].file if name in stored else min(x.file for x in stored.values())
        problem = "not a number (NaN)" if value.isnan().any() else "infinite"
        raise InputError(
            f"a weight of {name} in {file} is {problem}; the checkpoint is damaged, or its "
            "training failed: give another one",
            id="weights-not-finite",
        )


def require_ties(
    tied: nn.Module, loaded: nn.Module, directory: Path, free: Collection[str] = ()
) -> None:
    """Check that weights that the configuration ties are one weight in what was loaded.

    Args:
        tied: the model as the configuration makes it.
        free: names of weights that are as stored, whatever the configuration says.
    """
    groups: dict[int, list[str]] = {}
    for name, parameter in tied.named_parameters(remove_duplicate=False):
        if name not in free:
            groups.setdefault(id(parameter), []).append(name)
    for first, *others in groups.values():
        for other in others:
            if loaded.get_parameter(first) is not loaded.get_parameter(other):
                raise InputError(
                    f"{directory} stores different values for {first} and {other}, which its "
                    "config.json says are one; set tie_word_embeddings there to what is meant",
                    id="weights-tied-differ",
                )


def _shape(sizes: Collection[int]) -> str:
    return " x ".join(map(str, sizes)) or "a single number"
