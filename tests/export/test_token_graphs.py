"""Graphs of encoders that hand on fewer tokens: they answer as PyTorch, in every engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from compressor.export.fused import fuse
from compressor.export.precisions import add_precision
from compressor.export.verify import Expected, Spooled
from compressor.model.sublayers import Mask, Sublayer
from compressor.model.token_selection import choice_margins
from compressor.runtime import Classifier
from compressor.tasks import TASKS
from tests.helpers import toy
from tests.helpers.runtime_artifacts import Exported, export, write_hashes
from tests.helpers.tiny import ragged_batch

# One for each form of attention, and of layers.
ENCODERS = ("bert", "distilbert", "mpnet", "modernbert")


def fewer_tokens(layers: list[Sublayer]) -> Mask:
    """The last two layers work on fewer tokens; the first one has no heads, the second has two."""
    gone = [("encoder_tokens.0", n) for n in range(7, 10)]
    gone += [("encoder_tokens.1", n) for n in range(3, 10)]
    gone += [("encoder_self.0", n) for n in range(4)]
    gone += [("encoder_self.1", n) for n in (1, 2)]
    return Mask.full(layers).with_tokens().without(gone)


@pytest.fixture(scope="module", params=ENCODERS)
def artifact(request: Any, tmp_path_factory: Any) -> Exported:
    return exported(request.param, tmp_path_factory.mktemp(request.param))


def exported(name: str, directory: Path) -> Exported:
    dense = toy.checkpoint(directory / "dense", name)
    if name == "modernbert":
        config = json.loads((dense / "config.json").read_text())
        (dense / "config.json").write_text(json.dumps(config | {"classifier_pooling": "cls"}))
    return export(dense, fewer_tokens, directory / "out")


def inputs_of(batch: dict[str, torch.Tensor], runtime: Any) -> dict[str, np.ndarray]:
    types = torch.zeros_like(batch["input_ids"])
    return {name: batch.get(name, types).numpy() for name in runtime.artifact.inputs}


@torch.no_grad()
def test_logits_are_pytorchs_and_a_row_alone_answers_as_in_a_batch(artifact: Exported):
    runtime = Classifier(artifact.directory)
    batch = ragged_batch(artifact.model, rows=6)
    expected = artifact.model(**batch).logits.numpy()
    actual = runtime.run(inputs_of(batch, runtime))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    for row, real in enumerate(batch["attention_mask"].bool()):
        alone = {name: values[row : row + 1, real] for name, values in batch.items()}
        np.testing.assert_allclose(
            runtime.run(inputs_of(alone, runtime))[0], actual[row], rtol=1e-4, atol=1e-5
        )
    # More padding than the longest row needs changes nothing.
    padded = {name: torch.nn.functional.pad(values, (0, 5)) for name, values in batch.items()}
    np.testing.assert_allclose(
        runtime.run(inputs_of(padded, runtime)), actual, rtol=1e-4, atol=1e-5
    )


@torch.no_grad()
def test_openvino_answers_as_onnxruntime(artifact: Exported):
    pytest.importorskip("openvino")
    batch = ragged_batch(artifact.model, rows=6)
    runtimes = [Classifier(artifact.directory, engine=x) for x in ("onnxruntime", "openvino")]
    logits = [runtime.run(inputs_of(batch, runtime)) for runtime in runtimes]
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_other_precisions_answer_nearly_as_float32(tmp_path: Path):
    made = exported("bert", tmp_path)
    batch = ragged_batch(made.model, rows=20)
    batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    expected = made.model(**batch).logits.numpy()
    margins = choice_margins(made.model)
    assert margins is not None
    certain = margins.numpy() > 0.05
    assert certain.sum() >= 5
    for precision, most in (("fp16", 0.01), ("int8", 0.2)):
        add_precision(made.model, [batch], made.directory, precision)
        write_hashes(made.directory)
        runtime = Classifier(made.directory, precision=precision)
        actual = runtime.run(inputs_of(batch, runtime))[certain]
        assert np.abs(actual - expected[certain]).max() < most * np.abs(expected).max()


@torch.no_grad()
def test_rows_that_rounding_decides_are_counted_and_left_out(tmp_path: Path):
    made = exported("bert", tmp_path)
    batch = ragged_batch(made.model, rows=6)
    logits = made.model(**batch).logits.numpy()
    wrong = logits.copy()
    wrong[2] += 1.0
    runtime, graphs = Classifier(made.directory), TASKS["classification"].graphs
    inputs = inputs_of(batch, runtime)
    for margin, undecided in ((1e-6, 1), (1e-3, 0)):
        margins = np.where(np.arange(6) == 2, margin, 1.0)
        expected = [Expected(inputs, Spooled(wrong), margins=margins)]
        compared = graphs.compare(expected, runtime)
        assert compared.undecided == undecided
        assert (max(compared.differences) < 1e-4) == bool(undecided)


def test_there_is_no_form_for_cuda(tmp_path: Path):
    made = exported("bert", tmp_path)
    assert fuse(onnx.load(made.directory / "onnx" / "model.onnx")) is None
