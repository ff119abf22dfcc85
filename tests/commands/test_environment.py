"""What the machine or the interpreter refuses is one sentence and status 3, never a bug."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from compressor.commands.memory import is_out_of_memory
from compressor.request import example

INSPECT = f"{sys.executable} -m compressor inspect {example.model()} --json"


def failure(script: str, directory: Path) -> tuple[int, str]:
    """Exit status and error id of a shell script that ends with `compress … --json`."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        ["bash", "-c", f"export PYTHONPATH={root} OMP_NUM_THREADS=1; {script}"],
        cwd=directory, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["id"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_too_little_memory_is_told(tmp_path):
    """PyTorch's libraries cannot be mapped in 300 MB."""
    assert failure(f"ulimit -v 300000; {INSPECT}", tmp_path) == (3, "out-of-memory")


@pytest.mark.parametrize(
    "script",
    [
        f"{sys.executable} -OO -m compressor inspect nothing --json",
        "mkdir gone; cd gone; rmdir ../gone; "
        f"{sys.executable} -m compressor inspect nothing --json",
    ],
)
def test_what_makes_every_command_fail_is_told_first(tmp_path, script):
    assert failure(script, tmp_path) == (3, "environment-unusable")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), True),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), True),
        (RuntimeError("shapes cannot be multiplied"), False),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_which_errors_are_a_lack_of_memory(error, expected):
    assert is_out_of_memory(error) is expected
    outer = ValueError("the file cannot be read")
    outer.__cause__ = error
    assert is_out_of_memory(outer) is expected
