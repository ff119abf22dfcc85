"""How much memory there is, and giving it back between steps that need much of it."""

from __future__ import annotations

import ctypes
import gc
import mmap
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.nn import Module

# In maps: weights that are read where their file is mapped. In pagemap, eight bytes a page: in
# memory or in swap, and still that of the file.
_WEIGHTS = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) .*\.safetensors$", re.MULTILINE)
_HELD, _OF_FILE = 3 << 62, 1 << 61
_DONTNEED = 4  # MADV_DONTNEED on Linux
_SYSTEM, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


def trim_memory() -> None:
    """Free what only cycles hold, and return memory that is not needed now to the system."""
    gc.collect()  # exporting a model leaves reference cycles through its weights
    drop_mapped_weights()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # ONNX Runtime has an allocator of its own
    # glibc, and no other C library, keeps freed blocks between blocks that are in use.
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def drop_mapped_weights() -> None:
    """Return mapped weights' memory, unless a page was written: they are read again; Linux only."""
    libc, pagemap = _libc(), Path("/proc/self/pagemap")
    if libc is None or not pagemap.exists():  # some sandboxes have none
        return
    import numpy as np

    for match in _WEIGHTS.finditer(Path("/proc/self/maps").read_bytes()):
        start, end = (int(address, 16) for address in match.groups())
        count, first = (end - start) // mmap.PAGESIZE, start // mmap.PAGESIZE
        pages = np.fromfile(pagemap, np.uint64, count, offset=8 * first)
        written = ((pages & _HELD != 0) & (pages & _OF_FILE == 0)).any()
        if len(pages) == count and not written:
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONTNEED)


@cache
def _libc() -> Any:
    return ctypes.CDLL(None) if sys.platform.startswith("linux") else None


def release(module: Module, keep: Module | None = None) -> None:
    """Free the memory of a module's weights, but for those that it shares with `keep`."""
    # PyTorch's exporter keeps the weights of an exported model alive, where Python cannot see it.
    shared = set() if keep is None else {id(x) for x in (*keep.parameters(), *keep.buffers())}
    for tensor in (*module.parameters(), *module.buffers()):
        if id(tensor) not in shared:
            tensor.data = tensor.new_empty(0)


def free_bytes(device: str = "cpu") -> int | None:
    """Find how much memory is free, within the container's limit, or of the GPU.

    Args:
        device: `cpu` or `cuda`.

    Returns:
        Bytes; files that the system keeps in memory count as free. None where it is not known.
    """
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    sizes = [_read_number(_SYSTEM / "meminfo", "MemAvailable:", 1024)]
    limit = _read_number(_CGROUP / "memory.max")
    used = _read_number(_CGROUP / "memory.current")
    if limit is not None and used is not None:
        files = _read_number(_CGROUP / "memory.stat", "inactive_file")
        sizes.append(max(0, limit - used + (files or 0)))
    return min((size for size in sizes if size is not None), default=None)


def all_bytes(device: str = "cpu") -> int | None:
    """Find how much memory there is, used or not: the same in every run on a machine.

    Args:
        device: `cpu`, or a GPU's name as torch has it.

    Returns:
        Bytes, of a CPU's within the container's limit; None where it is not known.
    """
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)
    whole = _read_number(_SYSTEM / "meminfo", "MemTotal:", 1024)
    limit = _read_number(_CGROUP / "memory.max")
    return min((size for size in (whole, limit) if size is not None), default=None)


def _read_number(path: Path, name: str = "", unit: int = 1) -> int | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    line = next((line for line in lines if line.startswith(name)), "")
    number = line.removeprefix(name).split()[:1]
    return int(number[0]) * unit if number and number[0].isdigit() else None
