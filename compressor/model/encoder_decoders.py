"""Entries of encoder-decoders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from compressor.model.architecture import (
    Architecture,
    DecoderStack,
    PositionBias,
    Positions,
    Sizes,
    Stack,
    SublayerPaths,
    Weights,
    feed_forward,
)
from compressor.model.heads import TRANSLATOR
from compressor.model.sublayers import Kind


def _bart_attention(kind: Kind, layer: str, block: str) -> SublayerPaths:
    return SublayerPaths(
        kind=kind,
        layer=layer,
        block=block,
        inputs={"query": f"{block}.q_proj", "key": f"{block}.k_proj", "value": f"{block}.v_proj"},
        output=f"{block}.out_proj",
        unit_count="num_heads",
    )


def _t5_attention(kind: Kind, layer: str, block: str = "SelfAttention") -> SublayerPaths:
    return SublayerPaths(
        kind=kind,
        layer=layer,
        block=block,
        inputs={"query": f"{block}.q", "key": f"{block}.k", "value": f"{block}.v"},
        output=f"{block}.o",
        unit_count="n_heads",
        width="inner_dim",
        # Cross-attention has no positions, but there too each layer passes zeros on to the next.
        position_bias="first_layer",
        scaled=False,
        stand_in="bias_to_hand_on",
    )


def _t5_feed_forward(kind: Kind, layer: str) -> SublayerPaths:
    block = "DenseReluDense"
    return feed_forward(kind, layer, f"{block}.wi", f"{block}.wo", block=block)


def _umt5_sublayer(paths: SublayerPaths) -> SublayerPaths:
    if paths.position_bias is None:
        return paths
    bias: PositionBias | None = None if paths.kind == "cross" else "every_layer"
    return replace(paths, position_bias=bias, stand_in="attention")


def _refuse_bart(config: Any) -> str | None:
    # Versions of transformers before 4 had other models under the same name.
    if getattr(config, "normalize_before", False):
        return "normalize_before is true, as in mbart and pegasus, which transformers ignores here"
    return None


_DECODER = DecoderStack(
    "decoder_layers",
    "decoder_attention_heads",
    "decoder_ffn_dim",
    logits_bias="final_logits_bias",
)
BART = Architecture(
    head=TRANSLATOR,
    base="model",
    sublayers=(
        _bart_attention("encoder_self", "encoder.layers.{i}", "self_attn"),
        _bart_attention("decoder_self", "decoder.layers.{i}", "self_attn"),
        _bart_attention("cross", "decoder.layers.{i}", "encoder_attn"),
        feed_forward("encoder_ffn", "encoder.layers.{i}", "fc1", "fc2"),
        feed_forward("decoder_ffn", "decoder.layers.{i}", "fc1", "fc2"),
    ),
    encoder=Stack("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"),
    decoder=_DECODER,
    sizes=Sizes("d_model"),
    refuse=_refuse_bart,
)
MARIAN = replace(BART, positions=Positions(computed=True))

# As BART, with the normalization before each sublayer.
PEGASUS = replace(MARIAN, refuse=lambda config: None)
MBART = replace(PEGASUS, positions=Positions(), decoder=replace(_DECODER, shifts_language=True))

# M2M100 and NLLB. Old checkpoints store the table of positions.
M2M100 = replace(
    PEGASUS,
    decoder=replace(_DECODER, logits_bias=None),
    weights=Weights((r"^model\.(en|de)coder\.embed_positions\.weights$",)),
)

_T5_DECODER = DecoderStack(
    "num_decoder_layers", "num_heads", "d_ff", output_scale="scale_decoder_outputs", not_deeper=True
)
T5 = Architecture(
    head=TRANSLATOR,
    base="",
    sublayers=(
        _t5_attention("encoder_self", "encoder.block.{i}.layer.0"),
        _t5_attention("decoder_self", "decoder.block.{i}.layer.0"),
        _t5_attention("cross", "decoder.block.{i}.layer.1", "EncDecAttention"),
        _t5_feed_forward("encoder_ffn", "encoder.block.{i}.layer.1"),
        _t5_feed_forward("decoder_ffn", "decoder.block.{i}.layer.2"),
    ),
    encoder=Stack("num_layers", "num_heads", "d_ff"),
    decoder=_T5_DECODER,
    sizes=Sizes("d_model", head_width="d_kv"),
    positions=Positions(None),
    feed_forward="relu",
    weights=Weights(
        unused=(r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.",),
        untied=frozenset({"lm_head.weight"}),
    ),
)

MT5 = replace(T5, feed_forward="gated-gelu", decoder=replace(_T5_DECODER, output_scale=None))

UMT5 = replace(
    T5,
    sublayers=tuple(map(_umt5_sublayer, T5.sublayers)),
    feed_forward="gated-gelu",
    decoder=replace(_T5_DECODER, output_scale="tie_word_embeddings"),
)
