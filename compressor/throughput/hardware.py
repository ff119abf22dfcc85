"""The machine of a measurement: processor, memory, system, GPU, package versions."""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")

# Instruction sets that matter for matrix products, as spelled in /proc/cpuinfo.
_NOTABLE = (
    "avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_tile", "amx_int8",
    "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve",
)  # fmt: skip

_PACKAGES = (
    "torch", "transformers", "tokenizers", "onnx", "onnxscript", "onnxruntime",
    "onnxruntime-gpu", "openvino", "ctranslate2", "sacrebleu", "numpy",
)  # fmt: skip


def describe() -> dict[str, str]:
    """Facts about this machine, by name, without those that are unknown.

    Returns:
        `cpu`, `instructions`, `cores` (those that this process may use), `memory`, `os`, and for
        the first NVIDIA GPU `gpu` and `gpu driver`.
    """
    info = _values(PROC / "cpuinfo")
    flags = (info.get("flags") or info.get("Features") or "").split()
    memory = _values(PROC / "meminfo").get("MemTotal", "").split()  # "16777216 kB"
    facts = {
        "cpu": info.get("model name") or platform.processor() or platform.machine(),
        "instructions": " ".join(name for name in _NOTABLE if name in flags),
        "cores": str(cores()),
        "memory": f"{int(memory[0]) / 2**20:.1f} GiB" if memory else "",
        "os": platform.platform(terse=True),
        **_gpu(),
    }
    return {name: value for name, value in facts.items() if value}


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that results depend on; imports none."""
    installed = {name: version_of(name) for name in _PACKAGES}
    # One onnxruntime package suffices, and a runtime-only install has no torch.
    return {"python": platform.python_version()} | {n: v for n, v in installed.items() if v}


def version_of(package: str) -> str | None:
    """The version of an installed package, without importing it; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cores() -> int:
    """Logical cores this process may use, by its affinity and its container's CPU quota."""
    has_affinity = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    # Version 2 of cgroups: "200000 100000" or "max 100000"; version 1: two files, -1 for no limit.
    quota, period = _read(CGROUP / "cpu.max").split() or [
        _read(CGROUP / "cpu" / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
    ]
    if not quota.isdigit() or not period:
        return count
    return max(1, min(count, math.ceil(int(quota) / int(period))))


def _values(path: Path) -> dict[str, str]:
    """Read the lines `name: value` of a file; the first one where a name occurs several times."""
    values: dict[str, str] = {}
    for line in _read(path).splitlines():
        name, _, value = line.partition(":")
        values.setdefault(name.strip(), value.strip())
    return values


def _gpu() -> dict[str, str]:
    """The first NVIDIA GPU and its driver; empty without one."""
    listed = run_tool("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    if not listed:
        return {}
    lines = listed.splitlines()
    name, _, driver = lines[0].rpartition(", ")
    count = f" (1 of {len(lines)})" if len(lines) > 1 else ""
    return {"gpu": name + count, "gpu driver": driver}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""  # not a Linux system


def run_tool(program: str, *arguments: str) -> str:
    """Run a small system tool.

    Args:
        program: looked up in the path.
        arguments: of the program.

    Returns:
        What it prints; empty if it is not installed, fails, or takes more than 20 seconds.
    """
    path = shutil.which(program)
    if path is None:
        return ""
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
