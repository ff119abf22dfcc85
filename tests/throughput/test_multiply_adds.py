"""Counted work, compared with torch's own counter on real models and with hand calculations."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from compressor.model.architectures import architecture_of
from compressor.model.checkpoint import open_checkpoint
from compressor.model.layers import find_sublayers
from compressor.model.one_token import read_one_token
from compressor.model.sublayers import Mask
from compressor.model.surgery import remove_units
from compressor.tasks import TASKS, Example
from compressor.throughput.inspection import unit_costs
from compressor.throughput.multiply_adds import (
    ModelShape,
    WorkSize,
    encoder_share,
    multiply_adds,
    ratio_of_multiply_adds,
    shape_of,
    total_multiply_adds,
)
from tests.helpers import toy
from tests.helpers.tiny import tiny_model, uneven_mask

CLASSIFIERS = ("bert", "roberta", "electra", "distilbert", "mpnet", "modernbert")
TRANSLATORS = ("marian", "bart", "mbart", "umt5")
CLASSIFICATION = TASKS["classification"]


def counted_macs(run) -> float:
    """Multiply-adds of a function, by torch's counter, which counts two operations for each."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops() / 2


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


def with_tokens(mask: Mask, *tenths: int) -> Mask:
    """The mask with so many tenths of the tokens that the first layers hand on."""
    gone = [(f"encoder_tokens.{i}", x) for i, n in enumerate(tenths) for x in range(n, 10)]
    return mask.with_tokens().without(gone) if tenths else mask


@pytest.mark.parametrize("name", [*CLASSIFIERS, *TRANSLATORS])
def test_macs_of_pruned_models_equal_torchs(name: str) -> None:
    model: Any = tiny_model(name).requires_grad_(False)
    model.set_attn_implementation("eager")  # plain matrix products, which the counter sees
    layers = find_sublayers(model)
    mask = uneven_mask(layers)
    remove_units(model, layers, mask)
    shape = shape_of(TASKS[architecture_of(model).task], model.config.to_dict(), mask.counts())
    if name in TRANSLATORS:
        ours = total_multiply_adds(shape, WorkSize(batch=3, source=7, target=4))
        assert ours == counted_macs(lambda: generate(model, 4))
    else:
        ours = total_multiply_adds(shape, WorkSize(batch=3, source=7))
        assert ours == counted_macs(lambda: model(input_ids=torch.full((3, 7), 5)))


@pytest.mark.parametrize("name", ["marian", "umt5"])
def test_the_encoders_share_is_what_torch_counts_before_the_first_token(name: str) -> None:
    """With the keys and values of 21 source tokens in every layer, which no step computes again."""
    model: Any = tiny_model(name).requires_grad_(False)
    model.set_attn_implementation("eager")
    layers = find_sublayers(model)
    mask = uneven_mask(layers)
    remove_units(model, layers, mask)
    shape = shape_of(TASKS[architecture_of(model).task], model.config.to_dict(), mask.counts())
    encoder = counted_macs(lambda: model.get_encoder()(input_ids=torch.full((3, 7), 5)))
    heads = sum(mask.counts()[x.name] for x in layers if x.kind == "cross")
    width = next(x.unit_width for x in layers if x.kind == "cross")
    expected = encoder + 2 * 21 * 32 * heads * width
    sizes = [WorkSize(batch=3, source=7, target=4)] * 2
    total = counted_macs(lambda: generate(model, 4))
    assert encoder_share(shape, sizes) == pytest.approx(expected / total)


@pytest.mark.parametrize("name", ["bert", "distilbert", "mpnet"])
def test_a_last_layer_of_one_token_is_counted_as_torch_does(name: str) -> None:
    model: Any = tiny_model(name).requires_grad_(False)
    read_one_token(model)
    model.set_attn_implementation("eager")
    counts = Mask.full(find_sublayers(model)).counts()
    shape = shape_of(CLASSIFICATION, model.config.to_dict(), counts, one_token=True)
    counted = counted_macs(lambda: model(input_ids=torch.full((3, 7), 5)))
    # The counter does not see the products of the kernel for the one query: scores, and values.
    assert total_multiply_adds(shape, WorkSize(batch=3, source=7)) == counted + 2 * 3 * 7 * 32


