"""Architectures that the tests of all do not run on: each from a checkpoint to answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import compressor
from compressor.errors import InputError
from compressor.export import export_model
from compressor.export.precisions import add_precision, require_within
from compressor.export.same_weights import require_same_weights
from compressor.export.task_graphs import Network
from compressor.importance import METHODS
from compressor.importance.attention import visit_attention
from compressor.importance.depth import layers_to_drop
from compressor.model.architectures import ARCHITECTURES
from compressor.model.checkpoint import Checkpoint, open_checkpoint, save_checkpoint
from compressor.model.configuration import read_configuration
from compressor.model.sublayers import Mask
from compressor.model.surgery import (
    gated,
    mask_gates,
    prune,
    relative_difference,
    restore_shape,
    verify_surgery,
    without_skipped,
)
from compressor.pipeline.inputs import random_check_batches
from compressor.runtime import Classifier, Embedder
from compressor.runtime.artifact import read_artifact
from compressor.tasks import TASKS
from tests.helpers.batches import labelled_batch
from tests.helpers.damaged_checkpoints import configure
from tests.helpers.errors import raises
from tests.helpers.learning import MAKERS, learned_by, learning
from tests.helpers.reconstruction import difference
from tests.helpers.stages import job, repair, score, scoring
from tests.helpers.tiny import (
    ENCODER_RELATIVES,
    facts,
    piece_tokenizer,
    ragged_batch,
    tiny_model,
    uneven_mask,
)

# Whose entry in the table is their own.
OWN = [name for name in ENCODER_RELATIVES if ARCHITECTURES[name] is not ARCHITECTURES["roberta"]]
# As classifiers, in these precisions too; CamemBERT's entry is XLM-RoBERTa's.
EXPORTED = {"xlm-roberta": (), "modernbert": ("int8",), "deberta-v2": ("int8", "fp16")}
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
    return open_checkpoint(str(directory), task="embedding" if encoder else None)


def exported(
    checkpoint: Checkpoint, model: torch.nn.Module, mask: Mask, out: Path, *precisions: str
) -> None:
    """Write graphs, which are checked on ragged batches of random tokens."""
    batches = random_check_batches(checkpoint, TASKS[checkpoint.task]).batches
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


@pytest.mark.parametrize("name", ENCODER_RELATIVES)
def test_a_classifier_is_cut_saved_and_exported(name: str, tmp_path):
    """Against columns of the output projections that are zeroed by hand."""
    dense = opened(name, tmp_path / "dense")
    mask, batch = uneven_mask(dense.layers), ragged_batch(dense.model)
    pruned = prune(dense.model, dense.layers, mask)
    save_checkpoint(dense, pruned, facts(dense.layers, mask), tmp_path / "pruned")
    restored = restore_shape(dense.model, pruned, dense.layers, mask)
    with torch.no_grad(), gated(restored, dense.layers, mask_gates(mask)):
        torch.testing.assert_close(restored(**batch).logits, pruned(**batch).logits)

    again = open_checkpoint(str(tmp_path / "pruned"))
    remote = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "pruned", trust_remote_code=True
    )
    with torch.no_grad():
        before = dense.model(**batch).logits
        for layer in dense.layers:
            removed = [unit for unit, keep in enumerate(mask.keep[layer.name]) if not keep]
            weight = dense.model.get_submodule(layer.output).weight
            weight.view(-1, layer.units, layer.unit_width)[:, removed] = 0
        expected = dense.model(**batch).logits
        for model in (pruned, again.model, remote):
            torch.testing.assert_close(model(**batch).logits, expected, rtol=1e-4, atol=1e-4)
    assert relative_difference(before, expected) > 0.05
    if name in EXPORTED:
        exported(again, again.model, again.mask, tmp_path / "out", *EXPORTED[name])
        runtime = Classifier(tmp_path / "out", precision="fp32")
        np.testing.assert_allclose(runtime.logits(TEXTS), answers(dense.model), atol=1e-4)


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


@pytest.mark.parametrize("name", OWN)
@torch.no_grad()
def test_attention_weights_are_the_model_s_own(name: str):
    """Against what transformers returns when it is asked for them."""
    setup = scoring(name, units="heads")
    batch, found = setup.batches[0], {}
    visit_attention(setup, lambda layer, values, seen, _: found.update({layer.index: values}))
    model = tiny_model(name)
    model.set_attn_implementation("eager")
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    expected = model(**inputs, output_attentions=True).attentions
    real = batch["attention_mask"].bool()
    for index, weights in enumerate(expected):
        one, other = (x.transpose(1, 2)[real] for x in (found[index], weights))
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*OWN, "mt5"])
def test_repairs_come_closer_to_the_dense_model(name: str):
    setup = job(name, rows=200)
    before = difference(setup, setup.pruned)
    assert difference(setup, repair(setup, reconstruct={}).model) < 0.8 * before
    few = job(name, rows=24)
    assert difference(few, repair(few, distill={"epochs": 2}).model) != difference(few, few.pruned)


@pytest.mark.parametrize("name", OWN)
@torch.no_grad()
def test_layers_are_dropped(name: str, tmp_path):
    dense, task = opened(name, tmp_path / "dense"), TASKS["classification"]
    batch, inputs = labelled_batch(dense.model), ragged_batch(dense.model)
    dropped = layers_to_drop(dense.model, dense.layers, [batch], task, {"encoder": 2})
    if ARCHITECTURES[name].first_layer_stays(dense.model.config):
        assert "encoder.0" not in dropped
    mask = uneven_mask(dense.layers).without_layers(dropped)
    made = without_skipped(dense, prune(dense.model, dense.layers, mask), mask)
    verify_surgery(dense.model, made.model, dense.layers, mask, [inputs])
    record = facts(dense.layers, mask) | {"dropped_layers": sorted(mask.dropped)}
    save_checkpoint(dense, made.model, record, tmp_path / "out")
    again = open_checkpoint(str(tmp_path / "out"))
    assert torch.equal(again.model(**inputs).logits, made.model(**inputs).logits)
    assert len(again.layers) == 2


SCALED = {"full_attention": {"rope_type": "linear", "factor": 2.0}}


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("mpnet", {"pad_token_id": 0}, "counts positions from token 1"),
        ("deberta-v2", {"type_vocab_size": 2}, "without token types"),
        ("modernbert", {"rope_parameters": SCALED}, "are scaled"),
    ],
)
def test_variants_that_would_be_wrong_are_refused(name: str, change, reason: str, tmp_path):
    tiny_model(name).config.save_pretrained(tmp_path)
    configure(**change)(tmp_path)
    with raises(InputError, "architecture-variant-unsupported") as caught:
        read_configuration(tmp_path, trust_remote_code=False)
    assert reason in str(caught.value)
