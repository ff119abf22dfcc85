"""Where a checkpoint is, and which of its files say what it computes."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from compressor.errors import InputError, cannot_read
from compressor.model.card import CARD
from compressor.storage.input_files import read_json, require_regular
from compressor.storage.manifest import MODULES

_HUB_FILES = ["*.json", "*.txt", "*.model", "*.spm", "*.safetensors"]
_PICKLES = "pytorch_model*.bin"
_ADAPTER = "adapter_config.json"
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


def resolve(model: str, revision: str | None = None, allow_pickle: bool = False) -> Path:
    """The directory of a checkpoint, downloaded if `model` is a hub id.

    The revision is resolved once; all files come from that commit. Raises InputError where there is
    neither a directory nor a hub id that can be downloaded.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if revision is not None:
            raise InputError(
                f"--revision {revision} makes no sense for the directory {model}; leave it out",
                id="revision-of-directory",
            )
        return path
    if path.exists():
        raise InputError(
            f"{model} is a file; give the checkpoint's directory", id="checkpoint-is-file"
        )
    if model.count("/") > 1 or model.startswith((".", "/", "~")):
        raise InputError(f"there is no directory {model}; check --model", id="checkpoint-missing")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    files = [*_HUB_FILES, CARD, *([_PICKLES] if allow_pickle else [])]
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=files))
    except LocalEntryNotFoundError as error:
        raise InputError(
            f"there is no directory {model}, and the hub cannot be reached to look for a model of "
            "that name; check the path or the connection",
            id="hub-unreachable",
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise InputError(
            f"the hub has no model {model!r} (revision {revision or 'main'}); check --model",
            id="hub-model-missing",
        ) from error


def checkpoint_files(directory: Path) -> list[Path]:
    """The files that say what a checkpoint computes; notes and plots beside them do not."""
    patterns = [*_HUB_FILES, _PICKLES, "*.py", MODULES]
    paths = {path for pattern in patterns for path in directory.glob(pattern)}
    return sorted(path for path in paths if path.is_file())


def require_own_files(directory: Path) -> None:
    """Check that every file of a checkpoint is a regular file in its directory.

    Links into the hub's cache, where downloaded checkpoints keep their files, are followed.
    """
    root = directory.resolve()
    try:
        entries = sorted([*directory.iterdir(), *directory.glob(MODULES)])
        files = [path for path in entries if not path.is_dir()]
    except OSError as error:
        raise cannot_read(error.filename or directory, error) from error
    for path in files:
        target = path.resolve()
        cached = target.parent.name == "blobs" and target.parents[1].name.startswith("models--")
        if target.parent not in (root, root / path.parent.name) and not cached:
            raise InputError(
                f"{path} is a link to {target}, outside of the checkpoint's directory; copy the "
                "file into it",
                id="checkpoint-file-outside",
            )
        try:
            require_regular(path)
        except OSError as error:
            raise InputError(
                f"cannot read {path}: {error.strerror}; get the checkpoint again",
                id="checkpoint-file-unreadable",
            ) from error


def require_checkpoint(directory: Path) -> None:
    """Raise InputError if a directory has no configuration, or is an adapter to a checkpoint."""
    adapter = directory / _ADAPTER
    if adapter.exists():
        try:
            base = str(read_json(adapter)["base_model_name_or_path"])[:200]
        except (OSError, ValueError, LookupError, TypeError):
            base = "another checkpoint"
        raise InputError(
            f"{directory} holds an adapter ({_ADAPTER}), weights that are added to those of "
            f"{base}; merge them with `merge_and_unload()` of PEFT, save that with "
            "save_pretrained, and give its directory",
            id="checkpoint-is-adapter",
        )
    if (directory / "config.json").exists():
        return
    if not any(directory.iterdir()):
        raise InputError(
            f"{directory} is empty; give a checkpoint's directory", id="config-missing"
        )
    _refuse_other_form(directory, "no config.json")
    below = sorted({*directory.glob("*/config.json"), *directory.glob("snapshots/*/config.json")})
    hint = f"give {below[-1].parent}, which has one" if below else "give a checkpoint's directory"
    raise InputError(f"{directory} has no config.json; {hint}", id="config-missing")


def refuse_without_weights(directory: Path, wanted: str) -> NoReturn:
    """Raise InputError for a directory without the file of weights `wanted` or its index."""
    _refuse_other_form(directory, "no weights that can be read")
    others = sorted(path.name for path in directory.glob("*.safetensors"))
    hint = "give a checkpoint's directory"
    if others:
        hint = f"if those in {others[0]} are meant, give the file that name"
    elif directory.parent.name == "snapshots":
        hint = "if the hub has pytorch_model.bin, pass --allow-pickle"
    raise InputError(
        f"{directory} has no weights: neither {wanted} nor {wanted}.index.json is there; {hint}",
        id="weights-missing",
    )


def _refuse_other_form(directory: Path, lacks: str) -> None:
    """Raise InputError if a directory has a model in a form which is not read."""
    for pattern, (form, advice) in _FORMS.items():
        path = next(directory.glob(pattern), None)
        if path is not None:
            raise InputError(
                f"{directory} has {lacks}, but {form} ({path.relative_to(directory)}); {advice}",
                id="checkpoint-form-unsupported",
            )
