"""Where a checkpoint is, and which of its files say what it computes."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open

from compressor.errors import InputError

_HUB_FILES = ["*.json", "*.txt", "*.model", "*.spm", "*.safetensors"]
_PICKLES = "pytorch_model*.bin"


def resolve(model: str, revision: str | None = None, allow_pickle: bool = False) -> Path:
    """The directory of a checkpoint, downloaded if `model` is a hub id.

    The revision is resolved once; all files come from that commit.

    Raises:
        InputError: neither a directory nor a hub id that can be downloaded.
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

    files = [*_HUB_FILES, _PICKLES] if allow_pickle else _HUB_FILES
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
    patterns = [*_HUB_FILES, _PICKLES, "*.py"]
    paths = {path for pattern in patterns for path in directory.glob(pattern)}
    return sorted(path for path in paths if path.is_file())


def has_safetensors(directory: Path) -> bool:
    """Whether there are weights that can be loaded without running code."""
    return any(directory.glob("*.safetensors"))


def require_weights(directory: Path, allow_pickle: bool) -> None:
    """Check that there are weights, and that loading them runs no code unless that is allowed.

    Raises:
        InputError: there are none, or they are a pickle.
    """
    if has_safetensors(directory):
        return
    if not any(directory.glob(_PICKLES)):
        raise InputError(f"{directory} has no weights (*.safetensors)", id="weights-missing")
    if not allow_pickle:
        raise InputError(
            f"{directory} has its weights only as a pickle (pytorch_model.bin), which can run code "
            "when loaded; convert it to safetensors, or pass --allow-pickle if you trust it",
            id="weights-pickled",
        )


def stored_dtype(directory: Path) -> torch.dtype:
    """The floating-point type of the stored weights, by the first that is found."""
    half_types = {"F16": torch.float16, "BF16": torch.bfloat16}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                return half_types.get(file.get_slice(key).get_dtype(), torch.float32)
    for path in sorted(directory.glob(_PICKLES)):  # allowed, or it had not been loaded
        weights = torch.load(path, map_location="meta", weights_only=True)
        for weight in weights.values():
            if weight.is_floating_point():
                return weight.dtype if weight.dtype in half_types.values() else torch.float32
    return torch.float32
