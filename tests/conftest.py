"""What tests of whole runs share."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import compressor.export.graphs
import compressor.speed_trials


@pytest.fixture(scope="session")
def _exports() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="compress-exports-") as directory:
        yield Path(directory)


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
            fresh.rename(kept)
        directory.mkdir(parents=True, exist_ok=True)
        for path in kept.glob("*.onnx*"):
            shutil.copy(path, directory)
        found: dict[str, str] = json.loads((kept / "files.json").read_text(encoding="utf-8"))
        return found

    with (
        mock.patch.object(compressor.export.graphs, "export_graphs", export_or_copy),
        mock.patch.object(compressor.speed_trials, "export_graphs", export_or_copy),
    ):
        yield
