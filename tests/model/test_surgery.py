"""Removing units gives the function that masking them gives, for every architecture."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
import transformers

from compressor.errors import VerificationError
from compressor.model.architectures import ARCHITECTURES
from compressor.model.checkpoint import open_checkpoint, save_checkpoint
from compressor.model.layers import find_sublayers
from compressor.model.modes import computing_all_tokens, hooks
from compressor.model.sublayers import Mask
from compressor.model.surgery import (
    gated,
    mask_gates,
    names_without_skipped,
    prune,
    remaining_sublayers,
    restore_shape,
    skipped,
    verify_surgery,
    without_skipped,
)
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.heads import ENCODERS, HEADS, save_head
from tests.helpers.runtime_artifacts import vary
from tests.helpers.tiny import (
    BUILDERS,
    RELATIVES,
    empty_first_mask,
    facts,
    nothing_left_mask,
    ragged_batch,
    tiny_model,
    uneven_mask,
)

MASKS = {"uneven": uneven_mask, "first": empty_first_mask, "nothing": nothing_left_mask}
CASES = [(name, "uneven") for name in ARCHITECTURES]
CASES += [
    (name, mask) for name in ("marian", "mbart", "bert", "t5") for mask in ("first", "nothing")
]
CASES += [(name, task) for name in ENCODERS for task in HEADS]


def test_every_architecture_of_the_table_has_a_tiny_model():
    assert not set(BUILDERS) & set(RELATIVES)
    assert set(BUILDERS) | set(RELATIVES) == set(ARCHITECTURES)


def answers(model: Any, batch: Any) -> torch.Tensor:
    found = model(**batch)
    if "start_logits" in found:
        return torch.stack([found.start_logits, found.end_logits], -1)
    return found.logits


@pytest.mark.parametrize(("name", "kind"), CASES)
@torch.no_grad()
def test_pruned_equals_masked_and_reloaded_equals_saved(name: str, kind: str, tmp_path):
    """Independent of the gates: zero the removed units' columns of the output projection.

    Of translators the key/value cache keeps its numbering and its length without emptied layers.
    """
    if kind in HEADS:
        dense = open_checkpoint(str(save_head(tmp_path / "dense", name, kind)))
        assert dense.task == kind
    else:
        dense = open_checkpoint(str(toy.checkpoint(tmp_path / "dense", name)))
    library = getattr(transformers, HEADS.get(kind, dense.entry.auto_class))
    model, layers = dense.model, dense.layers
    assert layers == find_sublayers(tiny_model(name))
    mask, batch = MASKS.get(kind, uneven_mask)(layers), ragged_batch(model)
    before = answers(model, batch)
    theirs = answers(library.from_pretrained(tmp_path / "dense"), batch)
    with computing_all_tokens(model):
        assert torch.equal(answers(model, batch), theirs)
    torch.testing.assert_close(before, theirs, rtol=1e-5, atol=1e-5)  # of what is read alone
    pruned = prune(model, layers, mask)
    save_checkpoint(dense, pruned, facts(layers, mask), tmp_path / "pruned")
    restored = restore_shape(model, pruned, layers, mask)
    actual = answers(pruned, batch)
    for layer in layers:
        weight = model.get_submodule(layer.output).weight
        columns = weight.view(len(weight), layer.units, layer.unit_width)
        columns[:, [not keep for keep in mask.keep[layer.name]]] = 0
    expected = answers(model, batch)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    # The units mattered, so the comparison above could have failed.
    assert (before - expected).abs().max() > 0.05
    with gated(restored, layers, mask_gates(mask)):
        torch.testing.assert_close(answers(restored, batch), actual, rtol=1e-4, atol=1e-4)
    source = {key: batch[key] for key in ("input_ids", "attention_mask")}
    for beams in (1, 3) if model.config.is_encoder_decoder else ():
        options = {"num_beams": beams, "do_sample": False, "max_length": 12}
        rows = model.generate(**source, **options)
        assert torch.equal(pruned.generate(**source, **options), rows)

    again = open_checkpoint(str(tmp_path / "pruned"))
    plain = library.from_pretrained(tmp_path / "pruned", trust_remote_code=True)
    assert type(plain).__name__ == f"Pruned{type(model).__name__}"
    for loaded in (again.model, plain):
        assert torch.equal(answers(loaded, batch), actual)
    assert (again.task, again.mask, again.layers) == (dense.task, mask, layers)
    assert again.pruning.contents["method"] == "test"


def test_verification_tells_the_largest_difference():
    """Of a removal that is right, and of one whose logits are off by a known share."""
    model = tiny_model("bert")
    layers = find_sublayers(model)
    mask = Mask.full(layers).without([("encoder_self.1", 1)])
    batches = [ragged_batch(model, seed=seed) for seed in (0, 1)]
    pruned = prune(model, layers, mask)
    check = verify_surgery(model, pruned, layers, mask, batches)
    assert 0 <= check.largest_difference <= check.tolerance == 1e-4
    assert check.detail == "logits of 2 ragged batches, relative to the largest logit"
    with torch.no_grad():
        largest = float(pruned(**batches[0]).logits.abs().max())
        other = copy.deepcopy(pruned)  # what loses nothing is shared with the dense model
        other.classifier.bias[0] += 5e-5 * largest
    off = verify_surgery(model, other, layers, mask, batches[:1])
    assert off.largest_difference == pytest.approx(5e-5, rel=0.1)


def test_names_of_a_model_without_skipped_layers_are_those_of_its_weights():
    model = tiny_model("bert")
    layers = find_sublayers(model)
    mask = Mask.full(layers).without_layers(["encoder.1"])
    pruned = prune(model, layers, mask)
    assert {x.layer for x in remaining_sublayers(pruned, layers)} == {"encoder.0", "encoder.2"}
    names = names_without_skipped(pruned)
    assert names.keys() == pruned.state_dict().keys()
    weight = "attention.self.query.weight"
    assert names[f"bert.encoder.layer.2.{weight}"] == f"bert.encoder.layer.1.{weight}"
    assert names[f"bert.encoder.layer.0.{weight}"] == f"bert.encoder.layer.0.{weight}"
    assert names["classifier.weight"] == "classifier.weight"
    assert not any(name.startswith("bert.encoder.layer.1.") for name in names)


def test_layers_are_back_after_they_were_skipped():
    """Also where the run in between fails; expected is the model whose layers are removed."""
    model = tiny_model("bert")
    layers, batch = find_sublayers(model), ragged_batch(model)
    mask = Mask.full(layers).without_layers(["encoder.0", "encoder.2"])
    before = model(**batch).logits
    expected = prune(model, layers, mask)(**batch).logits
    with contextlib.suppress(KeyError), skipped(model, layers, mask):
        within = model(**batch).logits
        raise KeyError
    assert torch.equal(within, expected)
    assert torch.equal(model(**batch).logits, before)
    assert not torch.allclose(before, expected)


# Layers that return tuples, that hand on a bias of positions, and that differ by number.
OF_EACH_FORM = ("mpnet", "t5", "modernbert")


@torch.no_grad()
def test_a_skipped_layer_hands_on_what_it_got_and_what_the_next_ones_read():
    """Expected: the whole model, whose first layers return their input by a hook."""

    def unchanged(module, inputs, output):
        states = inputs[0]
        return (states, *output[1:]) if isinstance(output, tuple) else states

    for name in OF_EACH_FORM:
        model, batch = tiny_model(name), ragged_batch(tiny_model(name))
        layers = find_sublayers(model)
        first = {x.layer: x.layer_path for x in layers if x.index == 0}
        with hooks(
            model.get_submodule(path).register_forward_hook(unchanged) for path in first.values()
        ):
            expected = model(**batch).logits
        with skipped(model, layers, Mask.full(layers).without_layers(first)):
            torch.testing.assert_close(model(**batch).logits, expected)
        assert not torch.allclose(model(**batch).logits, expected)


@torch.no_grad()
def test_translators_generate_with_a_skipped_first_layer_as_without_a_cache():
    """transformers reads the number of tokens so far from the first layer's cache."""
    for name in ("mbart", "t5"):
        model = tiny_model(name)
        layers, batch = find_sublayers(model), ragged_batch(model)
        source = {key: batch[key] for key in ("input_ids", "attention_mask")}
        vary(model, 3)
        pruned = prune(model, layers, Mask.full(layers).without_layers(["decoder.0"]))
        for beams in (1, 3):
            options = {"num_beams": beams, "do_sample": False, "max_length": 12}
            expected = pruned.generate(**source, **options, use_cache=False)
            assert torch.equal(pruned.generate(**source, **options), expected)
            assert len(expected.unique()) > 4, "the test needs varied outputs"


