"""The supported architectures: one entry each, with all that the project must know about one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from compressor.errors import InputError
from compressor.model.architecture import (
    ENCODER,
    TRANSLATOR,
    Architecture,
    DecoderStack,
    PositionBias,
    Stack,
    SublayerPaths,
    feed_forward,
    head_in,
)
from compressor.model.sublayers import Kind, is_self_attention


def _attention(
    kind: Kind, layer: str, block: str, names: str, output: str, unit_count: str, **more: Any
) -> SublayerPaths:
    """An attention whose block holds a projection for each of query, key and value, by `names`."""
    roles = zip(("query", "key", "value"), names.split(), strict=True)
    inputs = {role: f"{block}.{name}" for role, name in roles}
    return SublayerPaths(kind, layer, block, inputs, output, unit_count, **more)


_BERT_ATTENTION = _attention(
    "encoder_self",
    "encoder.layer.{i}.attention",
    "self",
    "query key value",
    "output.dense",
    "num_attention_heads",
    width="all_head_size",
)
_BERT_FEED_FORWARD = feed_forward(
    "encoder_ffn", "encoder.layer.{i}", "intermediate.dense", "output.dense", block="intermediate"
)


def _refuse_bert(config: Any) -> str | None:
    if getattr(config, "position_embedding_type", "absolute") is not None:
        return None
    return "position_embedding_type is null: transformers 4 then adds no positions, and 5 does"


BERT = Architecture(
    base="bert",
    sublayers=(_BERT_ATTENTION, _BERT_FEED_FORWARD),
    inputs=("input_ids", "attention_mask", "token_type_ids"),
    unused_weights=(r"^cls\.",),
    refuse=_refuse_bert,
)

ROBERTA = replace(
    BERT,
    base="roberta",
    positions_after_padding=True,
    inputs=("input_ids", "attention_mask"),
    unused_weights=(r"^lm_head\.", r"^(roberta\.)?pooler\.dense\."),
)

ELECTRA = replace(
    BERT,
    base="electra",
    embedding_width="embedding_size",
    unused_weights=(r"^(discriminator_predictions|generator_predictions|generator_lm_head)\.",),
)


def _refuse_mpnet(config: Any) -> str | None:
    id = config.pad_token_id
    return None if id == 1 else f"pad_token_id is {id}, and it counts positions from token 1 on"


MPNET = replace(
    ROBERTA,
    base="mpnet",
    sublayers=(
        replace(
            _BERT_ATTENTION,
            block="attn",
            inputs={"query": "attn.q", "key": "attn.k", "value": "attn.v"},
            output="attn.o",
            position_bias="stack",
        ),
        _BERT_FEED_FORWARD,
    ),
    unused_weights=(r"^lm_head\.", r"^(mpnet\.)?pooler\.dense\."),
    refuse=_refuse_mpnet,
    layers_return="tuple",
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
    unused_weights=(r"^decoder\.", r"^head\.(dense|norm)\."),
    refuse=_refuse_modernbert,
    scores="rotated",
    attention_norm="attn_norm",
    # The normalization before the first attention is left out.
    first_layer_stays=lambda config: True,
    layer_lists=("layer_types",),
)


def _refuse_deberta(config: Any) -> str | None:
    types = config.type_vocab_size
    return f"type_vocab_size is {types}, and graphs are made without token types" if types else None


def _deberta_products(config: Mapping[str, Any]) -> int:
    kinds = config.get("pos_att_type") or ()
    return sum(kind in kinds for kind in ("c2p", "p2c")) if config.get("relative_attention") else 0


DEBERTA = replace(
    BERT,
    base="deberta",
    sublayers=(
        replace(
            _BERT_ATTENTION,
            inputs={"query": "self.query_proj", "key": "self.key_proj", "value": "self.value_proj"},
            optional={"position_key": "self.pos_key_proj", "position_query": "self.pos_query_proj"},
        ),
        _BERT_FEED_FORWARD,
    ),
    embedding_width="embedding_size",
    least_types=0,
    inputs=("input_ids", "attention_mask"),
    unused_weights=(r"^(lm_predictions|mask_predictions|cls)\.", r"position_embeddings"),
    refuse=_refuse_deberta,
    layers_return="tuple",
    # A convolution of the embeddings is added behind the first layer.
    first_layer_stays=lambda config: getattr(config, "conv_kernel_size", 0) > 0,
    needs_all_tokens=lambda config: (
        getattr(config, "conv_kernel_size", 0) > 0 and config.num_hidden_layers == 1
    ),
    scores="disentangled",
    position_products=_deberta_products,
)

DISTILBERT = Architecture(
    base="distilbert",
    sublayers=(
        _attention(
            "encoder_self",
            "transformer.layer.{i}",
            "attention",
            "q_lin k_lin v_lin",
            "attention.out_lin",
            "n_heads",
        ),
        feed_forward("encoder_ffn", "transformer.layer.{i}", "ffn.lin1", "ffn.lin2"),
    ),
    encoder=Stack("n_layers", "n_heads", "hidden_dim"),
    width="dim",
    computed_positions="sinusoidal_pos_embds",
    unused_weights=(r"^vocab_(transform|layer_norm|projector)\.",),
)


def _bart_attention(kind: Kind, layer: str, block: str) -> SublayerPaths:
    names = "q_proj k_proj v_proj"
    return _attention(kind, layer, block, names, f"{block}.out_proj", "num_heads")


def _t5_attention(kind: Kind, layer: str, block: str = "SelfAttention") -> SublayerPaths:
    return _attention(
        kind,
        layer,
        block,
        "q k v",
        f"{block}.o",
        "n_heads",
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
    bias: PositionBias | None = "every_layer" if is_self_attention(paths.kind) else None
    return replace(paths, position_bias=bias, stand_in="attention")


def _refuse_bart(config: Any) -> str | None:
    # Versions of transformers before 4 had other models under the same name.
    if getattr(config, "normalize_before", False):
        return "normalize_before is true, as in mbart and pegasus, which transformers ignores here"
    return None


_DECODER = DecoderStack(
    "decoder_layers", "decoder_attention_heads", "decoder_ffn_dim", logits_bias="final_logits_bias"
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
    width="d_model",
    refuse=_refuse_bart,
)
MARIAN = replace(BART, computed_positions=True)

# As BART, with the normalization before each sublayer.
PEGASUS = replace(MARIAN, refuse=lambda config: None)
MBART = replace(PEGASUS, computed_positions=False, decoder=replace(_DECODER, shifts_language=True))


def _refuse_m2m100(config: Any) -> str | None:
    # Older versions compare a step's position with the size of a table, which cannot be exported.
    major, minor, *_ = version("transformers").split(".")
    return "it needs transformers 5.20 or newer" if (int(major), int(minor)) < (5, 20) else None


# M2M100 and NLLB. Old checkpoints store the table of positions.
M2M100 = replace(
    PEGASUS,
    refuse=_refuse_m2m100,
    decoder=replace(_DECODER, logits_bias=None),
    unused_weights=(r"^model\.(en|de)coder\.embed_positions\.weights$",),
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
    width="d_model",
    head_width="d_kv",
    positions=None,
    feed_forward="relu",
    unused_weights=(r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.",),
    untied_weights=frozenset({"lm_head.weight"}),
)

MT5 = replace(T5, feed_forward="gated-gelu", decoder=replace(_T5_DECODER, output_scale=None))

UMT5 = replace(
    T5,
    sublayers=tuple(map(_umt5_sublayer, T5.sublayers)),
    feed_forward="gated-gelu",
    decoder=replace(_T5_DECODER, output_scale="tie_word_embeddings"),
)

# By `config.model_type`.
ARCHITECTURES: dict[str, Architecture] = {
    "marian": MARIAN,
    "bart": BART,
    "mbart": MBART,
    "bert": BERT,
    "roberta": ROBERTA,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "mpnet": MPNET,
    "modernbert": MODERNBERT,
    "deberta-v2": DEBERTA,
    "t5": T5,
    "mt5": MT5,
    "umt5": UMT5,
    "pegasus": PEGASUS,
    "m2m_100": M2M100,
}
# Architectures that cannot be supported as they are, with the reason.
_REASONS = {
    "albert": ", since all of its layers share one set of weights, so that a unit cannot leave one "
    "layer alone",
    "nllb-moe": ", since its feed-forward parts are experts, and each token takes a few of them; "
    "NLLB without experts is m2m_100",
    "none": "; its config.json has no model_type",
}


def architecture(model_type: str, where: str = "the checkpoint") -> Architecture:
    """The entry of a `config.model_type`.

    Args:
        model_type: of the configuration.
        where: what has it, for the message.

    Raises:
        InputError: the architecture is not supported; the message lists those that are.
    """
    if model_type not in ARCHITECTURES:
        raise InputError(
            f"architecture {model_type!r} of {where} is not supported"
            f"{_REASONS.get(model_type, '')}; supported are these encoders and encoder–decoders "
            f"of texts: {', '.join(sorted(ARCHITECTURES))}",
            id="architecture-unsupported",
        )
    return ARCHITECTURES[model_type]


def architecture_of(model: Any) -> Architecture:
    """The entry of a model, for its own head and feed-forward parts."""
    config = model.config
    entry = architecture(config.model_type)
    entry = entry.with_feed_forward(getattr(config, "feed_forward_proj", None))
    if not hasattr(model, entry.base):
        return entry.for_class(ENCODER.auto_class)
    return entry.for_class((head_in(type(model).__name__) or entry.head).auto_class)
