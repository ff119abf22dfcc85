"""PyTorch as an engine: the dense model, to compare with, by the same names as any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compressor.errors import UsageError
from compressor.export.exported import pruned_engines
from compressor.options.requests import ExportRequest, make_request
from compressor.pipeline.run import run
from compressor.pipeline.single import export_checkpoint
from compressor.runtime import Classifier, Translator
from compressor.runtime.engines.pytorch import PyTorch
from compressor.tasks import TASKS
from compressor.tasks.engines import engines_to_measure
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.runs import recipe_for
from tests.runtime.test_translator import batch_of

TEXTS = toy.sentences(20, seed=4)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory):
    def export(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        model = toy.first_layers(toy.checkpoint(folder / "whole", name), folder / "model")
        options = {"model": str(model), "engines": "onnxruntime,pytorch"}
        export_checkpoint(make_request(ExportRequest, **options), folder / "out")
        return folder / "out"

    return {name: export(name) for name in ("bert", "marian")}


def test_a_classifier_answers_as_in_onnxruntime(exported):
    model = Classifier(exported["bert"], engine="pytorch")
    assert (model.engine, model.provider, model.precision) == ("pytorch", "PyTorch CPU", "fp32")
    expected = Classifier(exported["bert"]).logits(TEXTS)
    np.testing.assert_allclose(model.logits(TEXTS), expected, atol=1e-5)


def test_a_translator_answers_as_in_onnxruntime(exported):
    models = [Translator(exported["marian"], engine=name) for name in ("pytorch", "onnxruntime")]
    for beams in (1, 3):
        answers = [model.translate(TEXTS, num_beams=beams) for model in models]
        assert answers[0] == answers[1]
    batch = batch_of(models[0], TEXTS)
    forced = [row for model in models for row in model.generate(batch, forced_length=5)]
    assert {len(row) for row in forced} == {5}


@pytest.mark.slow
def test_a_run_compares_with_it_and_delivers_without(tmp_path: Path):
    model = toy.first_layers(toy.classifier(tmp_path / "whole"), tmp_path / "bert")
    recipe = recipe_for(model, tmp_path, engines=["onnxruntime,pytorch"], method="magnitude")
    report = run(recipe, tmp_path / "out")
    assert [(v.name, v.engine) for v in report.variants] == [
        ("dense-pytorch", "pytorch"), ("keep-0.5", "onnxruntime"),
    ]  # fmt: skip
    rival = report.variants[0]
    assert {c.difference for c in rival.comparisons} == {0}  # its answers are evaluated
    assert report.throughput is not None
    timed = {row.variant: row.fastest for row in report.throughput.rows}
    assert timed.keys() == {"dense", "dense-pytorch", "keep-0.5"}
    assert timed["keep-0.5"] in ("dense", "dense-pytorch")
    assert not (tmp_path / "out" / "pytorch").exists()
    with raises(UsageError, "engine-not-in-artifact"):
        Classifier(tmp_path / "out", engine="pytorch")
    options = {"model": str(tmp_path / "out"), "engines": "onnxruntime,pytorch"}
    with raises(UsageError, "engine-for-dense-models"):
        export_checkpoint(make_request(ExportRequest, **options), tmp_path / "again")


def test_a_timed_gpu_is_compared_with_it_unasked(monkeypatch: pytest.MonkeyPatch):
    asked = ["onnxruntime"]
    classification, embedding = TASKS["classification"], TASKS["embedding"]
    monkeypatch.setattr(PyTorch.library().cuda, "is_available", lambda: True)
    measured = engines_to_measure(asked, classification, "cuda", timed=True)
    assert measured == ["onnxruntime", "pytorch"]
    assert pruned_engines(measured) == asked
    for device, timed, task in (
        ("cpu", True, classification), ("cuda", False, classification), ("cuda", True, embedding),
    ):  # fmt: skip
        assert engines_to_measure(asked, task, device, timed) == asked
    assert PyTorch.measured(Path(), None, "cuda") == ["fp16"]
    monkeypatch.setattr(PyTorch.library().cuda, "is_available", lambda: False)
    assert engines_to_measure(asked, classification, "cuda", timed=True) == asked
