"""Reconstruction against NumPy's least squares, and on models where it can be exact."""

from __future__ import annotations

import copy
import dataclasses
import re

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import nn

from compressor import example
from compressor.errors import InputError, UsageError
from compressor.model.architectures import find_sublayers
from compressor.model.checkpoint import open_checkpoint
from compressor.model.modeling_pruned import OutputBias
from compressor.model.restore_shape import restore_shape
from compressor.model.sublayers import Mask, Sublayer
from compressor.model.surgery import prune, verify_surgery
from compressor.recovery import RECOVERIES, Recovered, Recovery, reconstruct, recover
from compressor.recovery.layerwise_forward import LayerwiseForward, blocks_in_order
from compressor.tasks import Batch, get_task, read_rows
from tests.helpers.batches import examples
from tests.helpers.errors import raises
from tests.helpers.tiny import BUILDERS, TRANSLATORS, empty_first_mask, tiny_model, uneven_mask

pytestmark = pytest.mark.slow

MANY = 1500  # enough that every repair helps on the rows held out, too


def job(name: str, mask=uneven_mask, rows: int = 60, model: nn.Module | None = None) -> Recovery:
    """A tiny pruned model and random rows; `mask` makes the mask from the layers."""
    model = model or tiny_model(name)
    layers = find_sublayers(model)
    return Recovery(
        dense=model,
        pruned=prune(model, layers, mask(layers)),
        layers=layers,
        task=get_task("translation" if name in TRANSLATORS else "classification"),
        examples=examples(name, rows),
    )


def batches_of(setup: Recovery) -> list[Batch]:
    return setup.task.batches(setup.examples, setup.dense)


def reconstructed(setup: Recovery) -> nn.Module:
    return recover({"reconstruct": {}}, setup).model


def one_head(layer: int, head: int):
    """A mask that removes a single head."""
    return lambda layers: Mask.full(layers).without([(layers[layer].name, head)])


def without_neurons(count: int | None):
    """A mask that removes every so many-th neuron of each feed-forward part, or all; no head."""
    return lambda layers: Mask.full(layers).without(
        (x.name, neuron)
        for x in layers
        if not x.is_attention
        for neuron in range(0, x.units, count or 1)
    )


def ridge_solution(
    x: np.ndarray, wanted: np.ndarray, old: np.ndarray, damping: float
) -> tuple[np.ndarray, np.ndarray]:
    """Weight and bias by NumPy: rows sqrt(lambda n) I below the centered inputs x.

    They pull towards the old weight.
    """
    centered = x - x.mean(0)
    ridge = np.sqrt(damping * centered.var(0).mean() * len(x)) * np.eye(x.shape[1])
    target = wanted - wanted.mean(0)
    solution = np.linalg.lstsq(
        np.concatenate([centered, ridge]), np.concatenate([target, ridge @ old.T]), rcond=None
    )[0].T
    return solution, wanted.mean(0) - solution @ x.mean(0)


@torch.no_grad()
def difference(setup: Recovery, pruned: nn.Module) -> float:
    """Mean squared difference of the logits to the dense model's, over real tokens."""
    total, count = 0.0, 0
    for batch in batches_of(setup):
        expected = setup.task.logits(setup.dense, batch)
        actual = setup.task.logits(pruned, batch)
        if expected.dim() == 3:
            real = batch["labels"] != -100
            expected, actual = expected[real], actual[real]
        total += float((actual - expected).pow(2).sum())
        count += expected.numel()
    return total / count


@torch.no_grad()
def rows_of(model: nn.Module, path: str, setup: Recovery, kind: str):
    """Inputs and outputs of a module over all real tokens, as NumPy [tokens, features]."""
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    for batch in batches_of(setup):
        real = setup.task.token_mask(batch, kind)

        def record(module, inputs, output, real=real):
            seen.append((inputs[0][real].double().numpy(), output[real].double().numpy()))

        handle = model.get_submodule(path).register_forward_hook(record)
        setup.task.logits(model, batch)
        handle.remove()
    inputs, outputs = zip(*seen, strict=True)
    return np.concatenate(inputs), np.concatenate(outputs)


