"""What tests of whole runs share."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from filelock import FileLock

import compressor.export.graphs
import compressor.pipeline.time_masks


@pytest.fixture(scope="session")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that the workers of a run have in common."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    directory.mkdir(exist_ok=True)
    return directory


@pytest.fixture(scope="session")
def _exports(_shared: Path) -> Path:
    directory = _shared / "exports"
    directory.mkdir(exist_ok=True)
    return directory


@pytest.fixture(scope="session")
def once(_shared: Path) -> Callable[[str, Callable[[Path], object]], Path]:
    """`once(name, make)`: what `make` writes to an empty directory, made by one worker for all.

    Tests read it; one that writes takes a copy.
    """

    def made(name: str, make: Callable[[Path], object]) -> Path:
        directory, done = _shared / name, _shared / f"{name}.done"
        with FileLock(_shared / f"{name}.lock"):
            if not done.exists():
                shutil.rmtree(directory, ignore_errors=True)  # of a failure
                directory.mkdir()
                make(directory)
                done.touch()
        return directory

    return made


@pytest.fixture(scope="module")
def shared_exports(_exports: Path) -> Iterator[None]:
    """Graphs of the same weights are written once and then copied, for tests about other things.

    Exporting takes seconds, and whole runs export the same toy models again and again. That it
    always gives the same bytes is tested in test_export.py.
    """
    export = compressor.export.graphs.export_graphs

    def export_or_copy(
        model: Any, layers: Any, mask: Any, directory: Path, **options: Any
    ) -> dict[str, str]:
        settings = (model.config.to_dict(), mask.to_json(), sorted(options.items()))
        key = hashlib.sha256(repr(settings).encode())
        for name, value in model.state_dict().items():
            key.update(name.encode())
            key.update(value.numpy().tobytes())
        kept = _exports / key.hexdigest()
        if not kept.exists():
            fresh = Path(tempfile.mkdtemp(dir=_exports))
            files = export(model, layers, mask, fresh, **options)
            fresh.joinpath("files.json").write_text(json.dumps(files), encoding="utf-8")
            with contextlib.suppress(OSError):  # the other worker was faster
                fresh.rename(kept)
        directory.mkdir(parents=True, exist_ok=True)
        for path in kept.glob("*.onnx*"):
            shutil.copy(path, directory)
        found: dict[str, str] = json.loads((kept / "files.json").read_text(encoding="utf-8"))
        return found

    with (
        mock.patch.object(compressor.export.graphs, "export_graphs", export_or_copy),
        mock.patch.object(compressor.pipeline.time_masks, "export_graphs", export_or_copy),
    ):
        yield
