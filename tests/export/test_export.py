"""ONNX equals PyTorch for every architecture, with uneven and with empty layers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from transformers.activations import ACT2FN

from compressor.errors import InputError, VerificationError
from compressor.export import graphs
from compressor.export.graphs import OPSET
from compressor.export.precisions import add_precision
from compressor.export.task_graphs import Network, export_model
from compressor.export.verify import require_searched
from compressor.model.checkpoint import Checkpoint, open_checkpoint
from compressor.model.sublayers import Mask, units_of
from compressor.model.surgery import prune
from compressor.options.requests import ExportRequest
from compressor.pipeline.single import export_checkpoint
from compressor.steps.results import Check
from compressor.tasks import TASKS
from compressor.tasks.opened import random_check_batches
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.runs import request
from tests.helpers.runtime_artifacts import vary
from tests.helpers.tiny import (
    EXPORTED,
    empty_first_mask,
    nothing_left_mask,
    ragged_batch,
    tiny_model,
    uneven_mask,
)

pytestmark = pytest.mark.slow

MASKS = {"uneven": uneven_mask, "first": empty_first_mask, "nothing": nothing_left_mask}
# Exporting takes seconds, so each architecture gets the masks that can break it differently.
CASES = [(name, "uneven") for name in EXPORTED]
CASES += [("marian", "first"), ("bert", "nothing")]


def open_small(name: str, tmp_path) -> Checkpoint:
    """With one layer in each stack, where that is enough."""
    whole = toy.checkpoint(tmp_path / "whole", name)
    return open_checkpoint(str(toy.first_layers(whole, tmp_path / "dense")))


def export(checkpoint: Checkpoint, out: Path, mask: Mask | None = None, texts=("w3",)):
    """Prune and export; the model, the checks, and the inputs that they compared."""
    mask = mask or checkpoint.mask
    model = prune(checkpoint.model, checkpoint.layers, mask)
    batches = random_check_batches(checkpoint, TASKS[checkpoint.task])
    checks = export_model(Network(checkpoint, model, mask), batches, texts, out)
    return model, checks, [batch.inputs() for batch in batches]


@pytest.mark.parametrize(("name", "mask_name"), CASES)
def test_exported_answers_are_pytorchs(name: str, mask_name: str, tmp_path):
    """Once by the program's own check, once here through a plain onnxruntime session."""
    checkpoint = open_checkpoint(str(toy.checkpoint(tmp_path / "dense", name)))
    mask = MASKS[mask_name](checkpoint.layers)
    texts = ["w5 w7 w9", "w40", "", "  w8   w8 "]
    model, checks, inputs = export(checkpoint, tmp_path / "out", mask, texts)
    if mask_name == "nothing":  # left to multiply by stored weights but the classifier's
        for precision in ("int8", "fp16"):
            checks += add_precision(model, inputs, tmp_path / "out", precision)
    assert all(check.largest_difference <= check.tolerance for check in checks)
    before = prune(checkpoint.model, checkpoint.layers, mask).state_dict()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    batch = ragged_batch(model, rows=5)
    with torch.no_grad():
        expected = model(**batch).logits.numpy()
    actual = _run_plainly(tmp_path / "out" / "onnx", batch)
    np.testing.assert_allclose(actual, expected, atol=2e-4 * np.abs(expected).max())
    activations = 0
    graphs = (
        tmp_path / "out" / "onnx" / f"{role}.onnx" for role in ("model", "encoder", "decoder")
    )
    for path in filter(Path.exists, graphs):
        onnx.checker.check_model(path, full_check=True)
        proto = onnx.load(path)
        assert [(o.domain, o.version) for o in proto.opset_import] == [("", OPSET)]
        assert b"site-packages" not in path.read_bytes()
        activations += sum(node.op_type == "Gelu" for node in proto.graph.node)
        # Heads are split and joined without computing a size in every run.
        constant = {tensor.name for tensor in proto.graph.initializer}
        assert {n.input[1] for n in proto.graph.node if n.op_type == "Reshape"} <= constant
    # A feed-forward part without neurons has none; the classifier of ELECTRA has one of its own.
    parts = sum(count > 0 for part, count in mask.counts().items() if units_of(part) == "neurons")
    assert activations == parts + (name == "electra")


