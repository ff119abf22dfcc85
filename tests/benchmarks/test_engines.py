"""Tables of engines: which builds are rivals, and which are compared."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import engines, first_page
from benchmarks.pages import NNCF
from compressor.tasks import TASKS
from tests.helpers import runtime_artifacts, toy
from tests.helpers.runtime_artifacts import largest
from tests.runtime.test_translator import batch_of


def row(model: str, engine: str, precision: str, rate: float) -> dict:
    return {
        "model": model, "engine": engine, "precision": precision, "rows_per_second": rate,
        "rows": 16, "tokens": 16,
    }  # fmt: skip


def test_nncf_is_a_rival_as_a_dense_build_and_no_pruned_build_of_compress():
    rows = [
        row("dense", "onnxruntime", "int8", 100.0),
        row("dense", "openvino", NNCF, 140.0),
        row("macs-0.25", "onnxruntime", "int8", 250.0),
        row("macs-0.25", "openvino", NNCF, 300.0),
    ]
    dense, pruned = first_page._winners(rows, (16, 16))
    assert (dense["precision"], pruned["precision"]) == (NNCF, "int8")
    rows[1]["rows_per_second"] = 70.0
    assert first_page._winners(rows, (16, 16))[0]["precision"] == "int8"


def test_a_processor_with_dense_builds_alone_has_no_line_of_pruned_ones(monkeypatch):
    dense = row("dense", "onnxruntime", "int8", 100.0)
    pruned = row("macs-0.25", "onnxruntime", "int8", 250.0) | {"quality": 89.0, "fastest": [2.5]}
    sections = {"AMD, avx2": [dense], "Intel, avx2": [dense | {"quality": 90.0}, pruned]}
    found = {"engines-classification.json": sections}
    monkeypatch.setattr(first_page, "read_json", lambda path, _: found.get(path.name, {}))
    _, _, *lines = first_page.choice().splitlines()
    assert [line.split("|")[2:4] for line in lines] == [[" Intel, AVX2 alone ", " 16 × 16 "]]


@pytest.mark.parametrize(
    ("task", "is_installed", "quantizes"),
    [
        ("classification", True, True),
        ("classification", False, False),
        ("translation", True, False),  # OpenVINO runs no encoder-decoders here
    ],
)
def test_encoders_get_an_nncf_build_wherever_it_is_installed(
    task: str, is_installed: bool, quantizes: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        engines, "find_spec", lambda name: SimpleNamespace() if is_installed else None
    )
    assert engines.quantizes_with_nncf(TASKS[task]) is quantizes


@pytest.mark.parametrize(("is_installed", "given"), [(True, []), (False, ["--calibration", "x"])])
def test_rows_to_quantize_with_are_asked_for_where_they_are_needed(
    is_installed: bool, given: list[str], monkeypatch, capsys
):
    """A build that is left out unnoticed would make other builds the fastest."""
    monkeypatch.setattr(engines, "read_artifact", lambda path: SimpleNamespace(task="reranking"))
    monkeypatch.setattr(engines, "quantizes_with_nncf", lambda task: is_installed)
    monkeypatch.setattr("sys.argv", ["engines", "artifact", "--rows", "y", *given])
    with pytest.raises(SystemExit):
        engines.main()
    assert "--calibration is for NNCF" in capsys.readouterr().err


@pytest.mark.slow
def test_nncf_makes_an_int8_build_of_the_same_model(tmp_path: Path):
    pytest.importorskip("nncf")
    directory, task = runtime_artifacts.classifier("bert").directory, TASKS["classification"]
    plain = task.open(directory, threads=1)
    file = toy.labels_file(tmp_path / "rows.tsv", rows=100)
    rows = task.read_rows(file, labels=plain.artifact.labels)
    quantized = engines.open_nncf(directory, task, 1, rows, tmp_path / "work")
    arrays = batch_of(plain, toy.sentences(64, 5))
    expected, actual = plain.run(arrays), quantized.run(arrays)
    # A random model with few weights: rounding to 8 bits changes much, and shows in every logit.
    assert (abs(actual - expected) > 1e-5 * largest(expected)).all()
    assert np.corrcoef(actual.ravel(), expected.ravel())[0, 1] > 0.7
