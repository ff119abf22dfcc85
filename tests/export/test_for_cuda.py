"""Graphs made for CUDA, checked on the CPU: the same nodes in float32 against PyTorch."""

from __future__ import annotations

import copy
import shutil
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto
from onnx.helper import make_tensor_value_info

from compressor.errors import VerificationError
from compressor.export.for_cuda import form_check, pack
from compressor.export.fused import ROW_STARTS, fuse
from compressor.export.graph_edit import attribute
from compressor.export.precisions import write_precision
from compressor.export.task_graphs import Network
from compressor.model.architecture import ENCODER
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask, Sublayer
from compressor.model.surgery import prune
from compressor.runtime.fused_encoder import positions
from compressor.runtime.opening import read_artifact
from compressor.tasks import TASKS
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.heads import HEADS, save_head
from tests.helpers.packed_graphs import PackedSession
from tests.helpers.runtime_artifacts import classifier, new_directory
from tests.helpers.sentence_encoders import save_encoder
from tests.helpers.tiny import ragged_batch, uneven_mask

pytestmark = pytest.mark.slow

# One of each form: normalization behind the sublayers (with biases of their own, of other names, of
# attention by distance) or before them, rotated positions, root mean squares.
FUSED = ("bert", "distilbert", "mpnet", "modernbert", "marian", "mbart", "umt5")
# Operators that onnxruntime computes on the GPU, in the types that these graphs have.
ON_GPU = {
    "Attention", "MultiHeadAttention", "RotaryEmbedding", "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization", "BiasGelu", "FastGelu", "Gelu", "Relu", "Tanh", "MatMul",
    "Gemm", "LayerNormalization", "Add", "Sub", "Mul", "Div", "Abs", "Not", "Equal", "Greater",
    "GreaterOrEqual", "Where", "Clip", "Cast", "Gather", "CumSum", "ReduceSum", "ReduceMean",
    "ReduceMax", "ReduceL2", "Pow", "Sqrt", "Reciprocal", "Unsqueeze", "Transpose", "Reshape",
    "Split", "Concat", "Squeeze",
}  # fmt: skip
# 1e-6 of the largest value is what float32 sums in another order come to.
TOLERANCE = 1e-5


def heads_everywhere(layers: list[Sublayer]) -> Mask:
    """Each attention has another number of heads, and the last one has some."""
    units = [(x.name, n) for x in layers if x.is_attention for n in range(x.index + 1)]
    return Mask.full(layers).without(units)


@cache
def plain(
    name: str, make_mask: Callable[[list[Sublayer]], Mask] = uneven_mask
) -> tuple[onnx.ModelProto, Any, list[int]]:
    """The float32 graph of an unevenly pruned encoder; its model, and its layers' heads."""
    directory = new_directory()
    checkpoint = open_checkpoint(str(toy.checkpoint(directory / "dense", name)))
    mask = make_mask(checkpoint.layers)
    model = prune(checkpoint.model, checkpoint.layers, mask)
    graphs = TASKS[checkpoint.task].graphs
    files = graphs.write(Network(checkpoint, model, mask), directory / "out", skip=["decoder"])
    encoder = files.get("model") or files["encoder"]
    heads = [len(mask.kept(x.name)) for x in checkpoint.layers if x.kind == "encoder_self"]
    return onnx.load(directory / "out" / encoder), model, [count for count in heads if count]


def fused(name: str) -> onnx.ModelProto:
    made = fuse(plain(name)[0])
    assert made is not None
    return made


def batch(model: Any, rows: int = 5, seed: int = 3) -> dict[str, torch.Tensor]:
    """A ragged batch; of models with token types, of two kinds."""
    made = ragged_batch(model, rows, seed)
    made.pop("decoder_input_ids", None)
    if getattr(model.config, "type_vocab_size", 1) > 1 and not model.config.is_encoder_decoder:
        made["token_type_ids"] = (made["input_ids"] % 2) * made["attention_mask"]
    return made


