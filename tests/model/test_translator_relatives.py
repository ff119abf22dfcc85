"""T5 and its relatives: relative positions, heads as wide as they like, no biases, gates; M2M100.

Most tests of all architectures compare with computations that these models do not follow. Here one
of each kind goes through scoring, surgery, saving, and the search in the exported graphs; and so
do Pegasus and M2M100, which differ little from what other tests know.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
import transformers

import compressor
from compressor.commands import invoke
from compressor.errors import InputError
from compressor.export.ctranslate2 import write_translator
from compressor.export.device_step import keep_state
from compressor.export.precisions import TOLERANCES, add_precision
from compressor.export.task_graphs import Network
from compressor.importance import ScoringJob
from compressor.importance.attention import visit_attention
from compressor.model.architectures import find_sublayers
from compressor.model.checkpoint import Checkpoint, open_checkpoint
from compressor.model.depth import skipped, without_skipped
from compressor.model.saving import save_checkpoint
from compressor.model.sublayers import Mask
from compressor.model.surgery import gated, mask_gates, prune, relative_difference, verify_surgery
from compressor.pipeline.inputs import random_check_batches
from compressor.runtime import Translator
from compressor.storage.files import write_json
from compressor.tasks import TASKS, Batch
from tests.export.test_export import export
from tests.helpers.errors import raises
from tests.helpers.tiny import (
    TRANSLATOR_RELATIVES,
    facts,
    ragged_batch,
    tiny_model,
    uneven_mask,
    word_tokenizer,
)


def opened(name: str, directory: Path, separate: bool = False) -> Checkpoint:
    """A tiny checkpoint.

    Args:
        separate: the output layer has other weights than the embeddings, as FLAN-T5's has.
    """
    model = tiny_model(name)
    if separate:
        model.lm_head.weight = torch.nn.Parameter(1.5 * model.shared.weight.flip(0))
        model.config.scale_decoder_outputs = False
    model.save_pretrained(directory)
    word_tokenizer().save_pretrained(directory)
    return open_checkpoint(str(directory))


def generated(model, beams: int) -> torch.Tensor:
    batch = ragged_batch(model)
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    return model.generate(**inputs, num_beams=beams, do_sample=False, max_length=12)


@pytest.mark.parametrize("name", TRANSLATOR_RELATIVES)
def test_layers_and_units_go_together(name: str, tmp_path):
    """The first layer's table of positions stays when that layer goes."""
    dense = opened(name, tmp_path / "dense", separate=name == "t5")
    batch = ragged_batch(dense.model)
    mask = uneven_mask(dense.layers).without_layers(["encoder.0", "decoder.0"])
    made = without_skipped(dense, prune(dense.model, dense.layers, mask), mask)
    verify_surgery(dense.model, made.model, dense.layers, mask, [batch])

    record = facts(dense.layers, mask) | {"dropped_layers": sorted(mask.dropped)}
    save_checkpoint(dense, made.model, record, tmp_path / "out")
    again = compressor.load(tmp_path / "out", verify=False)
    assert torch.equal(again(**batch).logits, made.model(**batch).logits)
    assert torch.equal(generated(again, 1), generated(made.model, 1))
    plain = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path / "out", trust_remote_code=True
    )
    assert torch.equal(plain(**batch).logits, made.model(**batch).logits)

    whole = Mask.full(dense.layers).without_layers(["encoder.0", "decoder.0"])
    fewer = without_skipped(dense, prune(dense.model, dense.layers, whole), whole)
    with skipped(dense.model, dense.layers, whole):
        expected = dense.model(**batch).logits
    assert torch.equal(fewer.model(**batch).logits, expected)
    assert relative_difference(dense.model(**batch).logits, expected) > 0.05


def test_t5_keeps_as_many_layers_in_the_encoder_as_in_the_decoder(tmp_path):
    dense = opened("t5", tmp_path)
    too_few = Mask.full(dense.layers).without_layers(["encoder.0", "encoder.1"])
    with raises(InputError, "decoder-deeper-than-encoder"):
        without_skipped(dense, prune(dense.model, dense.layers, too_few), too_few)


