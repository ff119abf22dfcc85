"""Exports that are made once and copied afterwards, for tests that are not about export.

An export takes seconds, and whole runs export the same toy models again and again.
test_export.py tests that the same model always gives the same bytes. Peak memory is made up, too:
the four processes that measure it take longer than all the rest of a toy run. So do the sixteen
searches of a run for garbage, among all that the tests have imported. Pages are without their
plots, which the tests in tests/report draw.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import pickle
import shutil
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn
from transformers import PreTrainedConfig

from compressor.export import graphs
from compressor.export.task_graphs import TaskGraphs
from compressor.model import memory
from compressor.report import page
from compressor.throughput import bench

_EXPORT, _MEMORY, _IMAGES = graphs.export_graph, bench.measure_memory, page.images
_PEAK = 64.0  # MiB
_COLLECTING = (memory, import_module("compressor.throughput.measure"))
_NO_COLLECTION = SimpleNamespace(**vars(gc) | {"collect": lambda: 0})
# What no graph depends on: where a checkpoint lay, and which modules were read from it.
_ORIGIN = ("_name_or_path", "name_or_path", "_is_hf_initialized")


class _ByValue(pickle.Pickler):
    """Pickles tensors by their values alone: equal modules give equal bytes in every process."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return bytes, (value.detach().numpy().tobytes(),)
        if isinstance(value, nn.Module | PreTrainedConfig):
            made, arguments, state, *rest = value.__reduce_ex__(4)
            state = {key: x for key, x in state.items() if key not in _ORIGIN}
            return made, arguments, state, *rest
        return NotImplemented

    def persistent_id(self, value: Any) -> Any:
        """Sets of texts have another order in every process."""
        return sorted(map(repr, value)) if isinstance(value, set | frozenset) else None


@contextlib.contextmanager
def kept_exports(exports: Path) -> Iterator[None]:
    """Export each graph once and copy it from `exports` afterwards."""
    exports.mkdir(exist_ok=True)

    def export_or_copy(
        graph: Any, example: Any, inputs: Any, outputs: Any, shapes: Any, path: Path
    ) -> None:
        content = io.BytesIO()
        _ByValue(content).dump((graph, inputs, outputs, repr(shapes), path.name))
        kept = exports / hashlib.sha256(content.getbuffer()).hexdigest()
        if not kept.exists():
            fresh = Path(tempfile.mkdtemp(dir=exports))
            _EXPORT(graph, example, inputs, outputs, shapes, fresh / path.name)
            with contextlib.suppress(OSError):  # another process was faster
                fresh.rename(kept)
        for file in kept.iterdir():
            shutil.copy(file, path.parent)

    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(graphs, "export_graph", export_or_copy))
        patches.enter_context(mock.patch.object(bench, "measure_memory", return_value=_PEAK))
        patches.enter_context(mock.patch.object(page, "images", return_value={}))
        for module in _COLLECTING:
            patches.enter_context(mock.patch.object(module, "gc", _NO_COLLECTION))
        yield


@contextlib.contextmanager
def exports_made_anew() -> Iterator[None]:
    """Inside `kept_exports`: as without it."""
    with (
        mock.patch.object(graphs, "export_graph", _EXPORT),
        mock.patch.object(bench, "measure_memory", _MEMORY),
        mock.patch.object(page, "images", _IMAGES),
        mock.patch.object(memory, "gc", gc),
    ):
        yield


@contextlib.contextmanager
def no_exports() -> Iterator[None]:
    """Files without a graph in them, which nobody checks: an export takes most of a toy run."""

    def empty(*arguments: Any) -> None:
        arguments[-1].touch()

    with (
        mock.patch.object(graphs, "export_graph", empty),
        mock.patch.object(TaskGraphs, "check", return_value=[]),
    ):
        yield
