"""Architectures that the tests of all do not run on: each from a checkpoint to answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers

import compressor
from compressor.export.device_step import keep_state
from compressor.export.precisions import TOLERANCES, add_precision, require_within
from compressor.export.task_graphs import Network, export_model, require_same_weights
from compressor.importance import METHODS
from compressor.importance.attention import visit_attention
from compressor.model.architectures import ARCHITECTURES
from compressor.model.checkpoint import Checkpoint, open_checkpoint, save_checkpoint
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune, verify_surgery
from compressor.runtime import Classifier, Embedder, Translator
from compressor.runtime.opening import read_artifact
from compressor.tasks import TASKS
from compressor.tasks.opened import random_check_batches
from tests.export.test_export import export
from tests.helpers.stages import (
    MAKERS,
    difference,
    job,
    learned_by,
    learning,
    repair,
    score,
    scoring,
)
from tests.helpers.tiny import (
    ENCODER_RELATIVES,
    facts,
    piece_tokenizer,
    ragged_batch,
    tiny_model,
    uneven_mask,
)
from tests.model.test_depth import opened as opened_translator
from tests.model.test_depth import small

# Whose entry in the table is their own.
OWN = [name for name in ENCODER_RELATIVES if ARCHITECTURES[name] is not ARCHITECTURES["roberta"]]
# As classifiers, in these precisions too; CamemBERT's entry is XLM-RoBERTa's.
EXPORTED = {"xlm-roberta": (), "modernbert": ("int8",), "deberta-v2": ("int8", "fp16")}
NAMES = ("input_ids", "attention_mask", "decoder_input_ids")
TEXTS = ["w5 w7 w9", "w40", "  w8   w8 w31 w4 w4 w4 w17 w20 ", "w99 w3"]


def opened(name: str, directory: Path, encoder: bool = False) -> Checkpoint:
    """A tiny classifier of the architecture, or its encoder alone."""
    model = tiny_model(name)
    if encoder and name == "deberta-v2":  # the other kind: projections of positions of its own
        model.config.share_att_key, model.config.conv_kernel_size = False, 0
        model = transformers.DebertaV2Model(model.config)
        for weight in model.parameters():
            weight.data.normal_(0, 0.3)
    (model.base_model if encoder else model).save_pretrained(directory)
    piece_tokenizer().save_pretrained(directory)
    whole = open_checkpoint(str(directory), task="embedding" if encoder else None)
    # Graphs of two layers are exported in less time; ModernBERT's layers come in two kinds.
    return whole if name == "modernbert" else shallow(whole, "encoder.1")


def shallow(whole: Checkpoint, *dropped: str) -> Checkpoint:
    return small(whole, Mask.full(whole.layers).without_layers(dropped))


def exported(
    checkpoint: Checkpoint, model: torch.nn.Module, mask: Mask, out: Path, *precisions: str
) -> None:
    """Write graphs, which are checked on ragged batches of random tokens."""
    batches = random_check_batches(checkpoint, TASKS[checkpoint.task])
    network = Network(checkpoint, model, mask)
    export_model(network, batches, TEXTS, out)
    # Every number in the graph is known from the model, as `compress verify` wants it.
    require_same_weights(TASKS[checkpoint.task].graphs, network, read_artifact(out), out)
    inputs = [batch.inputs() for batch in batches]
    for precision in precisions:
        require_within(add_precision(model, inputs, out, precision), precision)


def answers(model: torch.nn.Module) -> np.ndarray:
    """Logits of the texts one by one, tokenized by transformers and without padding."""
    tokenizer = piece_tokenizer()
    rows = [tokenizer(text, return_tensors="pt")["input_ids"] for text in TEXTS]
    with torch.no_grad():
        found = [model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits for ids in rows]
    return torch.cat(found).numpy()


@pytest.mark.parametrize("name", EXPORTED)
def test_a_classifier_is_exported(name: str, tmp_path):
    dense = opened(name, tmp_path / "dense")
    mask = uneven_mask(dense.layers)
    pruned = prune(dense.model, dense.layers, mask)
    exported(dense, pruned, mask, tmp_path / "out", *EXPORTED[name])
    runtime = Classifier(tmp_path / "out", precision="fp32")
    np.testing.assert_allclose(runtime.logits(TEXTS), answers(pruned), atol=1e-4)


@pytest.mark.parametrize("name", OWN)
def test_an_encoder_alone_makes_embeddings(name: str, tmp_path):
    dense = opened(name, tmp_path / "dense", encoder=True)
    mask = uneven_mask(dense.layers)
    pruned = prune(dense.model, dense.layers, mask)
    verify_surgery(dense.model, pruned, dense.layers, mask, [ragged_batch(pruned)])
    save_checkpoint(dense, pruned, facts(dense.layers, mask), tmp_path / "out")
    expected = answers(compressor.load(tmp_path / "out"))
    np.testing.assert_allclose(answers(pruned), expected, atol=1e-6)
    if name != "modernbert":  # whose graphs are those of the classifier
        exported(dense, pruned, mask, tmp_path / "out", *(["int8"] if name == "mpnet" else []))
        np.testing.assert_allclose(Embedder(tmp_path / "out").embed(TEXTS), expected, atol=1e-4)


@pytest.mark.parametrize("name", [*OWN, "mt5"])
def test_units_are_scored_and_learned(name: str):
    for method in METHODS:
        setup = scoring(name, units="heads" if method == "confidence" else None)
        options = {"ablate": "loss"} if method == "ablation" else {}
        scores = score(method, setup, **options)
        assert all(len({*values}) > 1 for values in scores.values.values()), method
    for method in MAKERS:
        learned = learned_by(method, learning(name, keep={"heads": 5}), epochs=1)
        assert learned.mask.count("heads") == 5


@pytest.mark.parametrize("name", [*OWN, "t5", "umt5"])
@torch.no_grad()
def test_attention_weights_are_the_model_s_own(name: str):
    """Against what transformers returns when it is asked for them."""
    setup, found = scoring(name, units="heads"), {}
    visit_attention(setup, lambda layer, weights, *_: found.update({layer.name: weights}))
    batch, model = setup.batches[0], tiny_model(name)
    model.set_attn_implementation("eager")
    inputs = {key: value for key, value in batch.items() if key in NAMES}
    outputs = model(**inputs, output_attentions=True)
    if "attentions" in outputs:
        expected = {"encoder_self": outputs.attentions}
    else:
        expected = {
            "encoder_self": outputs.encoder_attentions,
            "decoder_self": outputs.decoder_attentions,
            "cross": outputs.cross_attentions,
        }
    source = batch["attention_mask"].bool()
    assert len(found) == len(setup.layers)
    for layer in setup.layers:
        real = source if layer.kind == "encoder_self" else batch["decoder_input_ids"] > 0
        one, other = (
            weights.transpose(1, 2)[real]
            for weights in (found[layer.name], expected[layer.kind][layer.index])
        )
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*OWN, "mt5"])
def test_repairs_come_closer_to_the_dense_model(name: str):
    setup = job(name, rows=200)
    before = difference(setup, setup.pruned)
    assert difference(setup, repair(setup, reconstruct={}).model) < 0.8 * before
    few = job(name, rows=24)
    assert difference(few, repair(few, distill={"epochs": 2}).model) != difference(few, few.pruned)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", pytest.param("pegasus", marks=pytest.mark.attack)])
def test_exported_graphs_search_as_the_library_does(name: str, tmp_path):
    """The caches, and T5's table of positions for the heads left alone."""
    whole = opened_translator(name, tmp_path / "dense")
    few = ("decoder.1",) if name == "pegasus" else ("encoder.1", "encoder.2", "decoder.1")
    checkpoint = shallow(whole, *few)
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
