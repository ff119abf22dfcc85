"""Loading the weights of a model strictly; which of them are stored and counted."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from compressor.errors import CompressWarning, InputError
from compressor.model.architecture import ENCODER, Architecture
from compressor.model.configuration import require_layers
from compressor.model.files import CheckpointFiles
from compressor.model.generation import follow_generation
from compressor.model.layers import find_sublayers
from compressor.model.location import misfit, require_usable
from compressor.model.memory import drop_mapped_weights
from compressor.model.modeling_pruned import WeightsMisfit, pruned_class, set_stored_values
from compressor.model.modes import quiet_transformers
from compressor.model.pruning_record import PRUNING_RECORD, pruned_config
from compressor.model.reading import malformed
from compressor.model.stored_configuration import (
    configuration_difference,
    says_untied,
    untied_weights,
)
from compressor.model.sublayers import Mask, Sublayer

# Numbers of positions and types, which earlier versions of transformers stored as well.
_NUMBERING = r"(^|\.)(position_ids|token_type_ids)$|(^|\.)(encoder|decoder)\.version$"
# A pruned checkpoint's dense model may be larger than what is stored by this factor.
_MOST_TIMES_STORED = 256
_COPIED_AT_ONCE = 64 << 20  # bytes that are in memory twice, in the file's mapping and as a copy

# What is around a model, by the beginning of its weights' names -> what to save instead.
_WRAPPERS = {
    "module.": "torch.nn.DataParallel; save `model.module`",
    "_orig_mod.": "torch.compile; save `model._orig_mod`",
    "_fsdp_wrapped_module.": "FullyShardedDataParallel; save it by `Trainer.save_model`",
}
_OTHER_WRAPPER = "another model around it, as PyTorch Lightning has one; save the inner model"
_INNER = re.compile(rf"\b({'|'.join(map(re.escape, _WRAPPERS))})")
# Part of a weight's name -> the form of weights that has it.
_FORMS = {
    r"\blora_|\bbase_layer\.": "an adapter (LoRA) beside the weights that it changes; merge them "
    "with `merge_and_unload()` of PEFT",
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


def load_model(files: CheckpointFiles, entry: Architecture) -> tuple[nn.Module, list[Sublayer]]:
    """Load a model; sizes are checked before memory is taken.

    Args:
        files: of the checkpoint.
        entry: of the architecture, with the head.

    Returns:
        The model in float32, and the sublayers of the dense model.

    Raises:
        InputError: weights are missing, left over, of another shape, or not finite.
    """
    directory, config = files.directory, files.config
    pruning, stored = files.pruning, files.tensors
    require_layers(config, len(stored), files.config_path)
    model_class: Any = getattr(transformers, entry.auto_class)
    outline = _outline(files.config_path, config, model_class.from_config)
    sublayers = find_sublayers(outline)
    if pruning is not None:
        mask = pruning.mask.of_layers_left()
        full = Mask.full(sublayers)
        full = full.with_tokens() if mask.total("tokens") else full
        if mask.totals() != full.totals():
            reason = "its units are not those of the model in config.json"
            raise malformed(directory / PRUNING_RECORD, reason, "units-file-of-another-model")
        _require_not_larger(outline, files, _MOST_TIMES_STORED)
        model_class = pruned_class(type(outline).__name__)
        config = pruned_config(outline, mask)
        outline = _outline(files.config_path, config, model_class._from_config)
    _require_not_larger(outline, files)
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
            raise malformed(directory, error, "weights-unreadable") from error
    if pruning is None:  # the class of a pruned model checks for itself
        _require_fit(model, info, files, entry)
    else:
        _move_weights(model)
    _require_ties(outline, model, directory, untied_weights(config, entry))
    require_usable(model, stored, entry.logits_bias)
    if files.generation is not None:
        follow_generation(model, files.generation)
    set_stored_values(model.config)
    difference = configuration_difference(model.config, entry)
    if difference and pruning is None:
        warnings.warn(f"of {directory}, {difference}", CompressWarning, stacklevel=2)
    return model, sublayers


def _outline(path: Path, config: Any, build: Callable[..., nn.Module]) -> nn.Module:
    """The model that the configuration at `path` describes, whose weights take no memory."""
    with quiet_transformers():
        try:
            with torch.device("meta"):
                return build(config, dtype=torch.float32)
        except Exception as error:  # whatever the library trips over is in the files
            raise malformed(path, error, "config-malformed") from error


def _move_weights(model: nn.Module) -> None:
    """Copy all weights out of the mapped file."""
    # They lie at any address there, and kernels then add up in another order: a reloaded model
    # would not give the saved one's last bits.
    copied = 0
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
        copied += tensor.nbytes
        if copied > _COPIED_AT_ONCE:
            drop_mapped_weights()
            copied = 0


def _require_fit(
    model: nn.Module, info: Mapping[str, Any], files: CheckpointFiles, entry: Architecture
) -> None:
    """Check that the stored weights of a dense model are its own, and set optional ones to zero."""
    what, directory = type(model).__name__, files.directory
    missing = sorted(info["missing_keys"])
    if entry.optional_weights is not None:
        optional = [name for name in missing if re.search(entry.optional_weights, name)]
        for name in optional:  # which were drawn at random
            model.get_parameter(name).data.zero_()
        missing = [name for name in missing if name not in optional]
    if missing or info["unexpected_keys"]:
        _require_plain_names(files.tensors, {*missing}, directory)
    if says_untied(model.config):  # transformers would tie them
        missing += sorted(entry.untied_weights - {*files.tensors})
    encoder = f"{entry.base}.(?!pooler\\.)"
    if missing and entry.decoder is None and not any(re.match(encoder, x) for x in missing):
        raise misfit(
            directory,
            f"is an encoder without the head of a {what} ({missing[0]})",
            f"name --task {ENCODER.task} for its embeddings of texts, or fine-tune it for "
            f"{entry.task} first",
        )
    if missing:
        raise misfit(
            directory,
            f"lacks {len(missing)} of the weights that {what} needs (first: {missing[0]})",
            "get the checkpoint again; if these are the embeddings, set tie_word_embeddings to "
            "true in config.json (of Marian, share_encoder_decoder_embeddings too)",
        )
    for name, *shapes in sorted(info["mismatched_keys"]):
        held, wanted = (" x ".join(map(str, x)) or "a single number" for x in shapes)
        raise misfit(directory, f"stores {name} as {held}, and its config.json asks for {wanted}")
    harmless = re.compile("|".join((_NUMBERING, *entry.unused_weights)))
    unknown = sorted(name for name in info["unexpected_keys"] if not harmless.search(name))
    if unknown:
        problem = f"has {len(unknown)} weights that {what} does not know (first: {unknown[0]})"
        raise misfit(directory, problem)


def _require_plain_names(
    stored: Collection[str], missing: Collection[str], directory: Path
) -> None:
    """Check that weights of a model are not stored in another form, or under a wrapper's names."""
    for pattern, form in _FORMS.items():
        name = next((name for name in sorted(stored) if re.search(pattern, name)), None)
        if name is not None:
            raise misfit(directory, f"stores {name}, which is of {form}")
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
            wrapper = _WRAPPERS.get(prefix, _OTHER_WRAPPER)
            problem = f"has {prefix!r} before the names of its weights, which comes from {wrapper}"
            raise misfit(directory, problem, "or rename them")


def _require_not_larger(model: nn.Module, files: CheckpointFiles, times: int = 2) -> None:
    """Raise `InputError` if a model is not the stored one: it might not fit into memory."""
    wanted = count_parameters(model)
    held = sum(torch.Size(tensor.shape).numel() for tensor in files.tensors.values())
    if wanted > times * held:
        problem = f"describes a model of {wanted:,} weights, and {held:,} are stored"
        raise misfit(files.config_path, problem)


def _require_ties(
    tied: nn.Module, loaded: nn.Module, directory: Path, free: Collection[str]
) -> None:
    """Check that weights that the configuration ties, but for `free` ones, were loaded as one."""
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
