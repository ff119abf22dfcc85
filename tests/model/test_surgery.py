"""Removing heads gives the function that masking them gives, for every architecture."""

from __future__ import annotations

import pytest
import torch

from compressor.errors import VerificationError
from compressor.model.architectures import ARCHITECTURES, architecture, find_sublayers
from compressor.model.sublayers import Mask
from compressor.model.surgery import gated, mask_gates, prune, restore_shape, verify_surgery
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
CASES = [(name, "uneven") for name in (*BUILDERS, *TRANSLATOR_RELATIVES)]
CASES += [
    (name, mask) for name in ("marian", "mbart", "bert", "t5") for mask in ("first", "nothing")
]


def test_every_architecture_of_the_table_has_a_tiny_model():
    assert not set(BUILDERS) & set(RELATIVES)
    assert set(BUILDERS) | set(RELATIVES) == set(ARCHITECTURES)


@pytest.mark.parametrize(("name", "mask_name"), CASES)
@torch.no_grad()
def test_pruned_equals_zeroed_output_columns(name: str, mask_name: str):
    """Independent of the gates: zero the removed units' columns of the output projection."""
    model = tiny_model(name)
    layers = find_sublayers(model)
    mask = MASKS[mask_name](layers)
    batch = ragged_batch(model)
    pruned = prune(model, layers, mask)
    restored = restore_shape(model, pruned, layers, mask)
    dense, actual = model(**batch).logits, pruned(**batch).logits
    for layer in layers:
        weight = model.get_submodule(layer.output).weight
        columns = weight.view(len(weight), layer.units, layer.unit_width)
        columns[:, [not keep for keep in mask.keep[layer.name]]] = 0
    expected = model(**batch).logits
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    # The units mattered, so the comparison above could have failed.
    assert (dense - expected).abs().max() > 0.05
    with gated(restored, layers, mask_gates(mask)):
        torch.testing.assert_close(restored(**batch).logits, actual, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", BUILDERS)
def test_shapes_and_parameters_shrink_by_the_rows_and_columns_of_units(name: str):
    model = tiny_model(name)
    layers = find_sublayers(model)
    mask = uneven_mask(layers)
    pruned = prune(model, layers, mask)
    lost = 0
    for layer in layers:
        kept, removed = len(mask.kept(layer.name)), layer.units - len(mask.kept(layer.name))
        width, role = (8, "query") if layer.is_attention else (1, "up")
        assert layer.unit_width == width
        # Rows of q, k and v (or of up) with their biases, and columns; the output bias stays.
        lost += removed * (width * (4 * 32 + 3) if layer.is_attention else 2 * 32 + 1)
        if kept:
            assert pruned.get_submodule(layer.inputs[role]).weight.shape == (kept * width, 32)
            assert pruned.get_submodule(layer.output).weight.shape == (32, kept * width)
        if kept and layer.is_attention:
            paths = architecture(model.config.model_type).sublayers[0]
            assert getattr(pruned.get_submodule(layer.block), paths.unit_count) == kept
    before, after = (sum(p.numel() for p in m.parameters()) for m in (model, pruned))
    assert before - after == lost


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(("name", "mask_name"), [case for case in CASES if case[0] not in ENCODERS])
def test_pruned_translators_generate_as_masked_ones(name: str, mask_name: str, beams: int):
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


@pytest.mark.parametrize("problem", ["another unit", "NaN"])
def test_a_wrong_removal_does_not_pass_verification(problem: str):
    model = tiny_model("bert")
    layers = find_sublayers(model)
    full = Mask.full(layers)
    mask = full.without([("encoder_self.1", 1)])
    wrong = problem == "another unit"
    pruned = prune(model, layers, full.without([("encoder_self.1", 2)]) if wrong else mask)
    if not wrong:
        pruned.get_submodule(layers[0].inputs["query"]).weight.data[0, 0] = float("nan")
    with raises(VerificationError, "pruned-differs-from-masked"):
        verify_surgery(model, pruned, layers, mask, [ragged_batch(model)])
