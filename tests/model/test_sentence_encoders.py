"""Sentence encoders: loaded, cut, saved and opened elsewhere; against NumPy and transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from compressor.errors import InputError, UsageError
from compressor.model.architectures import find_sublayers
from compressor.model.checkpoint import open_checkpoint, save_checkpoint
from compressor.model.surgery import prune, verify_surgery
from compressor.tasks import TASKS, require_task
from tests.helpers.errors import raises
from tests.helpers.sentence_encoders import ENCODERS, dense_layer, save_encoder
from tests.helpers.tiny import (
    facts,
    nothing_left_mask,
    ragged_batch,
    tiny_model,
    uneven_mask,
    word_tokenizer,
)

task = TASKS["embedding"]


def by_numpy(hidden, mask, pooling: str, dense: bool, normalize: bool) -> np.ndarray:
    """Embeddings of rows one by one, from the encoder's last hidden states."""
    rows = []
    for states, real in zip(hidden.numpy(), mask.numpy().astype(bool), strict=True):
        tokens = states[real]  # [real tokens, width]
        row = {"mean": tokens.mean(0), "cls": tokens[0], "max": tokens.max(0)}[pooling]
        if dense:
            layer = dense_layer()
            row = np.tanh(layer.weight.detach().numpy() @ row + layer.bias.detach().numpy())
        rows.append(row / np.linalg.norm(row) if normalize else row)
    return np.array(rows)


@pytest.mark.parametrize(
    ("name", "mask_of"), [*((name, uneven_mask) for name in ENCODERS), ("bert", nothing_left_mask)]
)
@torch.no_grad()
def test_pruned_encoders_come_back_and_open_in_transformers(name, mask_of, tmp_path):
    dense = open_checkpoint(str(save_encoder(tmp_path / "dense", name, "mean", dense=True)))
    assert dense.layers == find_sublayers(dense.model)
    mask = mask_of(dense.layers)
    pruned = prune(dense.model, dense.layers, mask)
    batch = ragged_batch(pruned, rows=5)
    check = verify_surgery(dense.model, pruned, dense.layers, mask, [batch])
    assert check.largest_difference < 1e-5
    save_checkpoint(dense, pruned, facts(dense.layers, mask), tmp_path / "pruned")

    again = open_checkpoint(str(tmp_path / "pruned"))
    assert (again.task, again.mask) == ("embedding", mask)
    assert torch.equal(again.model(**batch).logits, pruned(**batch).logits)
    # What sentence-transformers does: the encoder by transformers, then the modules.
    encoder = transformers.AutoModel.from_pretrained(tmp_path / "pruned", trust_remote_code=True)
    hidden = encoder(**batch).last_hidden_state
    stored = load_file(tmp_path / "pruned" / "2_Dense" / "model.safetensors")
    expected = by_numpy(hidden, batch["attention_mask"], "mean", True, True)
    np.testing.assert_allclose(again.model(**batch).logits.numpy(), expected, atol=1e-5)
    assert torch.equal(stored["linear.weight"], dense_layer().weight)
    assert not any("sentence_head" in x for x in load_file(tmp_path / "pruned/model.safetensors"))


def test_a_pooler_that_nothing_reads_may_be_missing(tmp_path):
    directory = save_encoder(tmp_path / "m")
    weights = load_file(directory / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.startswith("pooler.")}
    assert len(kept) == len(weights) - 2
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    opened = open_checkpoint(str(directory))
    assert not opened.model.pooler.dense.weight.any()
    batch = ragged_batch(opened.model)
    expected = open_checkpoint(str(save_encoder(tmp_path / "whole"))).model(**batch).logits
    assert torch.equal(opened.model(**batch).logits, expected)
    del kept["encoder.layer.0.output.dense.weight"]
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    with raises(InputError, "weights-do-not-fit"):
        open_checkpoint(str(directory))


def test_half_an_encoder_decoder_is_refused(tmp_path):
    directory = save_encoder(tmp_path / "m")
    tiny_model("t5").save_pretrained(directory)
    for task in (None, "embedding"):
        with raises(InputError, "architecture-variant-unsupported") as caught:
            open_checkpoint(str(directory), task=task)
        assert "encoder of a t5" in str(caught.value)


def test_other_models_are_no_encoders_alone(tmp_path):
    tiny_model("marian").save_pretrained(tmp_path / "marian")
    tiny_model("bert").save_pretrained(tmp_path / "bert")
    for name in ("marian", "bert"):
        word_tokenizer().save_pretrained(tmp_path / name)
    with raises(UsageError, "task-of-another-model"):
        require_task(open_checkpoint(str(tmp_path / "marian"), task="embedding"))
    with raises(UsageError, "task-of-another-model"):  # its head would be dropped
        require_task(open_checkpoint(str(tmp_path / "bert"), task="embedding"))
    with raises(InputError, "weights-do-not-fit"):
        open_checkpoint(str(save_encoder(tmp_path / "m")), task="classification")
