"""The place of a checkpoint, and what its files of weights hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import safe_open
from torch import nn

from compressor.errors import InputError
from compressor.model.reading import first_line, malformed, read_object
from compressor.storage import manifest
from compressor.storage.hashes import fingerprint
from compressor.storage.input_files import MIB, cannot_read, inner_path

CONFIG_FILE = "config.json"
WEIGHTS = "model.safetensors"
PATTERN = "model{suffix}.safetensors"  # of one file, or of several with their numbers
INDEX = f"{WEIGHTS}.index.json"
PICKLE, _PICKLES = "pytorch_model.bin", "pytorch_model*.bin"
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_UNREADABLE = "weights-unreadable"
_CHECKED_AT_ONCE = 1 << 20  # numbers
_LFS = b"version https://git-lfs"
_HUB_FILES = ["*.json", "*.txt", "*.model", "*.spm", "*.safetensors"]
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
    "zero_to_fp32.py": ("parts of weights by DeepSpeed", "run zero_to_fp32.py to join them"),
    "*/*.distcp": ("parts of weights by PyTorch", "join them with `accelerate merge-weights`"),
    "*.onnx": ("a model in ONNX", _SOURCE),
    "*/*.onnx": ("a model in ONNX", _SOURCE),
    "openvino_model.xml": ("a model for OpenVINO", _SOURCE),
}


def resolve(model: str, revision: str | None = None, allow_pickle: bool = False) -> Path:
    """Find the directory of a checkpoint; a hub id is downloaded, all files of one commit.

    Args:
        model: a directory, or a hub id.
        revision: branch, tag or commit, of a hub id.
        allow_pickle: whether pickles are downloaded, too.

    Raises:
        InputError: there is neither a directory nor a model of that name that can be downloaded.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if revision is not None:
            raise InputError(
                f"--revision {revision} makes no sense for the directory {model}; leave it out",
                id="revision-of-directory",
            )
        return path
    if path.exists() or model.count("/") > 1 or model.startswith((".", "/", "~")):
        raise InputError(f"there is no directory {model}; check --model", id="checkpoint-missing")
    files = [*_HUB_FILES, manifest.CARD, *([_PICKLES] if allow_pickle else [])]
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=files))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise InputError(
            f"there is no directory {model}, and the hub gives no such model (revision "
            f"{revision or 'main'}): {first_line(error)}; check --model, or the connection",
            id="hub-model-missing",
        ) from error


def checkpoint_files(directory: Path) -> list[Path]:
    """The files that say what a checkpoint computes; notes and plots beside them do not."""
    return [directory / name for name in manifest.checkpoint_files(directory)]


def require_checkpoint(directory: Path) -> None:
    """Raise InputError if a directory has no configuration, or is an adapter to a checkpoint."""
    adapter = directory / "adapter_config.json"
    if not adapter.exists() and not (directory / CONFIG_FILE).exists():
        _refuse_other_form(directory, "no config.json")
        below = {*directory.glob("*/config.json"), *directory.glob("snapshots/*/config.json")}
        hint = "give a checkpoint's directory"
        if below:
            hint = f"give {max(below).parent}, which has one"
        lacks = "has no config.json" if any(directory.iterdir()) else "is empty"
        raise InputError(f"{directory} {lacks}; {hint}", id="config-missing")
    if adapter.exists():
        id = "checkpoint-is-adapter"
        base = read_object(adapter, id).get("base_model_name_or_path")
        raise InputError(
            f"{directory} holds an adapter ({adapter.name}), weights that are added to those of "
            f"{str(base)[:200]}; merge them with `merge_and_unload()` of PEFT, save that with "
            "save_pretrained, and give its directory",
            id=id,
        )


def _refuse_other_form(directory: Path, lacks: str) -> None:
    for pattern, (form, advice) in _FORMS.items():
        path = next(directory.glob(pattern), None)
        if path is not None:
            raise InputError(
                f"{directory} has {lacks}, but {form} ({path.relative_to(directory)}); {advice}",
                id="checkpoint-form-unsupported",
            )


