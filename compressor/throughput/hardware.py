"""The machine of a measurement: processor, memory, system, GPU, package versions."""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")

# Instruction sets that matter for matrix products, as spelled in /proc/cpuinfo and by sysctl.
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

    Keys: `cpu`, `instructions`, `cores` (those this process may use), `memory`, `os`, and for
    the first NVIDIA GPU `gpu` and `gpu driver`.
    """
    facts = {
        "cpu": _cpu_model(),
        "instructions": " ".join(_instructions()),
        "cores": str(cores()),
        "memory": _memory(),
        "os": platform.platform(terse=True),
        **_gpu(),
    }
    return {name: value for name, value in facts.items() if value}


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that results depend on; imports none."""
    installed = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # one onnxruntime package suffices, and a runtime-only install has no torch
    return installed


def cores() -> int:
    """Logical cores this process may use, by its affinity and its container's CPU quota."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota = _cgroup_cores()
    return count if quota is None else max(1, min(count, math.ceil(quota)))


def _cgroup_cores() -> float | None:
    """CPU quota of a Linux container, in cores; None without a quota."""
    version2 = _read(CGROUP / "cpu.max").split()  # "200000 100000" or "max 100000"
    if len(version2) == 2:
        return None if version2[0] == "max" else int(version2[0]) / int(version2[1])
    quota = _read(CGROUP / "cpu" / "cpu.cfs_quota_us").strip()
    period = _read(CGROUP / "cpu" / "cpu.cfs_period_us").strip()
    if not quota or not period or int(quota) < 0:
        return None
    return int(quota) / int(period)


def _cpu_model() -> str:
    if sys.platform == "darwin":
        return run_tool("sysctl", "-n", "machdep.cpu.brand_string")
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _instructions() -> list[str]:
    if sys.platform == "darwin":
        listed = run_tool("sysctl", "hw.optional").lower()
        return [name for name in _NOTABLE if f"feat_{name}: 1" in listed]
    flags = set((_cpuinfo("flags") or _cpuinfo("Features")).split())
    return [name for name in _NOTABLE if name in flags]


def _cpuinfo(key: str) -> str:
    """The first processor's value in /proc/cpuinfo; empty if missing."""
    for line in _read(PROC / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def _memory() -> str:
    if sys.platform == "darwin":
        total = run_tool("sysctl", "-n", "hw.memsize")
        return f"{int(total) / 2**30:.1f} GiB" if total else ""
    for line in _read(PROC / "meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return f"{int(line.split()[1]) / 2**20:.1f} GiB"
    return ""


def _gpu() -> dict[str, str]:
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
    """Output of a small system tool; empty if it is not installed or fails."""
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
