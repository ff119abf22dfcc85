"""What a checkpoint's weight files hold, read from their headers: names, shapes and types.

Weights are in `model.safetensors`, or in the files that `model.safetensors.index.json` names;
where pickles are allowed and there are no safetensors, in `pytorch_model.bin` or the files that its
index names. Every one of them must lie in the checkpoint's directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from compressor.errors import InputError, cannot_read
from compressor.model.location import refuse_without_weights
from compressor.storage.input_files import MIB, inner_path, read_json

WEIGHTS = "model.safetensors"
PATTERN = "model{suffix}.safetensors"  # of one file, or of several with their numbers
INDEX = f"{WEIGHTS}.index.json"
PICKLE = "pytorch_model.bin"
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_HINT = "get the checkpoint again, or write it again"
_LFS = b"version https://git-lfs"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor by the header of its file; `dtype` is None if it is no type that weights have."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    file: Path


def weight_files(directory: Path, allow_pickle: bool) -> list[Path]:
    """The files that the weights of a checkpoint are in; pickles only if they are allowed."""
    for name, pattern in ((WEIGHTS, "*.safetensors"), (PICKLE, "pytorch_model*.bin")):
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
    refuse_without_weights(directory, WEIGHTS)


def _indexed_files(index: Path, pattern: str) -> list[Path]:
    try:
        names = set(read_json(index)["weight_map"].values())
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError("its weight_map names no files")
    except OSError as error:
        raise _unreadable(index, str(error.strerror)) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        reason = str(error) if isinstance(error, ValueError) else "it has no weight_map"
        raise _unreadable(index, reason) from error
    for name in sorted(names):
        try:
            if not fnmatchcase(inner_path(name), pattern):
                raise ValueError("the name of another kind of file")
        except ValueError as error:
            raise InputError(
                f"{index} names {name!r} as a file of weights, and only files of the same "
                f"directory called {pattern} are loaded; {_HINT}",
                id="weights-outside",
            ) from error
        if not (index.parent / name).exists():
            raise InputError(
                f"{index} names {name}, which is not there; {_HINT}", id="weights-missing"
            )
    return [index.parent / name for name in sorted(names)]


def stored_tensors(files: list[Path]) -> dict[str, StoredTensor]:
    """All tensors of some files by name, without reading their values."""
    stored: dict[str, StoredTensor] = {}
    for path in files:
        read = _read_safetensors if path.suffix == ".safetensors" else _read_pickle
        for name, tensor in read(path):
            if name in stored:
                raise _unreadable(path, f"it holds {name}, as {stored[name].file.name} does")
            stored[name] = tensor
    return stored


def _read_safetensors(path: Path) -> Iterator[tuple[str, StoredTensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                entry = file.get_slice(name)
                dtype = _FLOATS.get(entry.get_dtype())
                yield name, StoredTensor(tuple(entry.get_shape()), dtype, path)
    except PermissionError as error:
        raise cannot_read(path, error) from error
    except (SafetensorError, OSError, ValueError) as error:
        raise _unreadable(path, _reason(path, str(error))) from error


def _read_pickle(path: Path) -> Iterator[tuple[str, StoredTensor]]:
    try:
        values = torch.load(path, map_location="meta", weights_only=True)
        tensors = {str(k): v for k, v in values.items() if isinstance(v, torch.Tensor)}
    except Exception as error:  # whatever unpickling trips over is in the file
        reason = _reason(path, f"{type(error).__name__}, it is not a pickle of weights alone")
        raise _unreadable(path, reason) from error
    for name, tensor in tensors.items():
        dtype = tensor.dtype if tensor.dtype in _FLOATS.values() else None
        yield name, StoredTensor(tuple(tensor.shape), dtype, path)


def _reason(path: Path, error: str) -> str:
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
    if path.suffix == ".safetensors":
        header = int.from_bytes(start[:8], "little")
        if (header <= 100 * MIB and 8 + header > size) or "file not fully covered" in error:
            return f"it is cut off, or damaged: it has {size:,} bytes, its header tells of others"
    return " ".join(error.split())[:300]


def _unreadable(path: Path, reason: str) -> InputError:
    return InputError(
        f"{path} cannot be read as weights: {reason}; {_HINT}", id="weights-unreadable"
    )


def stored_dtype(tensors: Mapping[str, StoredTensor]) -> torch.dtype:
    """The precision in which a checkpoint keeps its weights: of its first one, by name."""
    dtypes = (tensors[name].dtype for name in sorted(tensors))
    first = next((dtype for dtype in dtypes if dtype is not None), torch.float32)
    return first if first in (torch.float16, torch.bfloat16) else torch.float32
