"""Fixtures that several folders of tests share."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from filelock import FileLock

from compressor.export import graphs
from tests.helpers.tiny import BUILDERS

# Of tests that are repeated for every architecture, `make quick` runs one per kind of model.
QUICK_ARCHITECTURES = {"marian", "bert"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whole runs, and all but two of the architectures, as slow."""
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        names = {value for value in parameters if isinstance(value, str)}
        others = names & (BUILDERS.keys() - QUICK_ARCHITECTURES)
        if others or "shared_exports" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all worker processes of this run share."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    directory.mkdir(exist_ok=True)
    return directory


@pytest.fixture(scope="session")
def once(_shared: Path) -> Callable[[str, Callable[[Path], object]], Path]:
    """`once(name, make)`: a directory that `make` filled, called by one worker for all of them.

    Tests only read it; a test that writes takes a copy.
    """

    def made(name: str, make: Callable[[Path], object]) -> Path:
        directory, done = _shared / name, _shared / f"{name}.done"
        with FileLock(_shared / f"{name}.lock"):
            if not done.exists():
                shutil.rmtree(directory, ignore_errors=True)  # left by a failed attempt
                directory.mkdir()
                make(directory)
                done.touch()
        return directory

    return made


class _ByValue(pickle.Pickler):
    """Pickles tensors by their values alone: equal modules give equal bytes in every process."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return bytes, (value.detach().numpy().tobytes(),)
        return NotImplemented


@pytest.fixture(scope="module")
def shared_exports(_shared: Path) -> Iterator[None]:
    """Export each graph once per run and copy it afterwards, for tests that are not about export.

    An export takes seconds, and whole runs export the same toy models again and again.
    test_export.py tests that the same model always gives the same bytes.
    """
    export = graphs.export_graph
    exports = _shared / "exports"
    exports.mkdir(exist_ok=True)

    def export_or_copy(
        graph: Any, example: Any, inputs: Any, outputs: Any, shapes: Any, path: Path
    ) -> None:
        content = io.BytesIO()
        _ByValue(content).dump((graph, inputs, outputs, repr(shapes), path.name))
        kept = exports / hashlib.sha256(content.getbuffer()).hexdigest()
        if not kept.exists():
            fresh = Path(tempfile.mkdtemp(dir=exports))
            export(graph, example, inputs, outputs, shapes, fresh / path.name)
            with contextlib.suppress(OSError):  # the other worker was faster
                fresh.rename(kept)
        for file in kept.iterdir():
            shutil.copy(file, path.parent)

    with mock.patch.object(graphs, "export_graph", export_or_copy):
        yield