@pytest.mark.parametrize("name", ["bert", "distilbert", "mpnet"])
def test_layers_that_hand_on_fewer_tokens_are_counted_as_torch_does(name: str) -> None:
    """Of eleven tokens 0.7 and then 0.2 are 8 and 3, rounded up."""
    model: Any = tiny_model(name).requires_grad_(False)
    read_one_token(model)
    model.set_attn_implementation("eager")
    layers = find_sublayers(model)
    units = [("encoder_self.0", 1), ("encoder_ffn.1", 3)]
    mask = with_tokens(Mask.full(layers), 7, 2).without(units)
    remove_units(model, layers, mask)
    shape = shape_of(CLASSIFICATION, model.config.to_dict(), mask.counts(), one_token=True)
    counted = counted_macs(lambda: model(input_ids=torch.full((3, 11), 5)))
    # The counter does not see the products of the kernel for the one query, but it sees the sum
    # over queries of what tokens receive, in layers with 3 and 4 heads.
    unseen, sums = 2 * 3 * 3 * 32, 3 * (3 * 11 * 11 + 4 * 8 * 8)
    assert total_multiply_adds(shape, WorkSize(batch=3, source=11)) == counted + unseen - sums


def test_the_work_of_layers_with_fewer_tokens_by_hand() -> None:
    """Two rows of five tokens, of which three layers work on 5, then on 3, then on 1."""
    model = ModelShape(
        width=4,
        head_dim=2,
        embedding=4,
        encoder_heads=(2, 1, 2),
        encoder_ffn=(6, 5, 7),
        handed_on=(5, 1),
        one_token=True,
    )
    first = 2 * (5 * 3 * 4 * 4 + 2 * 5 * 5 * 4 + 3 * 4 * 4)
    second = 2 * (3 * 3 * 4 * 2 + 2 * 3 * 3 * 2 + 1 * 4 * 2)
    third = 2 * (1 * 2 * 4 * 4 + 1 * 4 * 4 + 2 * 1 * 1 * 4 + 1 * 4 * 4)
    assert multiply_adds(model, WorkSize(2, 5)) == {
        "encoder_self": first + second + third,
        "encoder_ffn": 2 * 2 * 4 * (3 * 6 + 1 * 5 + 1 * 7),
        "classifier": 0,
    }
    # A later layer cannot hand on what it does not get, and one token always goes on.
    more = dataclasses.replace(model, handed_on=(5, 9))
    both = dataclasses.replace(model, handed_on=(5, 5))
    assert multiply_adds(more, WorkSize(2, 5)) == multiply_adds(both, WorkSize(2, 5))
    none = dataclasses.replace(model, handed_on=(5, 0))
    assert multiply_adds(none, WorkSize(2, 5)) == multiply_adds(model, WorkSize(2, 5))


def test_products_with_positions_are_counted() -> None:
    """With as many positions as distances of seven tokens, and their projections, which our graphs
    hold as weights: two of 14 positions in each of three layers."""
    model = tiny_model("deberta-v2")
    config = model.config
    config.position_buckets, config.conv_kernel_size = 7, 0
    model = type(model)(config).eval().requires_grad_(False)
    counts = Mask.full(find_sublayers(model)).counts()
    shape = shape_of(CLASSIFICATION, config.to_dict(), counts)
    ours = total_multiply_adds(shape, WorkSize(batch=3, source=7))
    counted = counted_macs(lambda: model(input_ids=torch.full((3, 7), 5)))
    assert ours == counted - 3 * 2 * 14 * 32 * 32


