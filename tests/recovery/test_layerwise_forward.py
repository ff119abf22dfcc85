"""Sublayers observed one by one, and pruned models in the dense shape, against ordinary passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compressor.model.architectures import find_sublayers
from compressor.model.restore_shape import restore_shape
from compressor.model.sublayers import Sublayer, by_layer
from compressor.model.surgery import prune, verify_surgery
from compressor.recovery.layerwise_forward import LayerwiseForward
from tests.helpers.reconstruction import batches_of, rows_of
from tests.helpers.stages import job
from tests.helpers.tiny import BUILDERS, empty_first_mask, uneven_mask

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["mbart", "distilbert"])
def test_layerwise_forward_sees_what_a_whole_forward_pass_sees(name: str):
    """Piece by piece with finished blocks skipped, against hooks in one ordinary pass."""
    setup = job(name, rows=8)
    batches = batches_of(setup)
    forward = LayerwiseForward(setup.pruned, batches, setup.task)
    order = []
    for block, sublayers in by_layer(setup.layers).items():
        for sublayer in sublayers:
            pieces = []
            for number, batch in enumerate(batches):
                inputs, stream = forward.observe(sublayer, number)
                assert stream.shape[-1] == 32
                pieces.append(inputs[setup.task.token_mask(batch, sublayer.kind)].numpy())
            expected, _ = rows_of(setup.pruned, sublayer.output, setup, sublayer.kind)
            np.testing.assert_array_equal(np.concatenate(pieces), expected.astype(np.float32))
            order.append(sublayer.name)
        forward.finish(block)
    assert sorted(order) == sorted(layer.name for layer in setup.layers)
    if name == "mbart":
        assert order[-3:] == ["decoder_self.2", "cross.2", "decoder_ffn.2"]


@pytest.mark.parametrize("name", BUILDERS)
def test_the_observed_stream_holds_the_projections_output(name: str):
    """Its derivative by the output bias is one: the bias moves the stream by just as much."""
    setup = job(name, rows=5)
    forward = LayerwiseForward(setup.dense, batches_of(setup), setup.task)
    last: dict[str, Sublayer] = {layer.kind: layer for layer in setup.layers}
    for layer in last.values():
        _, before = forward.observe(layer, 0)
        with torch.no_grad():
            setup.dense.get_submodule(layer.output).bias += 0.25
        _, after = forward.observe(layer, 0)
        torch.testing.assert_close(after - before, torch.full_like(before, 0.25))


@pytest.mark.parametrize("mask", [uneven_mask, empty_first_mask])
@pytest.mark.parametrize("name", BUILDERS)
def test_a_pruned_model_in_the_dense_shape_is_its_equal_when_gated(name: str, mask):
    setup = job(name, mask, rows=5)
    kept = mask(setup.layers)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in setup.pruned.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    twin = restore_shape(setup.dense, setup.pruned, setup.layers, kept)
    inputs = [batch.inputs() for batch in batches_of(setup)]
    verify_surgery(twin, setup.pruned, setup.layers, kept, inputs)
    assert find_sublayers(twin) == setup.layers
    again = prune(twin, setup.layers, kept).state_dict()
    assert set(again) == set(setup.pruned.state_dict())
    assert all(torch.equal(v, again[k]) for k, v in setup.pruned.state_dict().items())
