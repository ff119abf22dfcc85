"""The `compress` command, in a process of its own or in this one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from compressor.commands import application

ROOT = Path(__file__).parents[2]


def compress(
    *arguments: object, cwd: Path | None = None, fault: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own; exports are kept for all tests.

    On Linux it is forked from a process that has done the imports; elsewhere PyTorch need not
    survive a fork.

    Args:
        fault: what happens to it, as `helpers.kept_command` names it.
    """
    environment, words = _environment() | {"FAULT": fault}, list(map(str, arguments))
    if sys.platform != "linux":
        command = [sys.executable, "-m", "tests.helpers.kept_command", *words]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=cwd, timeout=600, env=environment
        )
    return _at_once([words], [environment], cwd)[0]


def ranks(
    size: int,
    *arguments: object,
    module: str = "tests.helpers.kept_command",
    own: Mapping[int, Mapping[str, str]] | None = None,
    cwd: Path | None = None,
) -> list[subprocess.CompletedProcess[str]]:
    """How a module ends in each of several processes, as a launcher starts them; on Linux alone.

    Args:
        arguments: of `compress`, or of another module.
        own: rank -> environment variables that it alone has, or has otherwise.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = _environment() | {
        "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    environments = [
        shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | dict((own or {}).get(rank, {}))
        for rank in range(size)
    ]
    return _at_once([list(map(str, arguments))] * size, environments, cwd, module)


def _at_once(
    lines: list[list[str]],
    environments: list[dict[str, str]],
    cwd: Path | None,
    module: str = "tests.helpers.kept_command",
) -> list[subprocess.CompletedProcess[str]]:
    """Run command lines at the same time in forks of a prepared process."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            {
                "arguments": words, "cwd": str(cwd or Path.cwd()), "environment": environment,
                "stdout": f"{folder}/{number}.out", "stderr": f"{folder}/{number}.err",
                "module": module,
            }
            for number, (words, environment) in enumerate(zip(lines, environments, strict=True))
        ]  # fmt: skip
        process = _prepared()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(jobs) + "\n")
        process.stdin.flush()
        statuses = json.loads(process.stdout.readline())
        return [
            subprocess.CompletedProcess(
                job["arguments"], status,
                Path(job["stdout"]).read_text("utf-8"), Path(job["stderr"]).read_text("utf-8"),
            )
            for job, status in zip(jobs, statuses, strict=True)
        ]  # fmt: skip


def _environment() -> dict[str, str]:
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


@cache
def _prepared() -> subprocess.Popen[str]:
    """`helpers.prepared_process`; it ends with this process, which closes its stdin."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.prepared_process"], text=True, encoding="utf-8",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment(),
    )  # fmt: skip


def invoke(*arguments: object) -> None:
    """Run the command in this process; its errors are raised, for `helpers.errors.raises`."""
    words = list(map(str, arguments))
    application(words)(words, standalone_mode=False)
