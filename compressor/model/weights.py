"""Which weights of a model are stored and counted, and what loaded ones must be."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from compressor.errors import InputError
from compressor.model.architecture import Architecture
from compressor.model.architectures import architecture_of
from compressor.model.foreign import require_own_names
from compressor.model.heads import ENCODER
from compressor.model.stored_weights import StoredTensor

# Numbers of positions and types, which earlier versions of transformers stored as well.
_NUMBERING = r"(^|\.)(position_ids|token_type_ids)$|(^|\.)(encoder|decoder)\.version$"
# The most that a model may be larger than what is stored of it, once units were removed.
MOST_TIMES_STORED = 256

_LOOKED_AT_ONCE = 1 << 20  # numbers


def computed_weights(model: nn.Module) -> set[str]:
    """Names of weights that are computed, not stored: sinusoidal positions."""
    return set(getattr(model, "_keys_to_ignore_on_save", None) or ())


def count_parameters(model: nn.Module) -> int:
    """Number of stored weights; tied ones count once."""
    computed = computed_weights(model)
    return sum(p.numel() for name, p in model.named_parameters() if name not in computed)


def left_over(names: Collection[str], entry: Architecture) -> list[str]:
    """Stored tensors that a model has no use for, without those that are known to be harmless.

    Harmless are numberings, and the heads of other tasks that an architecture's table entry lists.
    """
    harmless = re.compile("|".join((_NUMBERING, *entry.weights.unused)))
    return sorted(name for name in names if not harmless.search(name))


def require_fit(
    model: nn.Module,
    info: Mapping[str, Any],
    stored: Collection[str],
    entry: Architecture,
    directory: Path,
) -> None:
    """Check what transformers tells about the loading of a dense model.

    Args:
        info: as `from_pretrained` gives it.
        stored: names of all stored tensors.

    Raises:
        InputError: weights are missing, of another shape, or left over.
    """
    what = type(model).__name__
    missing = sorted(info["missing_keys"])
    if entry.weights.spare is not None:
        spare = [name for name in missing if re.search(entry.weights.spare, name)]
        for name in spare:  # which were drawn at random
            model.get_parameter(name).data.zero_()
        missing = sorted({*missing}.difference(spare))
    if missing or info["unexpected_keys"]:
        require_own_names(stored, missing, what, directory)
    encoder = f"{entry.base}.(?!pooler\\.)"
    if missing and entry.decoder is None and not any(re.match(encoder, x) for x in missing):
        raise InputError(
            f"{directory} is an encoder without the head of a {what} ({missing[0]}); name --task "
            f"{ENCODER.task} for its embeddings of texts, or fine-tune it for {entry.task} first",
            id="weights-do-not-fit",
        )
    if missing:
        untied = [x for x in missing if x.split(".")[-2:-1] in (["lm_head"], ["embed_tokens"])]
        hint = "its config.json belongs to another model, or weights are missing: get it again"
        if untied == missing:
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
            f"{directory} stores {name} as {shape(held)}, but by its config.json {what} has "
            f"{shape(wanted)}; get the checkpoint again",
            id="weights-do-not-fit",
        )
    unknown = left_over(info["unexpected_keys"], entry)
    if unknown:
        raise InputError(
            f"{directory} has {len(unknown)} weights that {what} does not know (first: "
            f"{unknown[0]}); what the model says would not be what it was trained to say",
            id="weights-do-not-fit",
        )


def require_not_larger(
    model: nn.Module, stored: Mapping[str, StoredTensor], path: Path, times: int = 2
) -> None:
    """Check that a model (without memory of its own) is about as large as what is stored of it.

    Args:
        path: of the configuration that it was made from, for the message.
        times: how many times larger it may be.

    Raises:
        InputError: it is larger, so it is not the stored one, and might not fit into the memory.
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
    """Check the loaded weights of a model.

    Raises:
        InputError: some are stored as something else than floating-point numbers, or are no
            finite numbers.
    """
    own = model.state_dict()
    for name, tensor in stored.items():
        if tensor.dtype is None and name in own and own[name].is_floating_point():
            raise InputError(
                f"{tensor.file} stores {name} in a form that only quantized models have; give a "
                "checkpoint in float32, float16 or bfloat16",
                id="weights-not-float",
            )
    files = {tensor.file for tensor in stored.values()}
    bans = architecture_of(model).logits_bias
    for name, value in own.items():
        if not value.is_floating_point() or _is_finite(value):
            continue
        # A bias of minus infinity bans a token.
        if name == bans and not (value.isnan() | (value == torch.inf)).any():
            continue
        file = stored[name].file if name in stored else min(files)
        what = "not a number (NaN)" if value.isnan().any() else "infinite"
        raise InputError(
            f"a weight of {name} in {file} is {what}; the checkpoint is damaged, or its training "
            "failed: give another one",
            id="weights-not-finite",
        )


def _is_finite(value: torch.Tensor) -> bool:
    """Whether all numbers are finite; looked at in parts, since PyTorch makes copies."""
    return all(bool(part.isfinite().all()) for part in value.flatten().split(_LOOKED_AT_ONCE))


def require_ties(
    tied: nn.Module, loaded: nn.Module, directory: Path, free: Collection[str] = ()
) -> None:
    """Check that weights that the configuration ties are one weight in what was loaded.

    Args:
        tied: the model as the configuration makes it.
        free: names of weights that are what the file has, whatever the configuration says.

    Raises:
        InputError: the file has different values for them.
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


def shape(sizes: Collection[int]) -> str:
    """`60 x 32`, for messages."""
    return " x ".join(map(str, sizes)) or "a single number"
