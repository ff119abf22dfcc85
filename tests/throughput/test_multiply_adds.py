"""Counted work, compared with torch's own counter on real models and with hand calculations."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    MPNetConfig,
    MPNetForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)

from compressor.errors import InputError
from compressor.model.architectures import architecture_of, find_sublayers
from compressor.model.sublayers import Mask
from compressor.model.surgery import remove_units
from compressor.tasks import TASKS, Task
from compressor.throughput.multiply_adds import (
    WorkSize,
    multiply_adds,
    ratio_of_multiply_adds,
    total_multiply_adds,
)
from compressor.throughput.shapes import ModelShape, shape_of

BERT_SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "num_labels": 5,
    "max_position_embeddings": 32,
    "attn_implementation": "eager",  # the counter sees its plain matrix products
}
BART_SIZES = {
    "vocab_size": 61,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 56,
    "max_position_embeddings": 32,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "attn_implementation": "eager",
}

CLASSIFICATION = TASKS["classification"]


def classifiers() -> list[tuple[type, object]]:
    electra = ElectraConfig(**BERT_SIZES, embedding_size=16)
    special = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
    modernbert = ModernBertConfig(**BERT_SIZES, **dict.fromkeys(special, 1))
    distilbert = DistilBertConfig(
        vocab_size=50, dim=24, hidden_dim=40, n_layers=2, n_heads=3, num_labels=5,
        max_position_embeddings=32, attn_implementation="eager",
    )  # fmt: skip
    return [
        (BertForSequenceClassification, BertConfig(**BERT_SIZES)),
        (RobertaForSequenceClassification, RobertaConfig(**BERT_SIZES)),
        (ElectraForSequenceClassification, electra),
        (DistilBertForSequenceClassification, distilbert),
        (MPNetForSequenceClassification, MPNetConfig(**BERT_SIZES)),
        (ModernBertForSequenceClassification, modernbert),
    ]


def translators() -> list[tuple[type, object]]:
    t5 = T5Config(
        vocab_size=61, d_model=24, d_kv=10, d_ff=40, num_layers=3, num_heads=3,
        feed_forward_proj="gated-gelu", decoder_start_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    return [
        (MarianMTModel, MarianConfig(**BART_SIZES)),
        (BartForConditionalGeneration, BartConfig(**BART_SIZES)),
        (MBartForConditionalGeneration, MBartConfig(**BART_SIZES)),
        (T5ForConditionalGeneration, t5),
    ]


def uneven(model: torch.nn.Module) -> Mask:
    """Remove 0, 1, 2, 3, 0, … units of the sublayers, in place.

    The first feed-forward part of each stack loses all.
    """
    layers = find_sublayers(model)
    gone = [(x.name, unit) for n, x in enumerate(layers) for unit in range(n % 4)]
    empty = [x for x in layers if not x.is_attention and x.index == 0]
    gone += [(x.name, unit) for x in empty for unit in range(x.units)]
    mask = Mask.full(layers).without(gone)
    remove_units(model, layers, mask)
    return mask


def counted_macs(run) -> float:
    """Multiply-adds of a function, by torch's counter, which counts two operations for each."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops() / 2


def task_of(model) -> Task:
    return TASKS[architecture_of(model).task]


def generate(model, steps: int) -> None:
    """Encoder, then `steps` decoder steps with a cache, three rows of seven source tokens."""
    encoded = model.get_encoder()(input_ids=torch.full((3, 7), 5))
    past = None
    for _ in range(steps):
        outputs = model(
            encoder_outputs=encoded,
            decoder_input_ids=torch.full((3, 1), 4),
            past_key_values=past,
            use_cache=True,
        )
        past = outputs.past_key_values


@pytest.mark.parametrize("prune", [False, True])
@pytest.mark.parametrize(("kind", "config"), classifiers())
def test_classifier_macs_equal_torchs(kind, config, prune: bool) -> None:
    model = kind(config).eval().requires_grad_(False)
    layers = find_sublayers(model)
    mask = uneven(model) if prune else Mask.full(layers)

    shape = shape_of(task_of(model), model.config.to_dict(), mask.counts())
    ours = total_multiply_adds(shape, WorkSize(batch=3, source=7))

    assert ours == counted_macs(lambda: model(input_ids=torch.full((3, 7), 5)))


def test_products_with_positions_are_counted() -> None:
    """With as many positions as distances of seven tokens, and their projections, which our graphs
    hold as weights: two of 14 positions in each of two layers."""
    config = DebertaV2Config(
        **BERT_SIZES, relative_attention=True, position_buckets=7, pos_att_type=["c2p", "p2c"],
        share_att_key=True, pooler_hidden_size=24,
    )  # fmt: skip
    model = DebertaV2ForSequenceClassification(config).eval().requires_grad_(False)
    counts = Mask.full(find_sublayers(model)).counts()
    shape = shape_of(CLASSIFICATION, config.to_dict(), counts)
    ours = total_multiply_adds(shape, WorkSize(batch=3, source=7))
    counted = counted_macs(lambda: model(input_ids=torch.full((3, 7), 5)))
    assert ours == counted - 2 * 2 * 14 * 24 * 24


