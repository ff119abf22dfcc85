"""Tiny models of every supported architecture, with weights of realistic scale.

Default initialisation (0.02) makes attention nearly uniform and logits nearly zero, which hides a
wrong head count below any tolerance; these weights give sharp attention and logits of order one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers as t
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedTokenizerFast

from compressor.model.architectures import architecture
from compressor.model.sublayers import Mask, Sublayer

LABELS = 5
_ENCODER = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 40, "num_labels": LABELS,
    "pad_token_id": 0,
}  # fmt: skip
_TRANSLATOR = {
    "vocab_size": 60, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40, "max_position_embeddings": 40, "pad_token_id": 1, "eos_token_id": 2,
    "bos_token_id": 0, "forced_eos_token_id": None, "num_beams": None,
}  # fmt: skip
# Of T5, 4 heads of 12 are wider than the model.
_T5 = {
    "vocab_size": 60, "d_model": 32, "d_kv": 12, "num_layers": 4, "num_decoder_layers": 3,
    "num_heads": 4, "d_ff": 48, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12, "pad_token_id": 0, "eos_token_id": 1,
    "decoder_start_token_id": 0,
}  # fmt: skip
_GATED_T5 = _T5 | {"feed_forward_proj": "gated-gelu"}
_ROBERTA = _ENCODER | {"type_vocab_size": 1}
_XLM = _ROBERTA | {"pad_token_id": 1}
_DISTILBERT = {
    "vocab_size": 60, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48,
    "max_position_embeddings": 40, "num_labels": LABELS, "pad_token_id": 0,
}  # fmt: skip
_MODERNBERT = _ENCODER | {
    "pad_token_id": 1, "local_attention": 4, "global_attn_every_n_layers": 2,
    "classifier_pooling": "mean", "bos_token_id": 0, "cls_token_id": 0, "eos_token_id": 2,
    "sep_token_id": 2,
}  # fmt: skip
_DEBERTA = _ENCODER | {
    "pad_token_id": 1, "type_vocab_size": 0, "relative_attention": True, "position_buckets": 4,
    "max_relative_positions": -1, "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "position_biased_input": False, "conv_kernel_size": 3,
    "pooler_hidden_size": 32,
}  # fmt: skip

BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "marian": lambda: t.MarianMTModel(
        t.MarianConfig(**_TRANSLATOR, decoder_start_token_id=1, scale_embedding=True)
    ),
    "bart": lambda: t.BartForConditionalGeneration(
        t.BartConfig(**_TRANSLATOR, decoder_start_token_id=2)
    ),
    "mbart": lambda: t.MBartForConditionalGeneration(
        t.MBartConfig(**_TRANSLATOR, decoder_start_token_id=5, scale_embedding=True)
    ),
    "bert": lambda: t.BertForSequenceClassification(t.BertConfig(**_ENCODER)),
    "roberta": lambda: t.RobertaForSequenceClassification(t.RobertaConfig(**_ROBERTA)),
    "distilbert": lambda: t.DistilBertForSequenceClassification(t.DistilBertConfig(**_DISTILBERT)),
    "electra": lambda: t.ElectraForSequenceClassification(
        t.ElectraConfig(**_ENCODER | {"embedding_size": 24})
    ),
}
# Architectures that are tested as a whole, by a few tests each, in tests/model/test_relatives.py.
ENCODER_RELATIVES: dict[str, Callable[[], nn.Module]] = {
    "xlm-roberta": lambda: t.XLMRobertaForSequenceClassification(t.XLMRobertaConfig(**_XLM)),
    "camembert": lambda: t.CamembertForSequenceClassification(t.CamembertConfig(**_XLM)),
    "mpnet": lambda: t.MPNetForSequenceClassification(
        t.MPNetConfig(**_ENCODER | {"pad_token_id": 1})
    ),
    "modernbert": lambda: t.ModernBertForSequenceClassification(t.ModernBertConfig(**_MODERNBERT)),
    "deberta-v2": lambda: t.DebertaV2ForSequenceClassification(t.DebertaV2Config(**_DEBERTA)),
}
TRANSLATOR_RELATIVES: dict[str, Callable[[], nn.Module]] = {
    "t5": lambda: t.T5ForConditionalGeneration(t.T5Config(**_T5)),
    "mt5": lambda: t.MT5ForConditionalGeneration(t.MT5Config(**_GATED_T5)),
    "umt5": lambda: t.UMT5ForConditionalGeneration(t.UMT5Config(**_GATED_T5)),
    "pegasus": lambda: t.PegasusForConditionalGeneration(
        t.PegasusConfig(**_TRANSLATOR, decoder_start_token_id=1, scale_embedding=True)
    ),
    # NLLB is the same.
    "m2m_100": lambda: t.M2M100ForConditionalGeneration(
        t.M2M100Config(**_TRANSLATOR, decoder_start_token_id=2, scale_embedding=True)
    ),
}
RELATIVES = ENCODER_RELATIVES | TRANSLATOR_RELATIVES
# One of each structure, for what does not depend on names and positions: scores, learned masks.
STRUCTURES = ("marian", "bert", "distilbert")
# And one that normalizes before its sublayers, for what works on single layers.
STACKS = (*STRUCTURES, "mbart")
# Whose graphs the tests of export look at. Pegasus's are built as mBART's, RoBERTa's are BERT's
# with XLM-RoBERTa's positions; tests/model/test_relatives.py exports those.
EXPORTED = ("marian", "bart", "bert", "distilbert", "electra")
TRANSLATORS = tuple(name for name in BUILDERS if architecture(name).decoder)


def tiny_model(architecture: str, seed: int = 0) -> nn.Module:
    """A model of the architecture in evaluation mode, with weights of realistic scale."""
    torch.manual_seed(seed)
    model = (BUILDERS | RELATIVES)[architecture]()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name.lower():
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif "relative_attention_bias" in name:
                parameter.normal_()
            elif parameter.dim() == 1:
                parameter.normal_(0, 0.3)
            elif name.endswith("Attention.q.weight"):  # of T5, whose scores are not scaled
                scale = model.config.d_kv**-0.5
                parameter.normal_(0, 1.5 * scale / parameter.shape[1] ** 0.5)
            elif "embed" in name or "shared" in name:
                parameter.normal_(0, 1 / parameter.shape[1] ** 0.5)
            else:
                parameter.normal_(0, 1.5 / parameter.shape[1] ** 0.5)
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        generation.max_length = 24
    return model.eval()


def ragged_batch(model: nn.Module, rows: int = 3, seed: int = 0) -> dict[str, torch.Tensor]:
    """Model inputs with rows of very different length: 9, 2, 5, … tokens, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    pad = config.pad_token_id
    lengths = [(9, 2, 5, 1, 7)[row % 5] for row in range(rows)]
    ids = torch.full((rows, max(lengths)), pad)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(6, 60, (length,), generator=generator)
    batch = {"input_ids": ids, "attention_mask": (ids != pad).long()}
    if config.is_encoder_decoder:
        batch["decoder_input_ids"] = torch.randint(6, 60, (rows, 6), generator=generator)
    return batch