@torch.no_grad()
def test_a_model_without_skipped_layers_answers_as_with_them(tmp_path):
    """And its configuration has as many layers, with their entries in lists of all layers."""
    for name in OF_EACH_FORM:
        dense = open_checkpoint(str(toy.checkpoint(tmp_path / name, name)))
        batch, full = ragged_batch(dense.model), Mask.full(dense.layers)
        whole = without_skipped(dense, dense.model, full)
        assert (whole.model, whole.mask) == (dense.model, full)
        mask = full.without_layers({x.layer for x in dense.layers if x.index == 0})
        pruned = prune(dense.model, dense.layers, mask)
        made = without_skipped(dense, pruned, mask)
        torch.testing.assert_close(made.model(**batch).logits, pruned(**batch).logits)
        assert made.mask == Mask.full(made.layers)
        assert len(made.layers) == len(dense.layers) - len(full.counts()) // 3
        if name == "modernbert":
            assert made.model.config.layer_types == dense.model.config.layer_types[1:]


@torch.no_grad()
def test_a_table_of_positions_gets_its_heads_back():
    """T5's first attention of each stack loses a head, and with it a column of the table."""
    model = tiny_model("t5")
    layers, batch = find_sublayers(model), ragged_batch(model)
    heads = [x.name for x in layers if x.is_self_attention and x.index == 0]
    mask = Mask.full(layers).without((name, 1) for name in heads)
    pruned = prune(model, layers, mask)
    restored = restore_shape(model, pruned, layers, mask)
    with gated(restored, layers, mask_gates(mask)):
        torch.testing.assert_close(restored(**batch).logits, pruned(**batch).logits)


def test_a_wrong_removal_does_not_pass_verification():
    model = tiny_model("bert")
    layers = find_sublayers(model)
    full = Mask.full(layers)
    mask = full.without([("encoder_self.1", 1)])
    other, damaged = prune(model, layers, full.without([("encoder_self.1", 2)])), tiny_model("bert")
    damaged.get_submodule(layers[0].inputs["query"]).weight.data[0, 0] = float("nan")
    for wrong in (other, prune(damaged, layers, mask)):
        with raises(VerificationError, "pruned-differs-from-masked"):
            verify_surgery(model, wrong, layers, mask, [ragged_batch(model)])
