"""Entries of encoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from compressor.model.architecture import (
    Architecture,
    Layers,
    Positions,
    Sizes,
    Stack,
    SublayerPaths,
    Weights,
    feed_forward,
)

BERT = Architecture(
    base="bert",
    sublayers=(
        SublayerPaths(
            kind="encoder_self",
            layer="encoder.layer.{i}.attention",
            block="self",
            inputs={"query": "self.query", "key": "self.key", "value": "self.value"},
            output="output.dense",
            unit_count="num_attention_heads",
            width="all_head_size",
        ),
        feed_forward(
            "encoder_ffn",
            "encoder.layer.{i}",
            "intermediate.dense",
            "output.dense",
            block="intermediate",
        ),
    ),
    inputs=("input_ids", "attention_mask", "token_type_ids"),
    weights=Weights((r"^cls\.",)),
)

ROBERTA = replace(
    BERT,
    base="roberta",
    positions=Positions(after_padding=True),
    inputs=("input_ids", "attention_mask"),
    weights=Weights((r"^lm_head\.", r"^(roberta\.)?pooler\.dense\.")),
)

ELECTRA = replace(
    BERT,
    base="electra",
    sizes=Sizes(embedding="embedding_size"),
    weights=Weights((r"^(discriminator_predictions|generator_predictions|generator_lm_head)\.",)),
)


def _refuse_mpnet(config: Any) -> str | None:
    if config.pad_token_id == 1:
        return None
    return f"pad_token_id is {config.pad_token_id}, and MPNet counts positions from token 1 on"


MPNET = replace(
    ROBERTA,
    base="mpnet",
    sublayers=(
        SublayerPaths(
            kind="encoder_self",
            layer="encoder.layer.{i}.attention",
            block="attn",
            inputs={"query": "attn.q", "key": "attn.k", "value": "attn.v"},
            output="attn.o",
            unit_count="num_attention_heads",
            width="all_head_size",
            position_bias="stack",
        ),
        BERT.sublayers[1],
    ),
    weights=Weights((r"^lm_head\.", r"^(mpnet\.)?pooler\.dense\.")),
    refuse=_refuse_mpnet,
    layers=Layers(returns="tuple"),
    scores="stack_bias",
)


def _refuse_modernbert(config: Any) -> str | None:
    width = config.hidden_size // config.num_attention_heads
    if getattr(config, "head_dim", None) not in (None, width):
        return f"head_dim is {config.head_dim}, and its heads have a width of {width}"
    kinds = {kind: x["rope_type"] for kind, x in config.rope_parameters.items() if x is not None}
    if set(kinds.values()) == {"default"}:
        return None
    return f"its rotary positions are scaled ({kinds})"


MODERNBERT = Architecture(
    base="model",
    sublayers=(
        SublayerPaths(
            kind="encoder_self",
            layer="layers.{i}",
            block="attn",
            inputs={"query+key+value": "attn.Wqkv"},
            output="attn.Wo",
            unit_count=None,
            unit_width="head_dim",
        ),
        replace(
            feed_forward("encoder_ffn", "layers.{i}", "mlp.Wi", "mlp.Wo"),
            inputs={"gate+up": "mlp.Wi"},
        ),
    ),
    weights=Weights((r"^decoder\.", r"^head\.(dense|norm)\.")),
    refuse=_refuse_modernbert,
    scores="rotated",
    # The normalization before the first attention is left out.
    layers=Layers(first_stays=lambda config: True, lists=("layer_types",)),
)


def _refuse_deberta(config: Any) -> str | None:
    if not config.type_vocab_size:
        return None
    return f"type_vocab_size is {config.type_vocab_size}, and graphs are made without token types"


def _deberta_products(config: Mapping[str, Any]) -> int:
    kinds = config.get("pos_att_type") or ()
    return sum(kind in kinds for kind in ("c2p", "p2c")) if config.get("relative_attention") else 0


DEBERTA = replace(
    BERT,
    base="deberta",
    sublayers=(
        SublayerPaths(
            kind="encoder_self",
            layer="encoder.layer.{i}.attention",
            block="self",
            inputs={"query": "self.query_proj", "key": "self.key_proj", "value": "self.value_proj"},
            optional={"position_key": "self.pos_key_proj", "position_query": "self.pos_query_proj"},
            output="output.dense",
            unit_count="num_attention_heads",
            width="all_head_size",
        ),
        BERT.sublayers[1],
    ),
    sizes=Sizes(embedding="embedding_size", least_types=0),
    inputs=("input_ids", "attention_mask"),
    weights=Weights((r"^(lm_predictions|mask_predictions|cls)\.", r"position_embeddings")),
    refuse=_refuse_deberta,
    # A convolution of the embeddings is added behind the first layer.
    layers=Layers("tuple", lambda config: getattr(config, "conv_kernel_size", 0) > 0),
    scores="disentangled",
    position_products=_deberta_products,
)

DISTILBERT = Architecture(
    base="distilbert",
    sublayers=(
        SublayerPaths(
            kind="encoder_self",
            layer="transformer.layer.{i}",
            block="attention",
            inputs={
                "query": "attention.q_lin",
                "key": "attention.k_lin",
                "value": "attention.v_lin",
            },
            output="attention.out_lin",
            unit_count="n_heads",
        ),
        feed_forward("encoder_ffn", "transformer.layer.{i}", "ffn.lin1", "ffn.lin2"),
    ),
    encoder=Stack("n_layers", "n_heads", "hidden_dim"),
    sizes=Sizes("dim"),
    positions=Positions(computed="sinusoidal_pos_embds"),
    weights=Weights((r"^vocab_(transform|layer_norm|projector)\.",)),
)
