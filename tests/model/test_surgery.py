"""Removing heads gives the function that masking them gives, for every architecture."""

from __future__ import annotations

import pytest
import torch

from compressor.errors import InputError, VerificationError
from compressor.model.architectures import ARCHITECTURES, architecture, find_sublayers
from compressor.model.sublayers import Mask
from compressor.model.surgery import (
    gated,
    mask_gates,
    prune,
    relative_difference,
    restore_shape,
    verify_surgery,
)
from tests.helpers.errors import raises
from tests.helpers.heads import ENCODERS
from tests.helpers.tiny import (
    BUILDERS,
    RELATIVES,
    TRANSLATOR_RELATIVES,
    empty_first_mask,
    nothing_left_mask,
    ragged_batch,
    tiny_model,
    uneven_mask,
)

MASKS = {"uneven": uneven_mask, "first": empty_first_mask, "nothing": nothing_left_mask}
NAMES = (*BUILDERS, *TRANSLATOR_RELATIVES)
CASES = [(name, "uneven") for name in NAMES]
CASES += [
    (name, mask) for name in ("marian", "mbart", "bert", "t5") for mask in ("first", "nothing")
]


def test_every_architecture_of_the_table_has_a_tiny_model():
    assert not set(BUILDERS) & set(RELATIVES)
    assert set(BUILDERS) | set(RELATIVES) == set(ARCHITECTURES)


@pytest.mark.parametrize(("name", "mask_name"), CASES)
def test_pruned_equals_zeroed_output_columns(name: str, mask_name: str):
    """Independent of the gates: zero the removed heads' columns of the output projection."""
    model = tiny_model(name)
    layers = find_sublayers(model)
    mask = MASKS[mask_name](layers)
    batch = ragged_batch(model)
    pruned = prune(model, layers, mask)
    dense = model(**batch).logits
    for layer in layers:
        weight = model.get_submodule(layer.output).weight
        for head, keep in enumerate(mask.keep[layer.name]):
            if not keep:
                weight.data[:, head * layer.unit_width : (head + 1) * layer.unit_width] = 0
    expected = model(**batch).logits
    actual = pruned(**batch).logits
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    # The heads mattered, so the comparison above could have failed.
    assert (dense - expected).abs().max() > 0.05


@pytest.mark.parametrize("name", BUILDERS)
def test_shapes_and_parameters_shrink_by_what_the_units_own(name: str):
    model = tiny_model(name)
    layers = find_sublayers(model)
    mask = uneven_mask(layers)
    pruned = prune(model, layers, mask)
    lost = 0
    for layer in layers:
        kept, gone = len(mask.kept(layer.name)), layer.units - len(mask.kept(layer.name))
        if not layer.is_attention:
            lost += gone * (2 * 32 + 1)  # a row up with its bias, a column down
            if kept:
                assert pruned.get_submodule(layer.inputs["up"]).weight.shape == (kept, 32)
                assert pruned.get_submodule(layer.output).weight.shape == (32, kept)
            continue
        # q, k, v rows with biases and o columns of each head; the output bias stays.
        lost += gone * layer.unit_width * (4 * 32 + 3)
        if kept:
            assert pruned.get_submodule(layer.inputs["query"]).weight.shape == (kept * 8, 32)
            assert pruned.get_submodule(layer.output).weight.shape == (32, kept * 8)
            block = pruned.get_submodule(layer.block)
            paths = architecture(model.config.model_type).sublayers[0]
            assert getattr(block, paths.unit_count) == kept
    before, after = (sum(p.numel() for p in m.parameters()) for m in (model, pruned))
    assert before - after == lost


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(("name", "mask_name"), [case for case in CASES if case[0] not in ENCODERS])
def test_pruned_translators_generate_what_masked_ones_do(name: str, mask_name: str, beams: int):
    """The key/value cache keeps its numbering and its length without the emptied layers."""
    model = tiny_model(name)
    layers = find_sublayers(model)
    mask = MASKS[mask_name](layers)
    batch = {k: v for k, v in ragged_batch(model).items() if k != "decoder_input_ids"}
    pruned = prune(model, layers, mask)
    options = {"num_beams": beams, "do_sample": False, "max_length": 12}
    with gated(model, layers, mask_gates(mask)):
        expected = model.generate(**batch, **options)
    assert torch.equal(pruned.generate(**batch, **options), expected)


def test_a_wrong_removal_is_caught():
    model = tiny_model("bert")
    layers = find_sublayers(model)
    full = Mask.full(layers)
    pruned = prune(model, layers, full.without([("encoder_self.1", 2)]))
    wrong = full.without([("encoder_self.1", 1)])
    with raises(VerificationError, "pruned-differs-from-masked"):
        verify_surgery(model, pruned, layers, wrong, [ragged_batch(model)])


def test_nan_does_not_pass_verification():
    model = tiny_model("bert")
    layers = find_sublayers(model)
    full = Mask.full(layers)
    pruned = prune(model, layers, full)
    pruned.get_submodule(layers[0].inputs["query"]).weight.data[0, 0] = float("nan")
    with raises(VerificationError, "pruned-differs-from-masked"):
        verify_surgery(model, pruned, layers, full, [ragged_batch(model)])


def test_unsupported_architectures_are_listed():
    with raises(InputError, "architecture-unsupported") as caught:
        architecture("gpt2")
    assert all(name in str(caught.value) for name in ("'gpt2'", *ARCHITECTURES))
    with raises(InputError, "architecture-unsupported") as caught:
        architecture("albert")
    assert "share one set of weights" in str(caught.value)


@pytest.mark.parametrize("name", BUILDERS)
def test_neurons_are_the_columns_that_end_the_feed_forward_part(name: str):
    model = tiny_model(name)
    sublayers = [x for x in find_sublayers(model) if not x.is_attention]
    assert {x.unit_width for x in sublayers} == {1}
    assert all(x.units == model.get_submodule(x.output).in_features for x in sublayers)
    first, second = sublayers[:2]
    gone = [(first.name, unit) for unit in range(first.units)]
    gone += [(second.name, unit) for unit in (0, 3, 4)]
    mask = Mask.full(sublayers).without(gone)
    pruned, batch = prune(model, sublayers, mask), ragged_batch(model)
    verify_surgery(model, pruned, sublayers, mask, [batch])
    assert pruned.get_submodule(second.output).in_features == second.units - 3
    with torch.no_grad():
        assert relative_difference(pruned(**batch).logits, model(**batch).logits) > 0.01
    restored = restore_shape(model, pruned, sublayers, mask)
    verify_surgery(restored, pruned, sublayers, mask, [batch])