@pytest.mark.parametrize("mask", [uneven_mask, empty_first_mask, without_neurons(2)])
@pytest.mark.parametrize("name", BUILDERS)
def test_logits_come_closer_to_the_dense_models(name: str, mask):
    setup = job(name, mask, rows=200)
    before = difference(setup, setup.pruned)
    recovered = recover({"reconstruct": {}}, setup)
    assert difference(setup, recovered.model) < 0.8 * before
    assert re.fullmatch(
        r"reconstruct: \d+ output projections of attention and feed-forward parts re-solved on 200 "
        r"rows; squared difference to the dense model after each \d\d % smaller",
        recovered.text,
    )


def require_ridge_solution(setup, layer, damping: float, rtol: float, atol: float):
    """Compare the repair of a projection, before which nothing differs, with ridge regression.

    Returns:
        What the projection gets in the pruned model, [tokens, its inputs].
    """
    _, wanted = rows_of(setup.dense, layer.output, setup, layer.kind)
    x, found = rows_of(setup.pruned, layer.output, setup, layer.kind)
    old = setup.pruned.get_submodule(layer.output).weight.detach().double().numpy()
    solution, intercept = ridge_solution(x, wanted, old, damping)
    projection = reconstructed(setup).get_submodule(layer.output)
    np.testing.assert_allclose(projection.weight.detach(), solution, rtol=rtol, atol=atol)
    np.testing.assert_allclose(projection.bias.detach(), intercept, rtol=rtol, atol=atol)
    repaired = x @ projection.weight.detach().numpy().T + projection.bias.detach().numpy()
    assert ((repaired - wanted) ** 2).mean() < 0.7 * ((found - wanted) ** 2).mean()
    return x


def test_the_first_repair_is_ridge_regression_towards_the_old_weights():
    """Nothing differs before the first layer, so what is missing is missing at its projection."""
    setup = job("bert", one_head(0, 2))
    require_ridge_solution(setup, setup.layers[0], reconstruct.DAMPING, 1e-3, 1e-4)


@pytest.mark.parametrize("name", ["bert", "marian", "distilbert"])
def test_neurons_that_stay_make_up_for_those_that_go(name: str):
    """No head goes, so that nothing differs before the first feed-forward part."""
    setup = job(name, without_neurons(3), rows=MANY)
    layer = next(x for x in setup.layers if x.kind == "encoder_ffn")
    x = require_ridge_solution(setup, layer, reconstruct.FEED_FORWARD_DAMPING, 5e-3, 5e-4)
    assert x.shape[1] == 32


@pytest.mark.parametrize("name", ["bert", "marian", "distilbert"])
def test_a_feed_forward_part_makes_up_for_what_attention_left(name: str):
    """SciPy's solve of the normal equations, on what the first block then lacks.

    What is missing in the residual stream is read off the layer norm that comes next, whose input
    the stream is; the first attention layer has been repaired before.
    """
    setup = job(name, one_head(0, 2), rows=MANY)
    root, members = blocks_in_order(setup.layers)[0]
    block = members[-1]
    path = block.output
    norms = {"bert": "output.LayerNorm", "distilbert": "output_layer_norm"}
    norm = f"{root}.{norms.get(name, 'final_layer_norm')}"
    attention = copy.deepcopy(setup.pruned)
    model = reconstructed(setup)
    first = setup.layers[0].output
    for part in ("weight", "bias"):
        repaired = model.get_submodule(first).state_dict()[part]
        attention.get_submodule(first).state_dict()[part].copy_(repaired)
    x, _ = rows_of(attention, path, setup, block.kind)
    wanted, _ = rows_of(setup.dense, norm, setup, block.kind)
    found, _ = rows_of(attention, norm, setup, block.kind)
    missing, centered = wanted - found, x - x.mean(0)
    covariance = centered.T @ centered / len(x)
    ridge = reconstruct.FEED_FORWARD_DAMPING * covariance.diagonal().mean()
    step = scipy.linalg.solve(
        covariance + ridge * np.eye(len(covariance)),
        centered.T @ (missing - missing.mean(0)) / len(x),
        assume_a="pos",
    ).T
    module, old = model.get_submodule(path), attention.get_submodule(path)
    change = (module.weight - old.weight).detach().numpy()
    np.testing.assert_allclose(change, step, rtol=5e-3, atol=2e-4)
    offset = missing.mean(0) - step @ x.mean(0)
    np.testing.assert_allclose((module.bias - old.bias).detach(), offset, rtol=5e-3, atol=5e-4)