def uneven_mask(layers: list[Sublayer]) -> Mask:
    """A different number of units in every sublayer; the last of each kind loses all."""
    removed = []
    for kind in {layer.kind for layer in layers}:
        of_kind = [layer for layer in layers if layer.kind == kind]
        for position, layer in enumerate(of_kind):
            count = layer.units if layer is of_kind[-1] else position + 1
            removed += [(layer.name, (head + position) % layer.units) for head in range(count)]
    return Mask.full(layers).without(removed)


def empty_first_mask(layers: list[Sublayer]) -> Mask:
    """The first sublayer of every kind loses all (generate reads its cache's length)."""
    first = [layer for layer in layers if layer.index == 0]
    return Mask.full(layers).without((x.name, h) for x in first for h in range(x.units))


def nothing_left_mask(layers: list[Sublayer]) -> Mask:
    """No units at all."""
    return Mask.full(layers).without((x.name, h) for x in layers for h in range(x.units))


def word_tokenizer(types: bool = False, size: int = 60) -> PreTrainedTokenizerFast:
    """One token a word; as BERT's, with token types that transformers hands to the model.

    Args:
        types: whether it gives token types.
        size: of the vocabulary, w3 … w59 by default.
    """
    vocab = {"<pad>": 0, "<unk>": 1, "</s>": 2}
    vocab |= {f"w{i}": i for i in range(3, size)}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", eos_token="</s>",
        model_max_length=32, model_input_names=_inputs(types),
    )  # fmt: skip


def _inputs(types: bool) -> list[str]:
    return ["input_ids", *(["token_type_ids"] if types else []), "attention_mask"]


def piece_tokenizer(types: bool = False) -> PreTrainedTokenizerFast:
    """One as XLM-RoBERTa's: pieces with scores, the pad token second, a token before a text."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = ["▁", "w", "▁w", *map(str, range(10)), *(f"▁w{i}" for i in range(3, 45))]
    vocab = [(piece, 0.0) for piece in special] + [(piece, -float(len(piece))) for piece in pieces]
    backend = Tokenizer(models.Unigram([(p, s / 9) for p, s in vocab], unk_id=3))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", "<s> $A </s> </s> $B </s>", [("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", pad_token="<pad>", eos_token="</s>",
        unk_token="<unk>", cls_token="<s>", sep_token="</s>", model_max_length=32,
        model_input_names=_inputs(types),
    )  # fmt: skip


def facts(layers, mask) -> dict:
    return {
        "units": {layer.name: layer.units for layer in layers} | mask.totals(),
        "kept": mask.to_json(),
        "method": "test",
    }
