"""How far a training came: the file from which an interrupted one is resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class UnusableState(Exception):
    """A saved state that is cut, garbage, or of another version."""


@dataclass(frozen=True)
class Trained:
    """How a training went.

    Args:
        steps: how many were done.
        best: the lowest validation; None if nothing was validated.
        best_epoch: the epoch that had it, from 1; 0 for none.
        waited: validated epochs since the best one.
        stopped_early: whether that was more than the schedule's patience.
        history: of each epoch its number, mean loss, validation and status.
        seconds: spent on steps and validation, before a stop too.
    """

    steps: int = 0
    best: float | None = None
    best_epoch: int = 0
    waited: int = 0
    stopped_early: bool = False
    history: tuple[dict[str, Any], ...] = ()
    seconds: float = field(default=0.0, compare=False)


def write_state(path: Path, trained: Trained, tensors: Mapping[str, Tensor]) -> None:
    """Write the state at once: readers see the whole file or none.

    Args:
        tensors: `now.NAME`, `best.NAME`, and `adam.NUMBER.MOMENT` with the number of a parameter.
    """
    from safetensors.torch import save_file

    stored = _unshared({n: t.to("cpu").contiguous() for n, t in tensors.items()})
    temporary = path.with_suffix(".tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(stored, temporary, {"trained": json.dumps(vars(trained))})
    os.replace(temporary, path)


def read_state(path: Path) -> tuple[Trained, dict[str | int, dict[str, Tensor]]]:
    """How far the training came, and its tensors: `now`, `best`, and moments by parameter number.

    Raises:
        UnusableState: the file is cut, garbage, or of another version.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            fields = json.loads(file.metadata()["trained"])
            trained = Trained(**fields | {"history": tuple(fields["history"])})
            tensors: dict[str | int, dict[str, Tensor]] = {}
            for key in file.keys():  # noqa: SIM118 - not a mapping
                # `now.NAME`, `best.NAME`, or `adam.NUMBER.MOMENT` with the number of a parameter
                group, name = key.removeprefix("adam.").split(".", 1)
                owner = group if group in ("now", "best") else int(group)
                tensors.setdefault(owner, {})[name] = file.get_tensor(key)
    except (SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
        raise UnusableState(str(error)) from error
    return trained, tensors


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with copies of those that share memory, which safetensors does not write."""
    seen: set[int] = set()
    unshared = {}
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        unshared[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return unshared