@pytest.mark.slow
def test_few_rows_do_no_harm_on_others(monkeypatch):
    """Fitted to eight sentences as if they were many, a model would get worse at all others."""
    checkpoint = open_checkpoint(str(example.model()))
    task, layers = get_task("translation"), checkpoint.layers
    few, others = (
        task.encode(read_rows("translation", file, limit=limit), checkpoint.tokenizer, 128)
        for file, limit in ((example.calibration(), 8), (example.test(), 24))
    )
    batches = task.batches(others, checkpoint.model)
    half = Mask.full(layers).without((x.name, head) for x in layers for head in range(0, 8, 2))

    @torch.no_grad()
    def loss(held_out: int | None) -> float:
        model = prune(checkpoint.model, layers, half)
        if held_out is not None:
            monkeypatch.setattr(reconstruct, "HELD_OUT", held_out)
            model = reconstructed(Recovery(checkpoint.model, model, layers, task, few))
        return sum(float(task.loss(model, batch)) for batch in batches)

    cut = loss(None)
    assert loss(reconstruct.HELD_OUT) < cut
    assert loss(10**6) > cut


@pytest.mark.parametrize("name", ["marian", "distilbert"])
@pytest.mark.parametrize(
    ("mask", "kind"), [(empty_first_mask, "encoder_self"), (without_neurons(None), "encoder_ffn")]
)
def test_an_emptied_sublayer_answers_with_the_mean(name: str, mask, kind: str):
    setup = job(name, mask)
    layer = next(x for x in setup.layers if x.kind == kind)
    _, wanted = rows_of(setup.dense, layer.output, setup, layer.kind)
    stand_in = reconstructed(setup).get_submodule(layer.output)
    assert isinstance(stand_in, OutputBias)
    np.testing.assert_allclose(stand_in.bias.detach(), wanted.mean(0), rtol=1e-4, atol=1e-5)


def redundant(name: str, kind: str) -> tuple[nn.Module, torch.Tensor]:
    """A model in which head 3 of each attention of a kind is a linear function of head 1."""
    model = tiny_model(name)
    mixing = torch.randn(8, 8, generator=torch.Generator().manual_seed(3)) / 8**0.5
    copied, source = slice(24, 32), slice(8, 16)
    with torch.no_grad():
        for layer in find_sublayers(model):
            if layer.kind == kind:
                for path in layer.inputs.values():
                    linear = model.get_submodule(path)
                    change = mixing if path == layer.inputs["value"] else torch.eye(8)
                    linear.weight[copied] = change @ linear.weight[source]
                    linear.bias[copied] = change @ linear.bias[source]
    return model, mixing


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("marian", "encoder_self"),
        ("marian", "decoder_self"),
        ("marian", "cross"),
        ("bert", "encoder_self"),
    ],
)
def test_a_redundant_head_is_made_up_for(name: str, kind: str, monkeypatch):
    """W_1 + W_3 A gives the dense outputs back: exactly without damping, nearly with it."""
    model, mixing = redundant(name, kind)

    def without_copies(layers):
        return Mask.full(layers).without((x.name, 3) for x in layers if x.kind == kind)

    setup = job(name, without_copies, rows=200, model=model)
    cut = difference(setup, setup.pruned)
    assert difference(setup, reconstructed(setup)) < 0.05 * cut
    monkeypatch.setattr(reconstruct, "DAMPING", 1e-9)
    undamped = reconstructed(setup)
    assert difference(setup, undamped) < 1e-5 * cut
    layer = next(x for x in setup.layers if x.kind == kind)
    old = model.get_submodule(layer.output).weight
    new = undamped.get_submodule(layer.output).weight
    torch.testing.assert_close(new[:, 8:16], old[:, 8:16] + old[:, 24:] @ mixing, rtol=0, atol=0.02)


