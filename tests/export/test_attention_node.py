"""Attention of encoders as one node: the same answers as PyTorch, and only where it can be one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.helper import make_tensor_value_info

from compressor.export.attention_node import with_attention_nodes
from compressor.model.sublayers import Mask, Sublayer
from tests.helpers import toy
from tests.helpers.runtime_artifacts import Exported, export, largest, new_directory
from tests.helpers.tiny import TRANSLATORS, ragged_batch

pytestmark = pytest.mark.slow


def one_head_less(layers: list[Sublayer]) -> Mask:
    """The first layer has a head less than the others."""
    first = next(layer for layer in layers if layer.kind == "encoder_self")
    return Mask.full(layers).without([(first.name, 0)])


@cache
def exported(name: str) -> Exported:
    directory = new_directory()
    return export(toy.checkpoint(directory / "dense", name), one_head_less, directory / "out")


def load(made: Exported, role: str = "model") -> onnx.ModelProto:
    return onnx.load(made.directory / "onnx" / f"{role}.onnx")


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    result: np.ndarray = session.run(None, {x.name: feeds[x.name] for x in session.get_inputs()})[0]
    return result


def feeds_of(made: Exported) -> dict[str, np.ndarray]:
    batch = {key: value.numpy() for key, value in ragged_batch(made.model, rows=6, seed=3).items()}
    return {"token_type_ids": np.zeros_like(batch["input_ids"]), **batch}


def count(model: onnx.ModelProto, kind: str) -> int:
    return sum(node.op_type == kind for node in model.graph.node)


# BERT and DistilBERT read one token of their last layer. MPNet adds a bias to scores, ModernBERT
# rotates queries and keys, DeBERTa adds products with positions: these stay as they are.
@pytest.mark.parametrize(
    ("name", "joined"),
    [
        ("bert", True), ("distilbert", True), ("roberta", True),
        ("mpnet", False), ("modernbert", False), ("deberta-v2", False),
    ],
)  # fmt: skip
def test_a_ragged_batch_gets_pytorchs_logits(name: str, joined: bool):
    made = exported(name)
    plain, feeds = load(made), feeds_of(made)
    changed = with_attention_nodes(plain)
    onnx.checker.check_model(changed)
    layers = count(plain, "Softmax")
    assert (count(changed, "Attention"), count(changed, "Softmax")) == (
        (layers, 0) if joined else (0, layers)
    )
    batch = {x.name: torch.from_numpy(feeds[x.name]) for x in plain.graph.input}
    with torch.no_grad():
        expected = made.model(**batch).logits.numpy()
    assert largest(run(changed, feeds) - expected) < 1e-5 * largest(expected)


def test_a_row_of_padding_alone_beside_others_changes_nothing():
    made = exported("bert")
    feeds = feeds_of(made)
    changed = with_attention_nodes(load(made))
    expected = run(changed, feeds)
    more = {key: np.concatenate([value, 0 * value[:1]]) for key, value in feeds.items()}
    actual = run(changed, more)
    np.testing.assert_allclose(actual[:-1], expected, rtol=0, atol=1e-5 * largest(expected))
    assert np.isfinite(actual).all()


def test_an_attention_whose_probabilities_are_read_stays():
    made = exported("bert")
    plain, feeds = load(made), feeds_of(made)
    first = next(node for node in plain.graph.node if node.op_type == "Softmax")
    output = make_tensor_value_info(first.output[0], onnx.TensorProto.FLOAT, [None] * 4)
    plain.graph.output.append(output)
    changed = with_attention_nodes(plain)
    layers = count(plain, "Softmax")
    assert (count(changed, "Attention"), count(changed, "Softmax")) == (layers - 1, 1)
    expected = run(plain, feeds)
    assert largest(run(changed, feeds) - expected) < 1e-5 * largest(expected)


def test_a_translators_encoder_has_them_and_its_decoder_keeps_its_caches():
    assert "marian" in TRANSLATORS
    made = exported("marian")
    encoder, decoder = load(made, "encoder"), load(made, "decoder")
    changed = with_attention_nodes(encoder)
    assert (count(changed, "Attention"), count(changed, "Softmax")) == (
        count(encoder, "Softmax"),
        0,
    )
    feeds = {x.name: feeds_of(made)[x.name] for x in encoder.graph.input}
    expected = run(encoder, feeds)
    assert largest(run(changed, feeds) - expected) < 1e-5 * largest(expected)
    unchanged = with_attention_nodes(decoder)
    assert count(unchanged, "Attention") == 0
    assert unchanged.opset_import == decoder.opset_import
    names = [x.name for x in decoder.graph.input]
    assert [x.name for x in unchanged.graph.input] == names


def test_int8_graphs_have_them(tmp_path: Path):
    from compressor.export.precisions import write_precision

    made = exported("bert")
    write_precision(made.directory, "int8", (), tmp_path)
    written = onnx.load(tmp_path / "onnx" / "model.int8.onnx")
    assert count(written, "Attention") == count(load(made), "Softmax")
    assert count(load(made), "Attention") == 0  # which OpenVINO opens
