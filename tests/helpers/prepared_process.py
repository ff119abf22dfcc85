"""A process that has imported what a command imports, and forks one process per command line.

Importing PyTorch and transformers takes five seconds, and the first export in a process two more
than the next: more than most commands on toy models. Read lines of JSON from stdin, each a list of
jobs that run at the same time; print the exit statuses. A job that was stopped by a signal is
killed when the others have ended.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

IMPORTED = (
    "compressor.pipeline.run", "compressor.runtime", "onnxruntime", "scipy.stats",
    "tests.helpers.exports", "torch.onnx._internal.exporter._core",
    "transformers.models.bert.modeling_bert", "transformers.models.marian.modeling_marian",
)  # fmt: skip
SECONDS = 600


def become(job: dict[str, Any]) -> None:
    """Run a command line as if it had been started by itself: `compress ARGUMENTS`."""
    signal.alarm(SECONDS)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["environment"])
    for number, path in enumerate((os.devnull, job["stdout"], job["stderr"])):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = [job["module"], *job["arguments"]]
    runpy.run_module(job["module"], run_name="__main__", alter_sys=True)


def wait(children: list[int]) -> list[int]:
    """The exit statuses of some processes, negative for a signal."""
    ended: dict[int, int] = {}
    stopped: set[int] = set()
    while len(ended) < len(children):
        child, status = os.waitpid(-1, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            stopped.add(child)
        else:
            ended[child] = os.waitstatus_to_exitcode(status)
        if ended.keys() | stopped == set(children):
            for left in stopped - ended.keys():
                os.kill(left, signal.SIGKILL)
    return [ended[child] for child in children]


def export_once() -> None:
    """Make the tables of PyTorch's exporter, which every process would make at its first export."""
    import torch

    from compressor.export import graphs

    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.GELU())
    shapes = {"input": {0: graphs.BATCH}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        graphs.export_graph(layers, (torch.zeros(2, 4),), ["input"], ["output"], shapes, path)


def main() -> None:
    """Fork processes until stdin ends.

    What is imported is left out of collections: the one at the end of a process takes a second.
    """
    for module in IMPORTED:
        import_module(module)
    export_once()
    gc.collect()
    gc.freeze()
    os.fsync = lambda file: None  # as in conftest.py
    while line := sys.stdin.readline():
        children = []
        for job in json.loads(line):
            children.append(os.fork())
            if children[-1] == 0:
                become(job)
                return
        print(json.dumps(wait(children)), flush=True)


if __name__ == "__main__":
    main()