@pytest.mark.parametrize(("name", "kind"), [("marian", "decoder_ffn"), ("bert", "encoder_ffn")])
def test_redundant_neurons_are_made_up_for(name: str, kind: str, monkeypatch):
    """Neuron 20 + i is neuron i over again: W_i + W_20+i gives the dense outputs back."""
    model = tiny_model(name)
    with torch.no_grad():
        for layer in find_sublayers(model):
            if layer.kind == kind:
                linear = model.get_submodule(layer.inputs["up"])
                linear.weight[20:40] = linear.weight[:20]
                linear.bias[20:40] = linear.bias[:20]

    def without_copies(layers):
        return Mask.full(layers).without(
            (x.name, neuron) for x in layers if x.kind == kind for neuron in range(20, 40)
        )

    setup = job(name, without_copies, rows=400, model=model)
    cut = difference(setup, setup.pruned)
    monkeypatch.setattr(reconstruct, "FEED_FORWARD_DAMPING", 1e-9)
    undamped = reconstructed(setup)
    assert difference(setup, undamped) < 1e-5 * cut
    layer = next(x for x in setup.layers if x.kind == kind)
    old = model.get_submodule(layer.output).weight
    new = undamped.get_submodule(layer.output).weight
    torch.testing.assert_close(new[:, :20], old[:, :20] + old[:, 20:40], rtol=0, atol=0.02)


@pytest.mark.parametrize("name", ["marian", "bert"])
def test_only_projections_into_the_stream_change_and_only_after_the_first_cut(name: str):
    setup = job(name, one_head(1, 0), rows=MANY + 500)
    wanted = [p.requires_grad for p in setup.pruned.parameters()]
    model = reconstructed(setup)
    # The decoder's first self-attention comes before anything it hears from the encoder, and the
    # first block before the cut.
    first = "model.encoder.layers.0." if name == "marian" else "bert.encoder.layer.0."
    later = [
        x.output
        for x in setup.layers
        if x.name != "decoder_self.0" and not x.output.startswith(first)
    ]
    before = setup.pruned.state_dict()
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    possible = {f"{path}.{part}" for path in later for part in ("weight", "bias")}
    assert changed <= possible
    # A repair that does not help on held-out rows is dropped: one at most, weight and bias.
    assert len(possible - changed) <= 2
    assert [p.requires_grad for p in model.parameters()] == wanted
    for one in (setup.dense, setup.pruned, model):
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in one.modules())
        assert not any("forward" in m.__dict__ for m in one.modules())


@pytest.mark.parametrize("methods", [("reconstruct",), ("distill",), ("reconstruct", "distill")])
def test_the_models_handed_in_stay_as_they_are(methods: tuple[str, ...]):
    setup = job("marian", rows=48)
    setup.pruned.train()
    before = [copy.deepcopy(model.state_dict()) for model in (setup.dense, setup.pruned)]
    flags = [p.requires_grad for p in setup.pruned.parameters()]
    options = {"reconstruct": {}, "distill": {"epochs": 1, "learning_rate": 1e-3}}
    recovered = recover({method: options[method] for method in methods}, setup).model
    for model, state in zip((setup.dense, setup.pruned), before, strict=True):
        assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(module.training for module in setup.pruned.modules())
    assert [p.requires_grad for p in setup.pruned.parameters()] == flags
    assert any(not torch.equal(v, before[1][k]) for k, v in recovered.state_dict().items())
    assert recovered.lm_head.weight is recovered.model.shared.weight  # tied, as in the pruned one


def test_a_reconstructed_model_shares_what_was_not_solved_for():
    """A translator's embeddings are most of its weights; a second copy would double its memory."""
    setup = job("marian")
    model = reconstructed(setup)
    assert model.model.shared.weight is setup.pruned.model.shared.weight
    path = setup.layers[-2].output
    assert model.get_submodule(path) is not setup.pruned.get_submodule(path)


