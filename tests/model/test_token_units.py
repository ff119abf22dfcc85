"""Of which models tokens can be units; the others say why not."""

from __future__ import annotations

from typing import Any

import pytest

from compressor.model.architectures import architecture
from compressor.model.token_units import why_all_tokens
from tests.helpers.heads import HEADS, tiny_head
from tests.helpers.tiny import BUILDERS, RELATIVES, tiny_model

REASONS = {
    "decoder": "its decoder reads the states of all tokens",
    "deberta-v2": "its attention scores need the distances of all tokens",
    "head": "its head reads the states of all tokens",
}


@pytest.mark.parametrize("name", [*BUILDERS, *RELATIVES])
def test_tokens_can_be_units_where_one_of_them_is_read(name: str) -> None:
    model: Any = tiny_model(name)
    key = "decoder" if architecture(model.config.model_type).decoder else model.config.model_type
    if key == "modernbert":
        assert why_all_tokens(model) == REASONS["head"]  # their mean
        model.config.classifier_pooling = "cls"
    assert why_all_tokens(model) == REASONS.get(key, "")


@pytest.mark.parametrize("task", HEADS)
def test_heads_that_read_all_tokens_are_a_reason(task: str) -> None:
    assert why_all_tokens(tiny_head("bert", task)) == REASONS["head"]


def test_one_layer_hands_on_nothing() -> None:
    model: Any = tiny_model("bert")
    model.bert.encoder.layer = model.bert.encoder.layer[:2]
    assert why_all_tokens(model) == ""
    model.bert.encoder.layer = model.bert.encoder.layer[:1]
    assert "one layer" in why_all_tokens(model)