@dataclass(frozen=True)
class StoredTensor:
    """A tensor by the header of its file; `dtype` is None if it is no type that weights have."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    file: Path


def weight_files(directory: Path, allow_pickle: bool) -> list[Path]:
    """The files of a checkpoint's weights.

    Args:
        directory: of the checkpoint.
        allow_pickle: whether they may be pickles.

    Raises:
        InputError: there are none, they are pickles and may not be, or an index names something
            else than files of the directory.
    """
    for name, pattern in ((WEIGHTS, "*.safetensors"), (PICKLE, _PICKLES)):
        one, index = directory / name, directory / f"{name}.index.json"
        if not one.exists() and not index.exists():
            continue
        if name == PICKLE and not allow_pickle:
            raise InputError(
                f"{directory} has its weights only as a pickle ({PICKLE}), which can run code "
                "when loaded; convert it to safetensors, or pass --allow-pickle if you trust it",
                id="weights-pickled",
            )
        return [one] if one.exists() else _indexed_files(index, pattern)
    _refuse_other_form(directory, "no weights that can be read")
    others = sorted(path.name for path in directory.glob("*.safetensors"))
    hint = "give a checkpoint's directory"
    if others:
        hint = f"if those in {others[0]} are meant, give the file that name"
    elif directory.parent.name == "snapshots":
        hint = "if the hub has pytorch_model.bin, pass --allow-pickle"
    raise InputError(
        f"{directory} has no weights: neither {WEIGHTS} nor {WEIGHTS}.index.json is there; {hint}",
        id="weights-missing",
    )


def _indexed_files(index: Path, pattern: str) -> list[Path]:
    names = read_object(index, _UNREADABLE).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise malformed(index, "its weight_map names no files", _UNREADABLE)
    try:
        files = sorted({inner_path(name) for name in names.values()})
        others = [name for name in files if not fnmatchcase(name, pattern)]
        if others:
            raise ValueError(f"{others[0]!r} is called otherwise")
    except ValueError as error:
        reason = f"only files of its directory called {pattern} are loaded, and {error}"
        raise malformed(index, reason, "weights-outside") from error
    for name in files:
        if not (index.parent / name).exists():
            raise malformed(index, f"it names {name}, which is not there", "weights-missing")
    return [index.parent / name for name in files]


def stored_tensors(files: list[Path]) -> dict[str, StoredTensor]:
    """Find all tensors of some files by name, without reading their values.

    Raises:
        InputError: a file is damaged, or two of them have the same tensor.
    """
    stored: dict[str, StoredTensor] = {}
    for path in files:
        try:
            tensors = _read_tensors(path)
        except Exception as error:  # whatever the libraries trip over is in the file
            raise _unreadable(path, error) from error
        for name in sorted(stored.keys() & tensors.keys()):
            raise malformed(path, f"{name} is in another file, too", _UNREADABLE)
        stored |= tensors
    return stored


def _read_tensors(path: Path) -> dict[str, StoredTensor]:
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            headers = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {
            name: StoredTensor(tuple(x.get_shape()), _FLOATS.get(x.get_dtype()), path)
            for name, x in headers.items()
        }
    values, floats = torch.load(path, map_location="meta", weights_only=True), _FLOATS.values()
    return {
        str(name): StoredTensor(tuple(x.shape), x.dtype if x.dtype in floats else None, path)
        for name, x in values.items()
        if isinstance(x, torch.Tensor)
    }


def _unreadable(path: Path, error: Exception) -> InputError:
    """The error of a file of weights, with what is most likely wrong with it."""
    denied = error if isinstance(error, PermissionError) else None
    reason = "" if denied else _reason(path, error)
    return cannot_read(path, denied) if denied else malformed(path, reason, _UNREADABLE)


def _reason(path: Path, error: Exception) -> str:
    """How a file of weights is damaged most likely, by its beginning and its length."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(64)
    if size == 0:
        return "it is empty"
    if start.startswith(_LFS):
        return "it is a Git LFS pointer instead of the file itself; run `git lfs pull`"
    if start.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return "it is an HTML page"
    if path.suffix != ".safetensors":
        return f"{type(error).__name__}, it is not a pickle of weights alone"
    header = int.from_bytes(start[:8], "little")
    if (header <= 100 * MIB and 8 + header > size) or "file not fully covered" in str(error):
        return f"it is cut off, or damaged: it has {size:,} bytes, its header tells of others"
    return " ".join(str(error).split())[:300]


def stored_dtype(tensors: Mapping[str, StoredTensor]) -> torch.dtype:
    """The precision in which a checkpoint keeps its weights: of its first one, by name."""
    dtypes = (tensors[name].dtype for name in sorted(tensors))
    first = next((dtype for dtype in dtypes if dtype is not None), torch.float32)
    return first if first in (torch.float16, torch.bfloat16) else torch.float32


def misfit(path: Path, problem: str, advice: str = "get the checkpoint again") -> InputError:
    """The error of weights that are not those of the model in `config.json`."""
    return InputError(f"{path} {problem}; {advice}", id="weights-do-not-fit")


def require_usable(
    model: nn.Module, stored: Mapping[str, StoredTensor], logits_bias: str | None = None
) -> None:
    """Raise `InputError` if loaded weights were not stored as floats, or are no finite numbers.

    Args:
        model: with the loaded weights.
        stored: the tensors in the files, by name.
        logits_bias: the buffer that may be minus infinity, which bans a token.
    """
    state = model.state_dict()
    for name, tensor in stored.items():
        if tensor.dtype is None and name in state and state[name].is_floating_point():
            raise InputError(
                f"{tensor.file} stores {name} in a form that only quantized models have; give a "
                "checkpoint in float32, float16 or bfloat16",
                id="weights-not-float",
            )
    for name, value in state.items():
        # In parts, since PyTorch makes copies.
        parts = value.flatten().split(_CHECKED_AT_ONCE) if value.is_floating_point() else ()
        if all(bool(part.isfinite().all()) for part in parts):
            continue
        # A bias of minus infinity bans a token.
        if name == logits_bias and not (value.isnan() | (value == torch.inf)).any():
            continue
        file = stored[name].file if name in stored else min(x.file for x in stored.values())
        raise InputError(
            f"a weight of {name} in {file} is not a finite number; the checkpoint is damaged, or "
            "its training failed: give another one",
            id="weights-not-finite",
        )


def fingerprint_of_weights(model: str, revision: str | None, allow_pickle: bool) -> str:
    """A fingerprint of the files of a checkpoint's weights.

    Args:
        model: a local directory or a hub id.
        revision: of a hub model.
        allow_pickle: whether weights may be those of `pytorch_model.bin`.
    """
    directory = resolve(model, revision, allow_pickle)
    return fingerprint(weight_files(directory, allow_pickle))
