"""Names, masks and scores of sublayers, on a translator of two and two layers written by hand."""

from __future__ import annotations

import json

import pytest

from compressor.model.sublayers import (
    KINDS,
    UNITS_OF,
    Mask,
    Scores,
    Sublayer,
    belongs,
    by_layer,
    is_self_attention,
    kind_of,
    layer_of,
    parts_of,
    renumbered,
    stack_of,
    units_of,
)


def sublayer(kind: str, index: int, **more) -> Sublayer:
    stack = "encoder" if kind.startswith("encoder") else "decoder"
    block = f"model.{stack}.layers.{index}.{kind}"
    units, width = (6, 1) if kind.endswith("ffn") else (2, 4)
    return Sublayer(kind, index, units, width, block, {}, f"{block}.out", **more)


SUBLAYERS = [kind for kind in KINDS if UNITS_OF[kind] != "tokens"]
LAYERS = [sublayer(kind, index) for kind in reversed(SUBLAYERS) for index in (1, 0)]


@pytest.mark.parametrize(
    ("name", "kind", "stack", "layer", "units", "own"),
    [
        ("encoder_self.0", "encoder_self", "encoder", "encoder.0", "heads", True),
        ("decoder_self.11", "decoder_self", "decoder", "decoder.11", "heads", True),
        ("cross.2", "cross", "decoder", "decoder.2", "heads", False),
        ("encoder_ffn.3", "encoder_ffn", "encoder", "encoder.3", "neurons", False),
        ("decoder_ffn.4", "decoder_ffn", "decoder", "decoder.4", "neurons", False),
    ],
)
def test_parts_of_names(name, kind, stack, layer, units, own):
    assert (kind_of(name), stack_of(name), layer_of(name)) == (kind, stack, layer)
    assert (units_of(name), units_of(kind), is_self_attention(kind)) == (units, units, own)
    one = sublayer(kind, int(name.rpartition(".")[2]))
    assert (one.name, one.stack, one.layer) == (name, stack, layer)
    assert (one.is_attention, one.is_self_attention) == (units == "heads", own)
    assert [pool for pool in (kind, "heads", "neurons", "cross_", None) if belongs(name, pool)] == [
        kind,
        units,
        None,
    ]


def test_pools_are_their_own_units():
    assert (units_of("heads"), units_of("neurons")) == ("heads", "neurons")


def test_what_an_attention_reads():
    read = {x.name: (x.query_ids, x.key_ids) for x in LAYERS if x.is_attention and x.index == 1}
    assert read == {
        "encoder_self.1": ("input_ids", "input_ids"),
        "decoder_self.1": ("decoder_input_ids", "decoder_input_ids"),
        "cross.1": ("decoder_input_ids", "input_ids"),
    }


def test_scores_of_attention_are_scaled_by_the_root_of_the_width_or_not_at_all():
    assert sublayer("cross", 0).scale == 0.5
    assert sublayer("cross", 0, scaled=False).scale == 1.0


def test_roles_of_joined_projections():
    assert parts_of("query+key+value") == ["query", "key", "value"]
    assert parts_of("up") == ["up"]


def test_layers_come_in_the_order_of_execution():
    assert {path: [x.name for x in members] for path, members in by_layer(LAYERS).items()} == {
        "model.encoder.layers.0": ["encoder_self.0", "encoder_ffn.0"],
        "model.encoder.layers.1": ["encoder_self.1", "encoder_ffn.1"],
        "model.decoder.layers.0": ["decoder_self.0", "cross.0", "decoder_ffn.0"],
        "model.decoder.layers.1": ["decoder_self.1", "cross.1", "decoder_ffn.1"],
    }
    assert list(by_layer(LAYERS)) == [
        f"model.{stack}.layers.{index}" for stack in ("encoder", "decoder") for index in (0, 1)
    ]