def run(graph: onnx.ModelProto, inputs: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {value.name: inputs[value.name].numpy() for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def run_packed(graph: onnx.ModelProto, inputs: dict[str, torch.Tensor]) -> np.ndarray:
    packed = pack(graph)
    assert packed is not None
    session = PackedSession(packed)
    feeds = {name: value.numpy() for name, value in inputs.items()}
    feeds |= positions(feeds["attention_mask"])
    read = {value.name: feeds[value.name] for value in session.get_inputs()}
    return session.run(["logits"], read)[0]


@torch.no_grad()
def expected(model: Any, inputs: dict[str, torch.Tensor]) -> np.ndarray:
    """PyTorch's logits, or the hidden states of the real tokens."""
    if not model.config.is_encoder_decoder:
        return model(**inputs).logits.numpy()
    hidden = model.get_encoder()(**inputs).last_hidden_state
    return hidden[inputs["attention_mask"].bool()].numpy()


def relative(actual: np.ndarray, wanted: np.ndarray) -> float:
    assert actual.shape == wanted.shape
    return float(np.abs(actual - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_graph_answers_as_pytorch(name: str):
    """With nodes of a GPU alone, and one attention of each layer with heads."""
    graph, model, heads = plain(name)
    made = fused(name)
    for rows, seed in ((5, 3), (1, 4)):
        inputs = batch(model, rows, seed)
        actual = run(made, inputs)
        real = inputs["attention_mask"].bool().numpy()
        first = next(iter(actual.values()))
        answers = first[real] if model.config.is_encoder_decoder else first
        assert relative(answers, expected(model, inputs)) < TOLERANCE
        # Keys and values for the decoder, [batch, heads, source, head_dim].
        usual = run(graph, inputs)
        for cross in [x for x in usual if x.startswith("cross_")]:
            both = (values[cross].transpose(0, 2, 1, 3)[real] for values in (actual, usual))
            assert relative(*both) < TOLERANCE
    assert {node.op_type for node in made.graph.node} <= ON_GPU
    assert [value.name for value in made.graph.input] == [x.name for x in graph.graph.input]
    assert str(made.graph.output) == str(graph.graph.output)
    attentions = [n for n in made.graph.node if n.op_type in ("Attention", "MultiHeadAttention")]
    assert [attribute(node, "num_heads") for node in attentions] == heads
    if name == "bert":  # seven nodes are left of a layer
        kinds = Counter(node.op_type for node in made.graph.node)
        assert kinds["SkipLayerNormalization"] >= 4
        assert kinds["BiasGelu"] == 2


@pytest.mark.parametrize("name", ["bert", "distilbert", "mpnet"])
def test_a_last_layer_of_one_query_stays_plain(name: str):
    """Its attention has as many keys as tokens, and one query; also without padding."""
    graph, model, heads = plain(name, heads_everywhere)
    made, inputs = fuse(graph), batch(model)
    assert made is not None
    assert {node.op_type for node in made.graph.node} <= ON_GPU | {"Softmax"}
    attentions = [node for node in made.graph.node if node.op_type == "Attention"]
    assert [attribute(node, "num_heads") for node in attentions] == heads[:-1]
    wanted = expected(model, inputs)
    assert relative(run(made, inputs)["logits"], wanted) < TOLERANCE
    if name != "mpnet":
        assert relative(run_packed(made, inputs), wanted) < TOLERANCE


def test_padding_and_rows_without_a_token_change_no_other_row():
    inputs, made = batch(plain("bert")[1]), copy.deepcopy(fused("bert"))
    wanted = run(made, inputs)["logits"]
    made.graph.output.append(make_tensor_value_info(ROW_STARTS, TensorProto.INT32, ["numbers"]))
    lengths = inputs["attention_mask"].sum(1)
    starts = np.arange(6) * inputs["attention_mask"].shape[1]
    np.testing.assert_array_equal(run(made, inputs)[ROW_STARTS], [*lengths, *starts, *starts])
    more = {name: torch.nn.functional.pad(value, (0, 5, 0, 2)) for name, value in inputs.items()}
    actual = run(fused("bert"), more)["logits"]
    assert np.isfinite(actual).all()
    np.testing.assert_allclose(actual[:5], wanted, atol=1e-5)


@pytest.mark.attack
def test_graphs_with_products_of_positions_stay_plain():
    """DeBERTa's scores are more than one node can add up."""
    assert fuse(plain("deberta-v2")[0]) is None


@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_a_packed_graph_answers_as_pytorch(name: str):
    """No kernel packs attention by distance, rotated positions or root mean squares."""
    model = plain(name)[1]
    inputs = batch(model)
    assert relative(run_packed(fused(name), inputs), expected(model, inputs)) < TOLERANCE
    packed = pack(fused(name))
    kinds = Counter(node.op_type for node in packed.graph.node)
    assert (kinds["RestorePadding"], kinds["PackedMultiHeadAttention"]) == (1, 2)
    for other in ("mpnet", "modernbert", "umt5"):
        assert pack(fused(other)) is None


@pytest.mark.parametrize("head", ["token-classification", "question-answering", "mean", "cls"])
def test_heads_of_other_tasks(head: str, tmp_path: Path):
    """A cut model's graphs of both forms against PyTorch, at the real tokens."""
    if head in HEADS:
        saved, options = save_head(tmp_path / "dense", "bert", head), {"task": head}
    else:
        layers = head == "mean"  # a dense one and normalization behind the pooling
        saved = save_encoder(tmp_path / "dense", "distilbert", head, layers, layers)
        options = {"task": "embedding", "auto_class": ENCODER.auto_class}
    checkpoint = open_checkpoint(str(saved), **options)
    mask = uneven_mask(checkpoint.layers)
    model = prune(checkpoint.model, checkpoint.layers, mask)
    TASKS[checkpoint.task].graphs.write(Network(checkpoint, model, mask), tmp_path / "out")
    made = fuse(onnx.load(tmp_path / "out" / "model.onnx"))
    assert {node.op_type for node in made.graph.node} <= ON_GPU
    inputs = batch(model)
    wanted = expected(model, inputs)
    real = inputs["attention_mask"].bool().numpy() if wanted.ndim == 3 else ...
    for actual in (run(made, inputs)["logits"], run_packed(made, inputs)):
        assert relative(actual[real], wanted[real]) < TOLERANCE


def test_what_is_written_for_cuda(tmp_path: Path):
    made, directory = classifier("bert"), tmp_path / "out"
    shutil.copytree(made.directory, directory)
    write_precision(directory, "fp16", (), device="cuda")
    artifact = read_artifact(directory)
    assert artifact.made_for == {"fp16": "cuda"}
    assert artifact.precisions["fp16"] == {"model": "model.fp16.onnx", "packed": "packed.fp16.onnx"}
    # Both forms read one file of weights.
    assert not (directory / "onnx" / "packed.fp16.onnx_data").exists()
    for file in artifact.precisions["fp16"].values():
        graph = onnx.load(directory / "onnx" / file).graph
        floats = {x.data_type for x in graph.initializer if len(x.dims) > 1 and x.data_type != 7}
        assert floats <= {TensorProto.FLOAT16, TensorProto.INT32}
        assert graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT

    # Its form is checked in float32 on the CPU.
    graphs = TASKS["classification"].graphs
    check = form_check(graphs.expect(made.model, directory, [batch(made.model)]), directory)
    assert check.is_met
    assert "CPUExecutionProvider" in check.detail
    other = copy.deepcopy(made.model)
    other.classifier.weight.data.mul_(1.01)
    with raises(VerificationError, "onnx-differs"):
        form_check(graphs.expect(other, directory, [batch(other)]), directory)
    assert not [path for path in directory.iterdir() if path.name.startswith(".")]