def test_the_same_job_gives_the_same_weights():
    first, second = (reconstructed(job("marian")).state_dict() for _ in range(2))
    assert all(torch.equal(value, second[key]) for key, value in first.items())


def test_nothing_is_touched_where_nothing_is_missing():
    """The removed units' columns of the output projections are zero: the cut changes nothing."""
    model = tiny_model("bert")
    with torch.no_grad():
        for layer in find_sublayers(model):
            unit = slice(layer.unit_width, 2 * layer.unit_width)
            model.get_submodule(layer.output).weight[:, unit] = 0
    setup = job("bert", lambda x: Mask.full(x).without((y.name, 1) for y in x), model=model)
    setup = dataclasses.replace(setup, dense=copy.deepcopy(setup.pruned))
    recovered = recover({"reconstruct": {}}, setup)
    assert recovered.text == "reconstruct: nothing to repair in 6 projections"
    before = setup.pruned.state_dict()
    assert all(torch.equal(v, before[k]) for k, v in recovered.model.state_dict().items())


def test_padding_is_not_looked_at():
    """Wider padding of the same rows, filled with other tokens, changes no weight noticeably."""
    setup = job("bert")
    wide = []
    for batch in batches_of(setup):
        padded = copy.copy(batch)
        for part, value in batch.inputs().items():
            extra = torch.full((len(value), 6), 7 if part == "input_ids" else 0)
            padded[part] = torch.cat([value, extra], 1)
        wide.append(padded)
    task = copy.copy(setup.task)
    task.batches = lambda rows, model: wide
    other = reconstructed(dataclasses.replace(setup, task=task)).state_dict()
    for key, value in reconstructed(setup).state_dict().items():
        torch.testing.assert_close(value, other[key], rtol=1e-3, atol=1e-4)


def test_projections_without_a_bias_get_none():
    model = tiny_model("bert")
    for layer in find_sublayers(model):
        model.get_submodule(layer.output).bias = None
    setup = job("bert", model=model)
    model = reconstructed(setup)
    assert difference(setup, model) < difference(setup, setup.pruned)
    assert all(model.get_submodule(x.output).bias is None for x in setup.layers)


def test_half_precision_weights_hold_the_repair():
    setup = job("bert")
    setup.dense.bfloat16(), setup.pruned.bfloat16()
    model = reconstructed(setup)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert difference(setup, model) < difference(setup, setup.pruned)


@pytest.mark.parametrize("name", ["mbart", "distilbert"])
def test_layerwise_forward_sees_what_a_whole_forward_pass_sees(name: str):
    """Piece by piece with finished blocks skipped, against hooks in one ordinary pass."""
    setup = job(name, rows=8)
    batches = batches_of(setup)
    forward = LayerwiseForward(setup.pruned, batches, setup.task)
    order = []
    for block, sublayers in blocks_in_order(setup.layers):
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


def test_progress_counts_projections():
    seen = []
    setup = dataclasses.replace(job("bert", rows=5), progress=lambda *step: seen.append(step))
    reconstructed(setup)
    assert seen == [(done, 6) for done in range(1, 7)]


def test_no_recovery_gives_the_pruned_model():
    setup = dataclasses.replace(job("bert"), examples=[])
    assert recover({}, setup) == Recovered(setup.pruned, "")


def test_unknown_methods_missing_rows_and_broken_models_are_errors():
    setup = job("bert", rows=5)
    with raises(UsageError, "recovery-unknown") as caught:
        recover({"distil": {}}, setup)
    assert all(method in str(caught.value) for method in RECOVERIES)
    with raises(UsageError, "calibration-missing"):
        recover({"reconstruct": {}}, dataclasses.replace(setup, examples=[]))
    with torch.no_grad():
        setup.pruned.get_submodule(setup.layers[1].inputs["value"]).weight.fill_(float("nan"))
    with raises(InputError, "activations-not-finite") as caught:
        recover({"reconstruct": {}}, setup)
    assert "encoder_self.1" in str(caught.value)