@pytest.mark.parametrize("name", ["t5", "umt5"])
def test_attention_weights_are_the_librarys(name: str):
    model = tiny_model(name)
    layers, batch = find_sublayers(model), ragged_batch(model)
    with gated(model, layers, mask_gates(Mask.full(layers))):
        model.set_attn_implementation("eager")
        wanted = model(**batch, output_attentions=True)
    model.set_attn_implementation("sdpa")
    attention = [x for x in layers if x.is_attention]
    found = {}
    job = ScoringJob(
        model=model,
        layers=attention,
        mask=Mask.full(attention),
        batches=[Batch(batch | {"labels": torch.ones(3, 6, dtype=torch.long)}, range(3))],
        tokenizer=word_tokenizer(),
        task=TASKS["translation"],
    )
    visit_attention(job, lambda layer, weights, *_: found.update({layer.name: weights}))
    outputs = {
        "encoder_self": wanted.encoder_attentions,
        "decoder_self": wanted.decoder_attentions,
        "cross": wanted.cross_attentions,
    }
    assert len(found) == len(attention)
    for layer in attention:
        expected = outputs[layer.kind][layer.index]
        torch.testing.assert_close(found[layer.name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["t5", *(pytest.param(x, marks=pytest.mark.attack) for x in ("umt5", "pegasus"))],
)
def test_exported_graphs_search_as_the_library_does(name: str, tmp_path):
    """FLAN-T5's and UMT5's form; the caches, and tables of positions for the heads left alone."""
    checkpoint = opened(name, tmp_path / "dense", separate=name == "t5")
    mask = uneven_mask(checkpoint.layers)
    model, checks, inputs = export(checkpoint, tmp_path / "out", mask)
    assert all(check.largest_difference <= check.tolerance for check in checks)
    translator, batch = Translator(tmp_path / "out", verify=False), ragged_batch(model)
    arrays = {key: batch[key].numpy() for key in ("input_ids", "attention_mask")}
    for beams in (1, 3):
        found = translator.generate(arrays, num_beams=beams, max_new_tokens=11)
        wanted = generated(model, beams).tolist()
        assert [row[1 : 1 + len(got)] for got, row in zip(found, wanted, strict=True)] == found
        assert max(map(len, found)) > 3
    decoder = onnx.load(tmp_path / "out" / "onnx" / "decoder.onnx", load_external_data=False)
    # T5 adds a bias to its scores, for which steps on a GPU have no node.
    assert (keep_state(decoder) is not None) is (name == "pegasus")
    for precision in ("fp16", "int8") if name == "t5" else ():
        for check in add_precision(model, inputs, tmp_path / "out", precision):
            assert check.largest_difference <= check.tolerance
            if precision == "int8":  # the tolerance of random tokens is larger
                assert check.largest_difference < TOLERANCES["int8"]


@pytest.mark.attack
def test_padding_in_the_middle_of_a_translation_is_no_difference(tmp_path):
    """This model with random weights says padding and goes on behind it."""
    checkpoint = opened("m2m_100", tmp_path / "dense")
    checkpoint.tokenizer.pad_token = checkpoint.tokenizer.convert_ids_to_tokens(1)
    model, checks, _ = export(checkpoint, tmp_path / "out")
    batches = random_check_batches(checkpoint, TASKS[checkpoint.task]).batches
    inputs = [{k: v for k, v in b.inputs().items() if "decoder" not in k} for b in batches]
    made = [row for x in inputs for row in model.generate(**x, max_length=24).tolist()]
    assert any(1 in row and {*row[row.index(1) :]} - {1, 2} for row in made)
    assert all(check.largest_difference <= check.tolerance for check in checks)


def test_an_activation_that_ctranslate2_lacks_is_refused_by_name(tmp_path):
    checkpoint = opened("t5", tmp_path)
    checkpoint.model.config.dense_act_fn = "tanh"
    network = Network(checkpoint, checkpoint.model, checkpoint.mask)
    with raises(InputError, "architecture-not-for-ctranslate2"):
        write_translator(network, tmp_path / "out", "fp32")


def test_experts_are_refused_by_name(tmp_path, capsys):
    write_json(tmp_path / "config.json", {"model_type": "nllb-moe"})
    assert invoke(["inspect", str(tmp_path)]) == 4
    assert "experts" in capsys.readouterr().err
