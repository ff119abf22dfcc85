"""Copies of a model that share its weights."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def shared_copy(model: Model, own: Iterable[nn.Parameter] = ()) -> Model:
    """A copy of a model's modules and configuration that shares its weights.

    Args:
        own: parameters of `model` that are copied all the same.
    """
    copied = {id(parameter) for parameter in own}
    tensors = (*model.parameters(), *model.buffers())
    # `deepcopy` takes what its memo holds for copied already.
    shared = {id(tensor): tensor for tensor in tensors if id(tensor) not in copied}
    return copy.deepcopy(model, shared)
