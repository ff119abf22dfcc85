"""A process that has imported what a command imports, and forks one process per command line.

Importing PyTorch and transformers takes five seconds, more than most commands on toy models. Read
lines of JSON from stdin, each a job; print the exit status of each.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from importlib import import_module
from typing import Any

IMPORTED = (
    "compressor.pipeline.run",
    "compressor.runtime",
    "onnxruntime",
    "torch.onnx._internal.exporter._core",
    "transformers.models.bert.modeling_bert",
    "transformers.models.marian.modeling_marian",
)
MODULE = "tests.helpers.kept_command"
SECONDS = 600


def become(job: dict[str, Any]) -> None:
    """Run a command line as if it had been started by itself: `compress ARGUMENTS`."""
    signal.alarm(SECONDS)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["environment"])
    for number, path in enumerate((os.devnull, job["stdout"], job["stderr"])):
        opened = os.open(path, os.O_WRONLY if number else os.O_RDONLY)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = [MODULE, *job["arguments"]]
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)


def main() -> None:
    """Fork a process per job until stdin ends."""
    for module in IMPORTED:
        import_module(module)
    while line := sys.stdin.readline():
        if (child := os.fork()) == 0:
            become(json.loads(line))
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