@pytest.mark.parametrize("prune", [False, True])
@pytest.mark.parametrize(("kind", "config"), translators())
def test_translator_macs_equal_torchs(kind, config, prune: bool) -> None:
    model = kind(config).eval().requires_grad_(False)
    layers = find_sublayers(model)
    mask = uneven(model) if prune else Mask.full(layers)

    shape = shape_of(task_of(model), model.config.to_dict(), mask.counts())
    ours = total_multiply_adds(shape, WorkSize(batch=3, source=7, target=4))

    assert ours == counted_macs(lambda: generate(model, 4))


def tiny(heads: int) -> ModelShape:
    """One layer of width 4, feed-forward 6, heads of size 2, three labels."""
    return ModelShape(
        width=4, head_dim=2, embedding=4, encoder_ffn=(6,), encoder_heads=(heads,), head=((4, 3),)
    )


def test_classifier_counts_by_hand() -> None:
    work = multiply_adds(tiny(heads=1), WorkSize(batch=5, source=3))

    # 15 tokens; one head of size 2; 5 x 3 x 3 = 45 attention scores.
    assert {name: count for name, count in work.items() if count} == {
        "encoder_self.0.inputs": 15 * 4 * 6,
        "encoder_self.0.scores": 45 * 2,
        "encoder_self.0.values": 45 * 2,
        "encoder_self.0.output": 15 * 2 * 4,
        "encoder_ffn.0.up": 15 * 4 * 6,
        "encoder_ffn.0.down": 15 * 6 * 4,
        "classifier.0": 5 * 4 * 3,
    }


TRANSLATOR = ModelShape(
    width=4, head_dim=2, embedding=4, encoder_ffn=(6,), encoder_heads=(0,),
    decoder_ffn=(6,), decoder_heads=(2,), cross_heads=(1,), vocabulary=9,
)  # fmt: skip


def test_decoder_work_grows_with_the_cache() -> None:
    work = multiply_adds(TRANSLATOR, WorkSize(batch=10, source=3, target=4))

    # 10 decoder rows, 2 own heads of size 2; step t attends to t + 1 tokens.
    assert work["decoder_self.0.scores"] == 40 + 80 + 120 + 160
    assert work["cross.0.scores"] == 4 * 10 * 3 * 2
    assert work["cross.keys_values"] == 10 * 3 * 4 * 4  # once, not per token
    assert work["vocabulary"] == 4 * 10 * 4 * 9
    assert work["encoder_self.0.inputs"] == 0


def test_ratios_are_of_all_batches_together() -> None:
    sizes = [WorkSize(5, 3), WorkSize(5, 8)]
    sums = [sum(total_multiply_adds(tiny(heads), size) for size in sizes) for heads in (2, 1)]

    assert ratio_of_multiply_adds(tiny(2), tiny(1), sizes) == pytest.approx(sums[0] / sums[1])
    assert ratio_of_multiply_adds(tiny(2), tiny(2), sizes) == 1


def test_a_model_that_multiplies_nothing_has_an_infinite_ratio() -> None:
    """An encoder without a head, of which no unit is left."""
    bare = dataclasses.replace(tiny(2), head=())
    empty = dataclasses.replace(bare, encoder_heads=(0,), encoder_ffn=(0,))
    assert ratio_of_multiply_adds(bare, empty, [WorkSize(1, 3)]) == math.inf
    assert ratio_of_multiply_adds(empty, empty, [WorkSize(1, 3)]) == 1


def test_source_is_not_read_without_cross_attention() -> None:
    blind, size = dataclasses.replace(TRANSLATOR, cross_heads=(0,)), WorkSize(2, 5, 3)
    work = multiply_adds(blind, size)
    decoder = sum(n for name, n in work.items() if not name.startswith("encoder"))
    assert decoder < sum(work.values())
    expected = total_multiply_adds(TRANSLATOR, size) / decoder
    assert ratio_of_multiply_adds(TRANSLATOR, blind, [size]) == pytest.approx(expected)


@pytest.mark.parametrize(("kind", "config"), classifiers() + translators())
def test_head_size_is_that_of_the_model(kind, config) -> None:
    model = kind(config)
    layers = find_sublayers(model)

    shape = shape_of(task_of(model), model.config.to_dict(), Mask.full(layers).counts())

    assert {shape.head_dim} == {layer.unit_width for layer in layers if layer.is_attention}


def test_shape_survives_the_way_through_config_json(tmp_path) -> None:
    config = BertConfig(**{**BERT_SIZES, "num_labels": 2})  # two labels are not written
    config.save_pretrained(tmp_path)
    counts = {"encoder_self.0": 3, "encoder_self.1": 1}

    stored = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    shape = shape_of(CLASSIFICATION, stored, counts)

    assert shape == shape_of(CLASSIFICATION, config.to_dict(), counts)
    assert shape.encoder_heads == (3, 1)
    assert shape.head[-1] == (24, 2)


def test_an_unknown_architecture_is_named() -> None:
    with pytest.raises(InputError, match="'gpt2'"):
        shape_of(CLASSIFICATION, {"model_type": "gpt2"}, {})
