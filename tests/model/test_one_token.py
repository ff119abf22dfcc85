"""The last layer of an encoder computes the one token that is read; transformers computes all."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from compressor.model.architectures import architecture
from compressor.model.layers import find_sublayers
from compressor.model.modeling_tokens import computes_one_token
from compressor.model.modes import computing_all_tokens
from compressor.model.one_token import read_one_token
from compressor.model.sentence_head import HEAD, SentenceHead, add_head
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from tests.helpers.tiny import BUILDERS, RELATIVES, ragged_batch, tiny_model

ENCODERS = [x for x in (*BUILDERS, *RELATIVES) if architecture(x).decoder is None]


def classifier(name: str) -> nn.Module:
    model = tiny_model(name)
    if name == "modernbert":
        model.config.classifier_pooling = "cls"
    return model


def last_layers_cut(model: nn.Module) -> nn.Module:
    """Without a head and some neurons of the last layer, and without most of the first one."""
    layers = find_sublayers(model)
    last = max(layer.index for layer in layers)
    units = [(f"encoder_self.{last}", 1), *((f"encoder_ffn.{last}", n) for n in range(0, 48, 5))]
    units += [("encoder_self.0", n) for n in (0, 1, 3)]
    return prune(model, layers, Mask.full(layers).without(units))


@pytest.mark.parametrize("cut", [False, True], ids=["dense", "pruned"])
@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_logits_are_those_of_transformers(name: str, cut: bool):
    model = classifier(name)
    model = last_layers_cut(model) if cut else model
    batch = ragged_batch(model, rows=5)
    expected = model(**batch).logits
    states = []
    read_one_token(model)
    layer = model.get_submodule(model.one_token_layer)
    layer.register_forward_hook(lambda _, inputs, output: states.append(output))
    torch.testing.assert_close(model(**batch).logits, expected, rtol=1e-5, atol=1e-5)
    computed = states[0][0] if isinstance(states[0], tuple) else states[0]
    assert computed.shape[:2] == (5, 1)  # rows, tokens
    without_mask = {"input_ids": batch["input_ids"][:1]}  # of 9 tokens
    torch.testing.assert_close(model(**without_mask).logits, expected[:1], rtol=1e-5, atol=1e-5)
    with computing_all_tokens(model):
        assert torch.equal(model(**batch).logits, expected)


@pytest.mark.parametrize("name", ENCODERS)
def test_gradients_are_those_of_transformers(name: str):
    whole, one = classifier(name), classifier(name)
    read_one_token(one)
    for model in (whole, one):
        model(**ragged_batch(model)).logits.square().sum().backward()
    gradients = dict(one.named_parameters())
    for parameter_name, parameter in whole.named_parameters():
        if parameter.grad is not None:
            found = gradients[parameter_name].grad
            torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=1e-4)


def encoder_with(pooling: str, name: str) -> nn.Module:
    """An encoder alone, with the head of sentence-transformers for a pooling."""
    model = classifier(name)
    encoder = model.base_model
    add_head(encoder, None, None, False)  # type: ignore[arg-type]
    setattr(encoder, HEAD, SentenceHead(encoder.config.hidden_size, (pooling,)))
    return encoder.eval()


@pytest.mark.parametrize("name", ["bert", "mpnet", "modernbert"])
@pytest.mark.parametrize("pooling", ["cls", "lasttoken"])
@torch.no_grad()
def test_embeddings_of_one_token(pooling: str, name: str):
    model = encoder_with(pooling, name)
    batch = ragged_batch(model, rows=5)
    lengths = batch["attention_mask"].sum(1)
    hidden = model(**batch).last_hidden_state
    places = torch.zeros_like(lengths) if pooling == "cls" else lengths - 1
    expected = hidden[torch.arange(5), places]
    read_one_token(model)
    assert computes_one_token(model)
    torch.testing.assert_close(model(**batch).logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "max", "weightedmean"])
def test_poolings_of_all_tokens_compute_all(pooling: str):
    model = encoder_with(pooling, "bert")
    read_one_token(model)
    assert not computes_one_token(model)


def test_the_mean_of_all_tokens_in_a_classifier_computes_all():
    model = tiny_model("modernbert")
    assert model.config.classifier_pooling == "mean"
    read_one_token(model)
    assert not computes_one_token(model)


@torch.no_grad()
def test_threads_share_a_model():
    """What a forward pass hands to the attention belongs to that pass."""
    model = classifier("bert")
    batches = [ragged_batch(model, rows=rows, seed=rows) for rows in range(1, 9)]
    expected = [model(**batch).logits for batch in batches]
    read_one_token(model)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda batch: model(**batch).logits, batches * 5))
    for answer, wanted in zip(answers, expected * 5, strict=True):
        torch.testing.assert_close(answer, wanted, rtol=1e-5, atol=1e-5)


def test_a_copy_computes_one_token_too():
    model = classifier("deberta-v2")
    read_one_token(model)
    assert computes_one_token(copy.deepcopy(model))


def test_a_convolution_behind_the_only_layer_reads_all_tokens():
    config = SimpleNamespace(conv_kernel_size=3, num_hidden_layers=1)
    assert architecture("deberta-v2").needs_all_tokens(config)
