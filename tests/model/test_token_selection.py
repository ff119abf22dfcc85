"""Encoders that hand on the most significant tokens of a row from layer to layer."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from compressor.errors import InputError
from compressor.model.checkpoint import Checkpoint, open_checkpoint, save_checkpoint
from compressor.model.layers import find_sublayers
from compressor.model.modeling_kept import all_tokens, choose_tokens
from compressor.model.one_token import read_one_token
from compressor.model.sublayers import Mask, Sublayer
from compressor.model.surgery import masked, prune, verify_surgery, without_skipped
from compressor.model.token_selection import choice_margins, handing_on, selecting_layers
from tests.helpers.errors import raises
from tests.helpers.heads import save_head
from tests.helpers.tiny import ragged_batch, tiny_model, word_tokenizer

ENCODERS = (
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "distilbert",
    "electra",
    "mpnet",
    "modernbert",
)


def encoder(name: str) -> tuple[nn.Module, list[Sublayer]]:
    model = tiny_model(name)
    if name == "modernbert":
        model.config.classifier_pooling = "cls"
    read_one_token(model)
    return model.eval(), find_sublayers(model)


def without_tokens(mask: Mask, *tenths: int) -> Mask:
    """The mask with these tenths of the tokens handed on by its first layers."""
    gone = [(f"encoder_tokens.{i}", unit) for i, n in enumerate(tenths) for unit in range(n, 10)]
    return mask.with_tokens().without(gone)


def in_full(model: nn.Module, batch: dict[str, Tensor], tenths: list[int]) -> Tensor:
    """Logits of BERT with all tokens computed, those left out hidden, written out step by step."""
    bert, heads = model.bert, model.config.num_attention_heads
    states = bert.embeddings(batch["input_ids"])
    kept = batch["attention_mask"].bool()
    lengths = kept.sum(1)
    for layer, share in zip(bert.encoder.layer, [*tenths, 10], strict=True):
        inner = layer.attention.self
        query, key, value = (
            part(states).unflatten(-1, (heads, -1)).transpose(1, 2)
            for part in (inner.query, inner.key, inner.value)
        )
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(~kept[:, None, None], -torch.inf).softmax(-1)
        context = (weights @ value).transpose(1, 2).flatten(-2)
        output = layer.attention.output
        attended = output.LayerNorm(output.dense(context) + states)
        received = (weights * kept[:, None, :, None]).sum((1, 2))
        for row, length in enumerate(lengths.tolist()):
            order = sorted(
                (token for token in range(len(kept[row])) if kept[row, token]),
                key=lambda token: (token != 0, -float(received[row, token]), token),
            )
            for token in order[max(1, math.ceil(share * length / 10)) :]:
                kept[row, token] = False
        end = layer.output
        wide = layer.intermediate(attended)
        states = end.LayerNorm(end.dense(wide) + attended)
    return model.classifier(bert.pooler(states))


@torch.no_grad()
def test_logits_are_those_of_attention_written_out():
    model, layers = encoder("bert")
    batch = ragged_batch(model, rows=6)
    batch.pop("token_type_ids", None)
    pruned = prune(model, layers, without_tokens(Mask.full(layers), 6, 3))
    expected = in_full(model, batch, [6, 3])
    torch.testing.assert_close(pruned(**batch).logits, expected, rtol=1e-5, atol=1e-5)
    assert (model(**batch).logits - expected).abs().max() > 0.1  # tokens that are left out count


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_pruned_equals_masked_and_a_row_alone_equals_it_in_a_batch(name: str):
    model, layers = encoder(name)
    batch = ragged_batch(model, rows=5)  # one of a single token
    # Tokens go after a layer without heads, too, and with heads and neurons.
    units = [("encoder_self.1", 1), *(("encoder_ffn.0", n) for n in range(0, 48, 3))]
    units += [("encoder_self.0", n) for n in range(4)]
    mask = without_tokens(Mask.full(layers), 9, 4)
    for cut in (mask, mask.without(units[:-4]), mask.without(units)):
        pruned = prune(model, layers, cut).eval()
        check = verify_surgery(model, pruned, layers, cut, [batch])
        assert check.largest_difference < 1e-5
        assert "left out" not in check.detail
        whole = pruned(**batch).logits
        computed = [layer.latest.places.shape[1] for layer in selecting_layers(pruned)]
        assert computed == [math.ceil(0.9 * 9), math.ceil(0.4 * 9), math.ceil(0.4 * 9)]
        for row, real in enumerate(batch["attention_mask"].bool()):
            alone = {key: values[row : row + 1, real] for key, values in batch.items()}
            torch.testing.assert_close(pruned(**alone).logits[0], whole[row], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_no_layer_hands_on_more_than_it_gets_and_dropped_layers_hand_on_what_they_get():
    model, layers = encoder("bert")
    assert without_tokens(Mask.full(layers), 3, 8).handed_on() == (3, 3)
    batch = ragged_batch(model, rows=5)
    for dropped, expected in (("encoder.0", (8,)), ("encoder.1", (3,)), ("encoder.2", (3,))):
        mask = without_tokens(Mask.full(layers), 3, 8).without_layers([dropped])
        assert mask.handed_on() == expected == mask.of_layers_left().handed_on()
        pruned = prune(model, layers, mask)
        with masked(model, layers, mask):
            wanted = model(**batch).logits
        torch.testing.assert_close(pruned(**batch).logits, wanted, rtol=1e-5, atol=1e-5)


def test_equal_significance_goes_by_place_and_the_token_that_is_read_stays():
    states, mask = torch.zeros(2, 6, 4), torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    for last, expected in ((False, [[0, 1, 2], [0, 1, 2]]), (True, [[5, 0, 1], [2, 0, 1]])):
        chosen, slots = choose_tokens(all_tokens(states, mask, last), 5)
        assert slots.tolist() == expected == chosen.places.tolist()
        assert chosen.real.tolist() == [[True, True, True], [True, True, False]]


def test_gradients_flow_through_the_tokens_that_stay():
    model, layers = encoder("bert")
    pruned = prune(model, layers, without_tokens(Mask.full(layers), 5, 2))
    batch = ragged_batch(model, rows=4)
    pruned(**batch).logits.square().sum().backward()
    with_mask = encoder("bert")[0]
    mask = without_tokens(Mask.full(layers), 5, 2)
    with masked(with_mask, layers, mask):
        with_mask(**batch).logits.square().sum().backward()
    wanted = dict(with_mask.named_parameters())
    for name, parameter in pruned.named_parameters():
        if wanted[name].grad is not None:
            torch.testing.assert_close(parameter.grad, wanted[name].grad, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_a_model_is_itself_again_after_the_context():
    model, _ = encoder("bert")
    batch = ragged_batch(model, rows=3)
    before = model(**batch).logits
    with handing_on(model, [5, 2]):
        assert not torch.equal(model(**batch).logits, before)
        assert choice_margins(model) is not None
    assert torch.equal(model(**batch).logits, before)
    assert choice_margins(model) is None


def saved(tmp_path: Path, *tenths: int) -> tuple[Path, Checkpoint]:
    """A checkpoint that hands on fewer tokens, saved."""
    tiny_model("bert").save_pretrained(tmp_path / "dense")
    word_tokenizer(types=True).save_pretrained(tmp_path / "dense")
    dense = open_checkpoint(str(tmp_path / "dense"))
    mask = without_tokens(dense.mask, *tenths)
    small = without_skipped(dense, prune(dense.model, dense.layers, mask), mask)
    record = {"schema": 2, "units": mask.totals(), "kept": mask.to_json()}
    record["task"] = "classification"
    save_checkpoint(dense, small.model, record, tmp_path / "saved")
    return tmp_path / "saved", small


@torch.no_grad()
def test_a_saved_model_opens_as_it_was_also_by_transformers_alone(tmp_path: Path):
    directory, small = saved(tmp_path, 6, 3)
    batch = ragged_batch(small.model, rows=4)
    expected = small.model.eval()(**batch).logits
    again = open_checkpoint(str(directory))
    assert again.mask.handed_on() == (6, 3)
    assert torch.equal(again.model(**batch).logits, expected)
    alone = AutoModelForSequenceClassification.from_pretrained(directory, trust_remote_code=True)
    assert torch.equal(alone.eval()(**batch).logits, expected)


def test_a_record_that_keeps_other_than_the_most_significant_tokens_is_refused(tmp_path: Path):
    directory, _ = saved(tmp_path, 6, 3)
    path = directory / "units.json"
    record = json.loads(path.read_text())
    record["kept"]["encoder_tokens.0"] = [0, 2]
    path.write_text(json.dumps(record))
    with raises(InputError, "units-file-malformed"):
        open_checkpoint(str(directory), verify=False)


def test_a_record_with_tokens_of_a_model_that_reads_all_is_refused(tmp_path: Path):
    directory, _ = saved(tmp_path, 6, 3)
    tagger = save_head(tmp_path / "tagger", "bert", "token-classification")
    shutil.copy(directory / "units.json", tagger)
    record = json.loads((tagger / "units.json").read_text())
    (tagger / "units.json").write_text(json.dumps(record | {"task": "token-classification"}))
    with raises(InputError, "units-file-of-another-model"):
        open_checkpoint(str(tagger), verify=False)
