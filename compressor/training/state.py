"""The file from which an interrupted training is resumed."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from compressor import parallel
from compressor.parallel import sharding

Value = TypeVar("Value")


@dataclass(frozen=True)
class Trained:
    """How far a training is, and how it went."""

    steps: int = 0
    best: float | None = None  # the lowest validation loss; None if nothing was validated
    best_epoch: int = 0  # the epoch of that, from 1; 0 for none
    waited: int = 0  # validated epochs since the best one
    stopped_early: bool = False  # whether `waited` reached the schedule's patience
    history: tuple[dict[str, Any], ...] = ()  # number, mean loss, validation, status of each epoch
    # Time of steps and validation, also in earlier runs that were interrupted.
    seconds: float = field(default=0.0, compare=False)


class UnusableState(Exception):
    """A saved state that is truncated, corrupt, of another version or of another training."""


# Names in the safetensors format.
_TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def write_state(path: Path, trained: Trained, tensors: Mapping[str, Tensor]) -> None:
    """Write safetensors atomically, tensor by tensor; readers see the whole file or none.

    If tensors are shards, all ranks call this together to gather them; rank 0 writes.

    Args:
        path: the file.
        trained: goes into the metadata, as JSON.
        tensors: `now.NAME`, `best.NAME`, and `adam.NUMBER.MOMENT` with the number of a parameter.
    """
    entries: dict[str, object] = {"__metadata__": {"trained": json.dumps(vars(trained))}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    temporary = path.with_suffix(".tmp")
    if parallel.is_main():
        path.parent.mkdir(parents=True, exist_ok=True)
    with temporary.open("wb") if parallel.is_main() else nullcontext() as file:
        if file is not None:
            file.write(struct.pack("<Q", len(header)) + header)
        for tensor in tensors.values():
            full = sharding.whole(tensor.detach())
            if file is not None:
                file.write(full.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    if parallel.is_main():
        os.replace(temporary, path)


def _read(path: Path, take: Callable[[Any], Value]) -> Value:
    """Open a file of safetensors on rank 0, and give all ranks what `take` returns for it.

    Raises:
        UnusableState: it is no such file, or does not have what is taken.
    """
    from safetensors import SafetensorError, safe_open

    def read() -> Value:
        try:
            with safe_open(path, "pt") as file:
                return take(file)
        except (SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
            raise UnusableState(str(error)) from error

    return parallel.on_main(read)


def _header(file: Any) -> tuple[Trained, dict[str, torch.Size]]:
    """The progress of the training in a file's metadata, and the shape of each of its tensors."""
    fields, names = json.loads(file.metadata()["trained"]), list(file.keys())
    trained = Trained(**fields | {"history": tuple(fields["history"])})
    return trained, {name: torch.Size(file.get_slice(name).get_shape()) for name in names}