def _run_plainly(directory, batch) -> np.ndarray:
    """Logits through sessions opened here: one graph, or encoder and step by step decoder."""
    arrays = {name: value.numpy() for name, value in batch.items()}
    if (directory / "model.onnx").exists():
        session = _session(directory / "model.onnx")
        feeds = {i.name: arrays.get(i.name, np.zeros_like(arrays["input_ids"]))
                 for i in session.get_inputs()}  # fmt: skip
        return session.run(["logits"], feeds)[0]
    encoder, decoder = _session(directory / "encoder.onnx"), _session(directory / "decoder.onnx")
    source = {"input_ids": arrays["input_ids"], "attention_mask": arrays["attention_mask"]}
    names = [output.name for output in encoder.get_outputs()]
    state = dict(zip(names, encoder.run(None, source), strict=True))
    state["attention_mask"] = arrays["attention_mask"]
    rows = len(arrays["input_ids"])
    for value in decoder.get_inputs():
        if value.name.startswith("past"):
            state[value.name] = np.zeros((rows, value.shape[1], 0, value.shape[3]), np.float32)
    logits = []
    for position, tokens in enumerate(arrays["decoder_input_ids"].T):
        state |= {"input_ids": tokens[:, None], "position": np.array([position])}
        feeds = {i.name: state[i.name] for i in decoder.get_inputs()}
        outputs = zip(decoder.get_outputs(), decoder.run(None, feeds), strict=True)
        for output, value in outputs:
            state[output.name.replace("present", "past")] = value
        logits.append(state["logits"])
    return np.stack(logits, axis=1)


def _session(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.usefixtures("fresh_exports")
def test_the_same_model_exports_to_the_same_bytes(tmp_path):
    checkpoint = open_small("bert", tmp_path)
    layer = checkpoint.model.bert.encoder.layer[0]
    layer.intermediate.intermediate_act_fn = ACT2FN["relu2"]  # ONNX has no square: decomposed
    network = Network(checkpoint, checkpoint.model, checkpoint.mask)
    for name in ("a", "b"):
        TASKS[checkpoint.task].graphs.write(network, tmp_path / name)
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("a", "b")
    )
    assert set(first) == {"model.onnx", "model.onnx_data"}
    assert first == second


class OneType(torch.nn.Module):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.cat([(ids - 3).float(), ids.float() * 0.5], 1) + 1.0


class TwoTypes(torch.nn.Module):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return (ids * 0.5 + ids) / torch.arange(1, 4)


@pytest.mark.usefixtures("fresh_exports")
@pytest.mark.parametrize(("module", "passes"), [(OneType, 0), (TwoTypes, 1)])
def test_types_are_converted_where_an_operator_gets_two(module, passes, tmp_path, monkeypatch):
    """As by the exporter's own pass, which takes a fourth of the time where none is needed."""
    from torch.onnx._internal.exporter import _fx_passes

    usual, ran = _fx_passes.insert_type_promotion_nodes, []
    example = torch.tensor([[3, 4, 5], [6, 7, 9]])

    def count(program: Any) -> None:
        ran.append(program)
        usual(program)

    def export_to(name: str) -> Path:
        path = tmp_path / name / "model.onnx"
        path.parent.mkdir()
        shapes = {"ids": {0: graphs.BATCH}}
        graphs.export_graph(module(), (example,), ["ids"], ["answer"], shapes, path)
        return path

    monkeypatch.setattr(_fx_passes, "insert_type_promotion_nodes", count)
    path = export_to("ours")
    assert len(ran) == passes
    (actual,) = _session(path).run(None, {"ids": example.numpy()})
    np.testing.assert_allclose(actual, module()(example).numpy(), rtol=1e-6)
    monkeypatch.setattr(graphs, "_converts_types", lambda node: True)
    assert export_to("always").read_bytes() == path.read_bytes()
    assert len(ran) == passes + 1


@pytest.mark.parametrize(
    ("name", "id"), [("bert", "onnx-differs"), ("marian", "onnx-translation-differs")]
)
def test_a_graph_of_another_model_is_caught(name: str, id: str, tmp_path):
    """Verification compares with the model at hand, so a swapped graph must fail it."""
    checkpoint = open_small(name, tmp_path)
    _, _, inputs = export(checkpoint, tmp_path / "out")
    mask = nothing_left_mask(checkpoint.layers)
    other = prune(checkpoint.model, checkpoint.layers, mask)
    with raises(VerificationError, id):
        TASKS[checkpoint.task].graphs.check(other, tmp_path / "out", inputs)


