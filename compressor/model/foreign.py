"""What people give for a checkpoint that is none which can be read: what it is, and what to do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from compressor.errors import InputError
from compressor.storage.input_files import read_json

ADAPTER = "adapter_config.json"
_CONVERT = "open it with {} in transformers 4, which reads them, and save it with save_pretrained"
_SOURCE = "give the checkpoint that they were made from"
# File in a directory without a configuration or weights that can be read -> what it is, what to do.
_FORMS = {
    "onnx/graphs.json": (
        "graphs of compress without the model that they were exported from",
        "`compress predict`, `evaluate` and `bench` take them; here, give that model's checkpoint",
    ),
    "*.gguf": ("weights in GGUF, for llama.cpp", _SOURCE),
    "tf_model.h5": ("weights for TensorFlow", _CONVERT.format("from_tf=True")),
    "*.ckpt.index": ("weights for TensorFlow", _CONVERT.format("from_tf=True")),
    "flax_model.msgpack": ("weights for Flax", _CONVERT.format("from_flax=True")),
    "zero_to_fp32.py": (
        "parts of weights as DeepSpeed saves them",
        "run zero_to_fp32.py there, which puts them together",
    ),
    "*/*.distcp": (
        "parts of weights as PyTorch saves them from several processes",
        "put them together with `accelerate merge-weights`",
    ),
    "*.onnx": ("a model in ONNX", _SOURCE),
    "*/*.onnx": ("a model in ONNX", _SOURCE),
    "*.mlmodel": ("a model for Core ML", _SOURCE),
    "openvino_model.xml": ("a model for OpenVINO", _SOURCE),
}
# What is around a model, by what its weights' names begin with -> how to save it without.
_WRAPPERS = {
    "module.": ("torch.nn.DataParallel", "save `model.module` with save_pretrained"),
    "_orig_mod.": ("torch.compile", "save `model._orig_mod` with save_pretrained"),
    "_fsdp_wrapped_module.": (
        "FullyShardedDataParallel",
        "save it with `Trainer.save_model`, which leaves that out",
    ),
}
_INNER = re.compile(rf"\b({'|'.join(re.escape(x) for x in _WRAPPERS)})")
# Part of a weight's name -> whose it is.
_FORMS_OF_WEIGHTS = {
    r"\blora_|\bbase_layer\.": "an adapter (LoRA) beside the weights that it changes; merge them "
    "with `merge_and_unload()` of PEFT, and save that with save_pretrained",
    r"\b(qweight|qzeros|scales|g_idx|SCB|weight_format|weight_scale)$|\.(absmax|quant_map|"
    r"quant_state\.\w+)$": "quantized weights; give the checkpoint from before quantization, in "
    "float32, float16 or bfloat16",
}


def require_checkpoint(directory: Path) -> None:
    """Check that a directory has a configuration, and is no adapter to another checkpoint.

    Raises:
        InputError: it is not; the message says what it holds instead.
    """
    if (directory / ADAPTER).exists():
        raise InputError(
            f"{directory} holds an adapter ({ADAPTER}), weights that are added to those of "
            f"{_base_model(directory / ADAPTER)}; merge them with `merge_and_unload()` of PEFT, "
            "save that with save_pretrained, and give its directory",
            id="checkpoint-is-adapter",
        )
    if (directory / "config.json").exists():
        return
    if not any(directory.iterdir()):
        raise InputError(
            f"{directory} is empty; give a checkpoint's directory", id="config-missing"
        )
    form = _other_form(directory, "no config.json")
    if form is not None:
        raise form
    below = sorted({*directory.glob("*/config.json"), *directory.glob("snapshots/*/config.json")})
    hint = f"give {below[-1].parent}, which has one" if below else "give a checkpoint's directory"
    raise InputError(f"{directory} has no config.json; {hint}", id="config-missing")


def weights_missing(directory: Path, wanted: str) -> InputError:
    """The error for a directory without the file of weights `wanted`, or an index of such."""
    form = _other_form(directory, "no weights that can be read")
    if form is not None:
        return form
    others = sorted(path.name for path in directory.glob("*.safetensors"))
    hint = "give a checkpoint's directory"
    if others:
        hint = f"if those in {others[0]} are meant, give the file that name"
    elif directory.parent.name == "snapshots":
        hint = "if the hub has pytorch_model.bin, pass --allow-pickle"
    return InputError(
        f"{directory} has no weights: neither {wanted} nor {wanted}.index.json is there; {hint}",
        id="weights-missing",
    )


def require_own_names(
    stored: Collection[str], missing: Collection[str], model: str, directory: Path
) -> None:
    """Check that weights of a model are not stored under names of something around it.

    Args:
        stored: names of all stored tensors.
        missing: names of weights that the model needs and nothing is stored for.
        model: name of its class.

    Raises:
        InputError: they are.
    """
    for pattern, what in _FORMS_OF_WEIGHTS.items():
        found = next((name for name in sorted(stored) if re.search(pattern, name)), None)
        if found is not None:
            raise InputError(
                f"{directory} stores {found}, which is of {what}", id="weights-do-not-fit"
            )
    wanted = set(missing)
    added: Counter[str] = Counter()
    for name in stored:
        plain = _INNER.sub("", name)
        if plain != name and plain in wanted:
            added[_INNER.search(name)[0]] += 1  # type: ignore[index]
            continue
        parts = plain.split(".")
        rest = (".".join(parts[i:]) for i in range(1, len(parts)))
        inner = next((x for x in rest if x in wanted), None)
        if inner is not None:
            added[plain.removesuffix(inner)] += 1
    (prefix, count), *_ = added.most_common(1) or [("", 0)]
    if 2 * count <= len(wanted):
        return
    around, advice = _WRAPPERS.get(
        prefix,
        (
            "another model around it, as PyTorch Lightning has one",
            "save the inner model with save_pretrained",
        ),
    )
    raise InputError(
        f"the names of the weights in {directory} have {prefix!r} before those of {model}, which "
        f"comes from {around}; {advice}, or rename them",
        id="weights-do-not-fit",
    )


def _other_form(directory: Path, lacks: str) -> InputError | None:
    """The error for a directory that has a model in a form which is not read; None: it has none."""
    for pattern, (what, advice) in _FORMS.items():
        found = next(directory.glob(pattern), None)
        if found is not None:
            return InputError(
                f"{directory} has {lacks}, but {what} ({found.relative_to(directory)}); {advice}",
                id="checkpoint-form-unsupported",
            )
    return None


def _base_model(path: Path) -> str:
    try:
        return str(read_json(path)["base_model_name_or_path"])[:200]
    except (OSError, ValueError, LookupError, TypeError):
        return "another checkpoint"
