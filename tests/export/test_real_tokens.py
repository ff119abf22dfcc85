"""What is compared of a padded batch: the values of real tokens, which alone are read.

At padding, DeBERTa's and ModernBERT's graphs have other values than PyTorch: DeBERTa masks padded
queries there, and ModernBERT's have windows without a real key.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from compressor.errors import VerificationError
from compressor.export.for_cuda import form_check
from compressor.export.task_graphs import Network
from compressor.export.verify import (
    Expected,
    Spooled,
    at_real_tokens,
    logit_check,
    relative_difference,
)
from compressor.model.checkpoint import open_checkpoint
from compressor.model.layers import find_sublayers
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune, verify_surgery
from compressor.runtime.session import open_session
from compressor.steps.results import Check
from compressor.tasks import TASKS
from tests.helpers.errors import raises
from tests.helpers.heads import SMALL, save_head, tiny_head
from tests.helpers.runtime_artifacts import export
from tests.helpers.tiny import ragged_batch, word_tokenizer

ID = "onnx-differs"
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])


def logits(outputs: int = 3) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(2, 4, outputs)).astype(np.float32)


def changed(values: np.ndarray, place: tuple[int, ...], value: float) -> np.ndarray:
    made = values.copy()
    made[place] = value
    return made


def compare(actual: np.ndarray, expected: np.ndarray) -> Check:
    read = (at_real_tokens(values, MASK) for values in (actual, expected))
    return logit_check([relative_difference(*read)])


@pytest.mark.parametrize("value", [np.nan, np.inf, 9.0])
def test_values_at_padding_do_not_count_and_those_of_real_tokens_do(value: float):
    wanted = logits()
    for one, other in (
        (changed(wanted, (1, 2), value), wanted),
        (wanted, changed(wanted, (1, 3), value)),
    ):
        assert compare(one, other).largest_difference == 0
    for place in ((0, 3, 1), (1, 1, 0)):  # the last real tokens
        with raises(VerificationError, ID):
            compare(changed(wanted, place, value), wanted)
    slightly = changed(wanted, (1, 0, 0), wanted[1, 0, 0] + 2e-4 * np.abs(wanted).max())
    with raises(VerificationError, ID):
        compare(slightly, wanted)


@pytest.mark.parametrize(
    ("name", "read_alone"),
    [("token-classification", True), ("question-answering", True), ("classification", False)],
)
def test_every_precision_and_engine_is_compared_so(name: str, read_alone: bool):
    """A stand-in for a runtime; logits of texts, [rows, outputs], are compared as a whole."""
    outputs = {"question-answering": 2}.get(name, 3)
    wanted = logits(outputs) if read_alone else logits(outputs)[:, 0]
    padding = (1, 3) if read_alone else (1, 2)
    inputs = {"attention_mask": MASK}

    def difference(actual: np.ndarray) -> float:
        runtime = SimpleNamespace(run=lambda batch: actual)
        expected = Expected(inputs, Spooled(wanted))
        compared = TASKS[name].graphs.compare([expected], runtime)
        return float(compared.differences[0])

    assert (difference(changed(wanted, padding, np.nan)) == 0) == read_alone
    for value in (np.nan, 9.0):
        assert not difference(changed(wanted, (0, 1), value)) < 0.1


def test_pruned_and_masked_are_compared_at_real_tokens():
    model = tiny_head("bert", "token-classification")
    layers, batch = find_sublayers(model), ragged_batch(model)
    mask = Mask.full(layers).without([("encoder_self.1", 1)])
    padding, real = (batch["attention_mask"] == x for x in (0, 1))

    def verify(at: Any, on_tokens: bool) -> Check:
        """With a pruned model whose logits are NaN there."""
        pruned = prune(model, layers, mask)
        pruned.classifier.register_forward_hook(
            lambda module, inputs, output: output.masked_fill(at[..., None], float("nan"))
        )
        return verify_surgery(model, pruned, layers, mask, [batch], on_tokens)

    assert verify(padding, True).is_met
    one = torch.zeros_like(real)
    one[1, 1] = True  # the last real token of a short row
    assert real[1, 1]
    assert not real[1, 2]
    for at, on_tokens in ((one, True), (padding, False)):
        with raises(VerificationError, "pruned-differs-from-masked"):
            verify(at, on_tokens)


def ragged(model: Any) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    """A batch whose rows differ by more than ModernBERT's window of 4 tokens; each row alone."""
    batch = ragged_batch(model, 5)
    lengths = batch["attention_mask"].sum(1).tolist()
    return batch, [
        {key: value[row : row + 1, :length] for key, value in batch.items()}
        for row, length in enumerate(lengths)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deberta-v2", "modernbert"])
@torch.no_grad()
def test_graphs_equal_pytorch_on_each_row_alone(name: str, tmp_path):
    task = TASKS["token-classification"]
    opened = open_checkpoint(str(save_head(tmp_path / "m", name, task.name, **SMALL[name])))
    made = export(tmp_path / "m", Mask.full, tmp_path / "out")
    batch, alone = ragged(opened.model)
    (expected,) = task.graphs.expect(opened.model, made.directory, [batch])
    runtime = task.open(made.directory)
    for row, found in zip(alone, runtime.run(expected.inputs), strict=True):
        wanted = opened.model(**row).logits[0].numpy()
        np.testing.assert_allclose(found[: len(wanted)], wanted, atol=2e-5, rtol=1e-4)
    checks = [*task.graphs.verify([expected], runtime), form_check([expected], made.directory)]
    assert max(check.largest_difference for check in checks) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "task", "outputs"),
    [
        ("modernbert", "question-answering", ("start_logits", "end_logits")),
        ("deberta-v2", "embedding", ("last_hidden_state",)),
    ],
)
@torch.no_grad()
def test_graphs_for_optimum_equal_pytorch_on_each_row_alone(name, task, outputs, tmp_path):
    if task == "embedding":
        model: Any = tiny_head(name, "token-classification", **SMALL[name]).base_model
        model.save_pretrained(tmp_path / "m")
        word_tokenizer().save_pretrained(tmp_path / "m")
    else:
        save_head(tmp_path / "m", name, task, **SMALL[name])
    opened = open_checkpoint(str(tmp_path / "m"), task=task)
    batch, alone = ragged(opened.model)
    network = Network(opened, opened.model, opened.mask)
    (check,) = TASKS[task].graphs.export_layout(network, tmp_path / "out", "fp32", [batch])
    assert check.largest_difference < 2e-5
    session = open_session(tmp_path / "out" / "model.onnx")
    found = session.run(outputs, {key: value.numpy() for key, value in batch.items()})
    for number, row in enumerate(alone):
        for name, values in zip(outputs, found, strict=True):
            wanted = opened.model(**row)[name][0].numpy()
            np.testing.assert_allclose(values[number, : len(wanted)], wanted, atol=2e-5, rtol=1e-4)
