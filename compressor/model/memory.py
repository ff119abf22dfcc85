"""Giving memory back to the system between steps that need much of it."""

from __future__ import annotations

import ctypes
import gc
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.nn import Module


def trim_memory() -> None:
    """Free what only cycles hold, and return freed memory to the system and to the GPU.

    Exporting a model leaves reference cycles through its weights, and glibc keeps freed blocks
    between blocks that are in use: without this a run's memory grows with every model it exports.
    """
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # ONNX Runtime has an allocator of its own
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


def release(module: Module) -> None:
    """Free the memory of a module's weights, whoever still holds them; nothing can read them again.

    PyTorch's exporter keeps the weights of what it exported alive, where Python cannot see it.

    Args:
        module: no other module shares its weights.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = tensor.new_empty(0)


@cache
def _malloc_trim() -> Any:
    """glibc's function; None on systems with another C library."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
