"""T5 and its relatives, Pegasus and M2M100: attention weights, and the search in exported graphs.

Relative positions, heads as wide as they like, no biases, gates: most tests of all architectures
compare with computations that T5 does not follow. test_surgery.py and test_depth.py prune them.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch

from compressor.errors import InputError
from compressor.export.ctranslate2 import write_translator
from compressor.export.device_step import keep_state
from compressor.export.precisions import TOLERANCES, add_precision
from compressor.export.task_graphs import Network
from compressor.importance.attention import visit_attention
from compressor.model.checkpoint import Checkpoint, open_checkpoint
from compressor.pipeline.inputs import random_check_batches
from compressor.runtime import Translator
from compressor.tasks import TASKS
from tests.export.test_export import export
from tests.helpers.errors import raises
from tests.helpers.stages import scoring
from tests.helpers.tiny import ragged_batch, tiny_model, uneven_mask, word_tokenizer


def opened(name: str, directory: Path) -> Checkpoint:
    """A tiny checkpoint; T5's output layer has other weights than the embeddings, as FLAN-T5's."""
    model = tiny_model(name)
    if name == "t5":
        model.lm_head.weight = torch.nn.Parameter(1.5 * model.shared.weight.flip(0))
        model.config.scale_decoder_outputs = False
    model.save_pretrained(directory)
    word_tokenizer().save_pretrained(directory)
    return open_checkpoint(str(directory))


@pytest.mark.parametrize("name", ["t5", "umt5"])
@torch.no_grad()
def test_attention_weights_are_the_librarys(name: str):
    setup, found = scoring(name, units="heads"), {}
    visit_attention(setup, lambda layer, weights, *_: found.update({layer.name: weights}))
    model, inputs = tiny_model(name), ragged_batch(setup.model)
    model.set_attn_implementation("eager")
    outputs = model(**inputs, output_attentions=True)
    expected = {
        "encoder_self": outputs.encoder_attentions,
        "decoder_self": outputs.decoder_attentions,
        "cross": outputs.cross_attentions,
    }
    assert len(found) == len(setup.layers)
    for layer in setup.layers:
        weights = expected[layer.kind][layer.index]
        torch.testing.assert_close(found[layer.name], weights, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["t5", *(pytest.param(x, marks=pytest.mark.attack) for x in ("umt5", "pegasus"))],
)
def test_exported_graphs_search_as_the_library_does(name: str, tmp_path):
    """FLAN-T5's and UMT5's form; the caches, and tables of positions for the heads left alone."""
    checkpoint = opened(name, tmp_path / "dense")
    model, checks, inputs = export(checkpoint, tmp_path / "out", uneven_mask(checkpoint.layers))
    assert all(check.largest_difference <= check.tolerance for check in checks)
    translator, batch = Translator(tmp_path / "out", verify=False), ragged_batch(model)
    source = {key: batch[key] for key in ("input_ids", "attention_mask")}
    arrays = {key: value.numpy() for key, value in source.items()}
    for beams in (1, 3):
        found = translator.generate(arrays, num_beams=beams, max_new_tokens=11)
        wanted = model.generate(**source, num_beams=beams, do_sample=False, max_length=12).tolist()
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