def test_the_work_of_each_part_by_hand() -> None:
    """Width 4, two heads of 2 columns, 6 neurons; two rows of three tokens, then of two more."""
    model = ModelShape(
        width=4,
        head_dim=2,
        embedding=8,
        encoder_heads=(2,),
        encoder_ffn=(6,),
        head=((4, 4), (4, 3)),
        position_products=1,
    )
    attention = 4 * (6 * 4 * 4) + 2 * (6 * 3 * 4)  # projections; scores and values
    assert multiply_adds(model, WorkSize(2, 3)) == {
        "embeddings": 6 * 8 * 4,
        "encoder_self": attention + 6 * 2 * 3 * 4,
        "encoder_ffn": 2 * 6 * 4 * 6,
        "classifier": 2 * (4 * 4 + 4 * 3),
    }
    on_tokens = dataclasses.replace(model, head_on_tokens=True)
    assert multiply_adds(on_tokens, WorkSize(2, 3))["classifier"] == 6 * (4 * 4 + 4 * 3)
    translator = ModelShape(
        width=4,
        head_dim=2,
        embedding=4,
        encoder_heads=(2,),
        encoder_ffn=(6,),
        decoder_heads=(1,),
        cross_heads=(2,),
        decoder_ffn=(5,),
        vocabulary=9,
        gated=True,
    )
    assert multiply_adds(translator, WorkSize(2, 3, 2)) == {
        "encoder_self": attention,
        "encoder_ffn": 3 * 6 * 4 * 6,
        # Four rows in two steps, of which the second sees two tokens.
        "decoder_self": 4 * (4 * 4 * 2) + 2 * (2 * 3 * 2),
        "cross": 2 * (6 * 4 * 4) + 2 * (4 * 4 * 4) + 2 * (4 * 3 * 4),
        "decoder_ffn": 3 * 4 * 4 * 5,
        "vocabulary": 4 * 4 * 9,
    }


def test_an_encoder_that_no_cross_attention_reads_does_not_count() -> None:
    dense = ModelShape(
        width=4,
        head_dim=2,
        embedding=4,
        encoder_heads=(2,),
        encoder_ffn=(6,),
        decoder_heads=(1,),
        cross_heads=(2,),
        decoder_ffn=(5,),
        vocabulary=9,
    )
    without = dataclasses.replace(dense, cross_heads=(0,))
    size = WorkSize(2, 3, 2)
    work = multiply_adds(without, size)
    left = work["decoder_self"] + work["decoder_ffn"] + work["vocabulary"]
    expected = total_multiply_adds(dense, size) / left
    assert ratio_of_multiply_adds(dense, without, [size]) == pytest.approx(expected)


def test_a_model_that_multiplies_nothing_has_an_infinite_ratio() -> None:
    """An encoder without a head, of which no unit is left."""
    bare = ModelShape(width=4, head_dim=2, embedding=4, encoder_ffn=(6,), encoder_heads=(1,))
    empty = dataclasses.replace(bare, encoder_heads=(0,), encoder_ffn=(0,))
    assert ratio_of_multiply_adds(bare, empty, [WorkSize(1, 3)]) == math.inf
    assert ratio_of_multiply_adds(empty, empty, [WorkSize(1, 3)]) == 1


@pytest.mark.parametrize("tenths", [(), (10, 10), (8, 3), (3, 1)])
@pytest.mark.parametrize("dropped", [(), ("encoder.2",), ("encoder.0",)])
@pytest.mark.parametrize("name", ["bert", "deberta-v2"])
def test_shares_of_masks_are_those_of_the_models_that_they_leave(
    name: str, dropped: tuple[str, ...], tenths: tuple[int, ...], tmp_path: Path
) -> None:
    """Units of the last layer, which computes one token, cost less; another one may be the last.
    Others cost less with fewer tokens."""
    checkpoint = open_checkpoint(str(toy.checkpoint(tmp_path, name)))
    examples = [Example(0, (5,) * 7, (0,)), Example(1, (5,) * 20, (0,))]
    costs = unit_costs(checkpoint, CLASSIFICATION, examples)
    units = [("encoder_self.1", 1), ("encoder_self.2", 0), ("encoder_ffn.2", 3)]
    full = Mask.full(checkpoint.layers)
    mask = with_tokens(full, *tenths).without(units).without_layers(dropped)

    def work(of: Mask) -> int:
        config = checkpoint.model.config.to_dict()
        shape = shape_of(CLASSIFICATION, config, of.counts(), one_token=True)
        sizes = [WorkSize(1, len(example.source)) for example in examples]
        return sum(total_multiply_adds(shape, size) for size in sizes)

    wanted = work(mask.of_layers_left()) / work(full)
    assert costs.share(mask) == pytest.approx(wanted, rel=1e-12)
