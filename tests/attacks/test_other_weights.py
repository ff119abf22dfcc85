"""Graphs with other weights than the checkpoint's, which no answer need show: verify refuses."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from compressor.errors import InputError
from compressor.pipeline.verification import verify_directory
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.runtime_artifacts import write_both, write_hashes


@pytest.fixture(scope="session")
def whole(once) -> Path:
    """Artifacts of a classifier and of a translator, with graphs and weights."""

    def make(directory: Path) -> None:
        for name, dense in (("bert", toy.classifier), ("marian", toy.translator)):
            write_both(toy.pruned(dense(directory / "dense" / name, name), directory / name))

    return once("whole-artifacts", make)


def edit(directory: Path, name: str, **changes: Any) -> None:
    path = directory / name
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


def overwrite_row(directory: Path, graph: str, row: int) -> None:
    """Other values for one row of the embeddings."""

    def change(values: np.ndarray) -> None:
        values[row] = values[row - 1]

    change_weights(directory, graph, "Gather", 60, change)


def nudge(directory: Path, graph: str) -> None:
    """The next float for one weight of a product: no answer shows it."""

    def change(values: np.ndarray) -> None:
        values[0, 0] = np.nextafter(values[0, 0], np.float32(9))

    change_weights(directory, graph, "MatMul", None, change)


def change_weights(
    directory: Path, graph: str, operator: str, rows: int | None, change: Callable
) -> None:
    """Change the first matrix that nodes of a kind read, and put all weights into the graph."""
    path = directory / "onnx" / graph
    model = onnx.load(path)
    read = {name for node in model.graph.node if node.op_type == operator for name in node.input}
    chosen = next(
        x
        for x in model.graph.initializer
        if x.name in read and len(x.dims) == 2 and rows in (None, x.dims[0])
    )
    values = numpy_helper.to_array(chosen).copy()
    change(values)
    chosen.CopyFrom(numpy_helper.from_array(values, chosen.name))
    onnx.save(model, path)
    path.with_name(f"{graph}_data").unlink(missing_ok=True)


CHANGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a row": ("bert", lambda d: overwrite_row(d, "model.onnx", 59)),
    "a source weight": ("marian", lambda d: nudge(d, "encoder.onnx")),
    "a target weight": ("marian", lambda d: nudge(d, "decoder.onnx")),
}


def test_graphs_with_the_checkpoints_weights_pass(whole, tmp_path):
    """Of hard links too, which onnx takes for an attack."""
    for name in ("bert", "marian"):
        linked = shutil.copytree(whole / name, tmp_path / name, copy_function=os.link)
        assert verify_directory(Path(linked)).checks


@pytest.mark.parametrize("name", CHANGES)
def test_graphs_with_other_weights_are_refused(name, whole, tmp_path):
    of, change = CHANGES[name]
    directory = Path(shutil.copytree(whole / of, tmp_path / of))
    change(directory)
    write_hashes(directory)
    with raises(InputError, "graphs-of-another-model"):
        verify_directory(directory)


@pytest.mark.parametrize(
    ("file", "id"),
    [
        ("units.json", "units-file-malformed"),
        ("onnx/graphs.json", "artifact-invalid"),
        ("manifest.json", "manifest-damaged"),
    ],
)
def test_unknown_schemas_are_refused(file, id, whole, tmp_path):
    directory = Path(shutil.copytree(whole / "bert", tmp_path / "bert"))
    edit(directory, file, schema=99)
    if file != "manifest.json":
        write_hashes(directory)
    with raises(InputError, id):
        verify_directory(directory)
