"""The state of a training: the file from which an interrupted one is resumed."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compressor import parallel
from compressor.parallel import sharding


class UnusableState(Exception):
    """A saved state that is truncated, corrupt, of another version or of another training."""


@dataclass(frozen=True)
class Trained:
    """Progress and history of a training."""

    steps: int = 0
    best: float | None = None  # the lowest validation loss; None if nothing was validated
    best_epoch: int = 0  # the epoch of that, from 1; 0 for none
    waited: int = 0  # validated epochs since the best one
    stopped_early: bool = False  # whether `waited` reached the schedule's patience
    history: tuple[dict[str, Any], ...] = ()  # number, mean loss, validation, status of each epoch
    # Of steps and validation, including earlier runs that were interrupted.
    seconds: float = field(default=0.0, compare=False)


# Names in the safetensors format.
_TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def write_state(path: Path, trained: Trained, tensors: Mapping[str, Tensor]) -> None:
    """Write the state as a safetensors file, atomically, tensor by tensor.

    With sharded tensors all ranks call this together, to gather them; rank 0 writes. Tensors are
    `now.NAME`, `best.NAME`, and `adam.NUMBER.MOMENT` with the number of a parameter.
    """
    entries: dict[str, object] = {"__metadata__": {"trained": json.dumps(vars(trained))}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]
        }  # fmt: skip
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    temporary = path.with_suffix(".tmp")
    with ExitStack() as stack:
        file = None
        if parallel.is_main():
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(temporary.open("wb"))
            file.write(struct.pack("<Q", len(header)) + header)
        for tensor in tensors.values():
            full = sharding.whole(tensor.detach())
            if file is not None:
                file.write(full.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    if parallel.is_main():
        os.replace(temporary, path)


class SavedState:
    """A file with a training's state; rank 0 reads it and broadcasts it.

    `shapes` are those of the tensors, by owner (`now`, `best`, `adam.NUMBER`) and name. Raises
    `UnusableState` on all ranks, if the file is truncated, corrupt or of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trained, self.shapes = parallel.on_main(self._read_header)

    def tensors(self, owner: str) -> Iterator[tuple[str, Tensor]]:
        """Name and value of an owner's tensors, read one by one."""
        for name in self.shapes.get(owner, ()):
            yield name, parallel.on_main(partial(self._read, f"{owner}.{name}"))

    def _read_header(self) -> tuple[Trained, dict[str, dict[str, torch.Size]]]:
        with self._opened() as file:
            fields = json.loads(file.metadata()["trained"])
            trained = Trained(**fields | {"history": tuple(fields["history"])})
            shapes: dict[str, dict[str, torch.Size]] = {}
            for key in file.keys():  # noqa: SIM118 - not a mapping
                owner, name = key.split(".", 1)
                if owner == "adam":
                    number, name = name.split(".", 1)
                    owner = f"adam.{int(number)}"
                shapes.setdefault(owner, {})[name] = torch.Size(file.get_slice(key).get_shape())
        return trained, shapes

    def _read(self, key: str) -> Tensor:
        with self._opened() as file:
            tensor: Tensor = file.get_tensor(key)
        return tensor

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, "pt") as file:
                yield file
        except (SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
            raise UnusableState(str(error)) from error