def test_a_translation_may_take_the_other_of_two_tokens_with_nearly_one_logit(tmp_path):
    checkpoint = open_small("marian", tmp_path)
    model, best = checkpoint.model, [5, 9]
    with torch.no_grad():
        model.lm_head.weight[best[1]] = model.lm_head.weight[best[0]]  # the embeddings, too

    def prefer(token: int) -> None:
        model.final_logits_bias[0, best] = 5
        model.final_logits_bias[0, token] += 1e-5

    prefer(best[0])
    _, _, inputs = export(checkpoint, tmp_path / "out")
    prefer(best[1])
    _, check = TASKS[checkpoint.task].graphs.check(model, tmp_path / "out", inputs)
    assert "rows differ after a tie of two logits" in check.detail


def test_a_search_with_beams_is_compared_where_the_model_asks_for_one(tmp_path):
    """Settings that greedy search does not read are wrong in the artifact."""
    checkpoint = open_small("marian", tmp_path)
    model, graphs = checkpoint.model, TASKS["translation"].graphs
    vary(model, 3)
    model.generation_config.update(num_beams=3, length_penalty=2.0, max_length=12)
    _, checks, inputs = export(checkpoint, tmp_path / "out")
    assert f"tokens of {2 * len(inputs)} rows with 3 beams" in [check.detail for check in checks]
    path = tmp_path / "out/onnx/graphs.json"
    described = json.loads(path.read_text("utf-8"))
    described["generation"]["length_penalty"] = -3.0
    path.write_text(json.dumps(described), "utf-8")
    with raises(VerificationError, "onnx-search-differs"):
        graphs.check(model, tmp_path / "out", inputs)


def test_a_search_may_take_the_other_of_two_answers_with_nearly_one_score():
    """PyTorch itself does so when its logits are off by less than graphs may be."""
    model: Any = tiny_model("marian").eval()
    vary(model)
    model.generation_config.update(num_beams=3, max_length=2)
    batch = {"input_ids": torch.tensor([[5, 6, 7, 0]]), "attention_mask": torch.ones(1, 4).long()}
    ((start, best),) = model.generate(**batch).tolist()
    other = next(token for token in range(4, 60) if token != best)
    with torch.no_grad():  # the same but for one millionth
        model.lm_head.weight[other] = model.lm_head.weight[best]
        model.final_logits_bias[0, other] = model.final_logits_bias[0, best] - 1e-6

    def search() -> list[list[int]]:
        return model.generate(**batch).tolist()

    assert search() == [[start, best]]
    for found in (best, other):
        require_searched(model, search, [[start, found]])
    with raises(VerificationError, "onnx-search-differs"):
        require_searched(model, search, [[start, 3]])


def test_an_export_that_fails_leaves_nothing(tmp_path):
    """Graphs that failed their check are neither deployed nor in the way of the next export."""
    out = tmp_path / "out"
    wanted = request(ExportRequest, model=str(toy.classifier(tmp_path / "dense", "bert")))

    def write(*arguments: object, then: Exception | None) -> list[Check]:
        graphs = arguments[3] / "onnx"
        graphs.mkdir()
        (graphs / "model.onnx").write_bytes(b"a graph")
        if then:
            raise then
        return []

    refused = partial(write, then=VerificationError("they differ", id="onnx-differs"))
    with (
        mock.patch("compressor.export.exported.export_model", refused),
        raises(VerificationError, "onnx-differs"),
    ):
        export_checkpoint(wanted, out)
    assert not out.exists()
    with mock.patch("compressor.export.exported.export_model", partial(write, then=None)):
        export_checkpoint(wanted, out)
    written = sorted(path.name for path in out.rglob("*"))
    assert written == ["manifest.json", "model.onnx", "onnx"]
    with raises(InputError, "output-not-empty"):
        export_checkpoint(wanted, out)


def test_a_checkpoint_may_ask_for_more_tokens_than_it_has_positions_for(tmp_path):
    """Both stop at the 40th position, where PyTorch alone would fail."""
    directory = toy.first_layers(toy.translator(tmp_path / "whole"), tmp_path / "dense")
    checkpoint = open_checkpoint(str(directory))
    # It never ends by itself.
    checkpoint.model.generation_config.update(max_length=1000, eos_token_id=None)
    _, checks, inputs = export(checkpoint, tmp_path / "out")
    rows = sum(len(batch["input_ids"]) for batch in inputs)
    assert f"{40 * rows} greedy tokens of {rows} rows" in [check.detail for check in checks]