def test_a_mask_counts_what_is_kept():
    full = Mask.full(LAYERS)
    mask = full.without([("cross.0", 1), ("decoder_ffn.1", 0), ("decoder_ffn.1", 5)])
    assert full.count() == full.total() == mask.total() == 6 * 2 + 4 * 6
    assert (mask.count(), mask.count("heads"), mask.count("neurons")) == (33, 11, 22)
    assert (mask.count("cross"), mask.total("cross"), mask.total("neurons")) == (3, 4, 24)
    assert (mask.kept("cross.0"), mask.kept("decoder_ffn.1")) == ([0], [1, 2, 3, 4])
    assert mask.counts() == {**full.totals(), "cross.0": 1, "decoder_ffn.1": 4}
    assert mask.kinds() == SUBLAYERS
    assert mask.with_tokens().kinds() == list(KINDS)
    assert Mask.full(x for x in LAYERS if x.kind == "cross").kinds() == ["cross"]


def test_a_mask_survives_json():
    mask = Mask.full(LAYERS).without([("cross.0", 1), ("encoder_ffn.1", 0)])
    kept, totals = json.loads(json.dumps([mask.to_json(), mask.totals()]))
    assert kept["cross.0"] == [0]
    assert Mask.from_json(kept, totals) == mask


@pytest.mark.parametrize(
    ("units", "layers", "text"),
    [
        ([], [], "12 of 12 heads"),
        ([("cross.0", 0)], [], "11 of 12 heads"),
        ([("encoder_ffn.0", 0)], [], "12 of 12 heads, 23 of 24 neurons"),
        ([], ["decoder.1"], "8 of 12 heads, 18 of 24 neurons, 3 of 4 layers"),
        ([("encoder_tokens.0", n) for n in (7, 8, 9)], [], "12 of 12 heads, 70% of tokens"),
    ],
)
def test_a_mask_in_words(units, layers, text):
    assert str(Mask.full(LAYERS).with_tokens().without(units).without_layers(layers)) == text


def test_many_units_have_commas_and_no_units_no_words():
    ffn = Sublayer("encoder_ffn", 0, 3072, 1, "", {}, "encoder.0")
    assert str(Mask.full([ffn]).without([("encoder_ffn.0", 7)])) == "3,071 of 3,072 neurons"
    assert str(Mask.full([ffn])) == ""


def test_layers_that_are_dropped_keep_no_unit_and_the_others_move_up():
    mask = Mask.full(LAYERS).without([("cross.1", 0)]).without_layers(["decoder.0"])
    assert mask.layers() == ["encoder.0", "encoder.1", "decoder.0", "decoder.1"]
    assert mask.dropped == {"decoder.0"}
    for kind in ("decoder_self", "cross", "decoder_ffn"):
        assert mask.kept(f"{kind}.0") == []
    again = mask.without_layers(["encoder.1"])
    assert again.dropped == {"decoder.0", "encoder.1"}
    left = again.of_layers_left()
    assert left.dropped == frozenset()
    assert left.totals() == {
        "encoder_self.0": 2,
        "encoder_ffn.0": 6,
        "decoder_self.0": 2,
        "cross.0": 2,
        "decoder_ffn.0": 6,
    }
    assert left.kept("cross.0") == [1]  # of what was the second layer
    assert again.without([("encoder_self.0", 0)]).dropped == again.dropped


def test_values_are_numbered_anew():
    values = {f"cross.{index}": index for index in range(12)}
    dropped = {"decoder.0", "decoder.10"}
    assert renumbered(values, dropped) == {
        f"cross.{new}": old for new, old in enumerate([*range(1, 10), 11])
    }
    assert renumbered(values, set()) == values


def test_scores_ascend_with_ties_by_position():
    scores = Scores({"cross.0": (2.0, 1.0), "cross.1": (1.0, -3.0)}, "taylor", "s", {"seconds": 1})
    assert scores.ascending() == [("cross.1", 1), ("cross.0", 1), ("cross.1", 0), ("cross.0", 0)]


def test_scores_survive_json():
    scores = Scores({"cross.0": (2.0, 1.0)}, "taylor", "s", {"seconds": 1.5})
    data = json.loads(json.dumps(scores.to_json()))
    assert data.keys() == {"schema", "method", "signature", "cost", "scores"}
    assert data["schema"] == 2
    again = Scores.from_json(data)
    assert again == scores
    assert (again.cost, again.weights) == ({"seconds": 1.5}, "")
    assert Scores.from_json({**data, "weights": "abc"}).weights == "abc"
    with pytest.raises(KeyError):
        Scores.from_json({"scores": {}})
