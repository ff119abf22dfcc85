"""The `compress` command, in a process of its own or in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from compressor.commands import application

ROOT = Path(__file__).parents[2]


def compress(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own; exports are kept for all tests.

    On Linux it is forked from a process that has done the imports; elsewhere PyTorch need not
    survive a fork.
    """
    places = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": places}
    words = list(map(str, arguments))
    if sys.platform != "linux":
        command = [sys.executable, "-m", "tests.helpers.kept_command", *words]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=cwd, timeout=600, env=environment
        )
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "stdout"), Path(folder, "stderr")
        out.touch()
        err.touch()
        job = {
            "arguments": words, "cwd": str(cwd or Path.cwd()), "environment": environment,
            "stdout": str(out), "stderr": str(err),
        }  # fmt: skip
        process = _prepared(places)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        status = int(process.stdout.readline())
        texts = out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8")
    return subprocess.CompletedProcess(words, status, *texts)


@cache
def _prepared(places: str) -> subprocess.Popen[str]:
    """`helpers.prepared_process`; it ends with this process, which closes its stdin."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.prepared_process"], text=True, encoding="utf-8",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": places},
    )  # fmt: skip


def invoke(*arguments: object) -> None:
    """Run the command in this process; its errors are raised, for `helpers.errors.raises`."""
    words = list(map(str, arguments))
    application(words)(words, standalone_mode=False)
