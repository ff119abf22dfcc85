"""Tiny taggers with the kinds of tokenizers that models have, all of 300 tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, processors
from tokenizers import pre_tokenizers as pre

from tests.helpers.heads import TAGS

SIZE = 300
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
LETTERS = "abcdefghij"


def _ids(tokens: Iterable[str]) -> dict[str, int]:
    """Numbers of the tokens, behind those of special ones; filled up with tokens of no text."""
    named = list(dict.fromkeys([*SPECIAL, *tokens]))
    return {x: i for i, x in enumerate([*named, *(f"<{i}>" for i in range(len(named), SIZE))])}


def _wordpiece() -> Tokenizer:
    pieces = [*LETTERS, *(f"##{x}" for x in LETTERS), "ab", "##cd", *",.-", "\u5317"]
    made = Tokenizer(models.WordPiece(_ids(pieces), unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    made.pre_tokenizer = pre.BertPreTokenizer()
    return made


def _bytes(space: bool) -> Tokenizer:
    """RoBERTa's kind; `space` is whether it puts one in front of a text, or word, by itself."""
    merges = [("a", "b"), ("Ġ", "a"), ("Ġ", "ab")]
    pieces = [*sorted(pre.ByteLevel.alphabet()), *map("".join, merges)]
    made = Tokenizer(models.BPE(_ids(pieces), merges))
    made.pre_tokenizer = pre.ByteLevel(add_prefix_space=space)
    made.post_processor = processors.RobertaProcessing(
        ("[SEP]", 3), ("[CLS]", 2), trim_offsets=True, add_prefix_space=space
    )
    return made


def _unigram(*long: str, split: bool = False) -> Tokenizer:
    """XLM-RoBERTa's kind, with a piece for a space alone."""
    pieces = ["▁", *LETTERS, *(f"▁{x}" for x in LETTERS), "▁ab", "cd", *",.", "\u5317", *long]
    scores = [(x, -1.0 - len(x) % 3) for x in _ids(pieces)]
    made = Tokenizer(models.Unigram(scores, unk_id=1))
    spaces = pre.Metaspace(split=not long)
    made.pre_tokenizer = pre.Sequence([pre.WhitespaceSplit(), spaces]) if split else spaces
    return made


def _marked_bpe() -> Tokenizer:
    pieces = [*LETTERS, *(f"##{x}" for x in LETTERS), "ab", "##cd", *",.-"]
    merges = [("a", "##b"), ("##c", "##d")]
    made = Tokenizer(
        models.BPE(_ids(pieces), merges, unk_token="[UNK]", continuing_subword_prefix="##")
    )
    made.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    made.pre_tokenizer = pre.Whitespace()
    return made


def _words() -> Tokenizer:
    made = Tokenizer(models.WordLevel(_ids([*LETTERS, "ab", "cd", *",."]), unk_token="[UNK]"))
    made.pre_tokenizer = pre.Whitespace()
    return made


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "wordpiece": _wordpiece,
    "bytes": lambda: _bytes(True),
    "bytes-without-space": lambda: _bytes(False),
    "metaspace": _unigram,
    "unigram": lambda: _unigram(split=True),
    "pieces-over-words": lambda: _unigram("▁a▁b", "▁ab▁cd"),
    "bpe-with-prefix": _marked_bpe,
    "words": _words,
}


def save_kind(directory: Path, kind: str) -> Path:
    """A tagger with a kind of tokenizer; the weights of all are the same."""
    backend = KINDS[kind]()
    if backend.post_processor is None:
        backend.post_processor = processors.TemplateProcessing(
            "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", [("[CLS]", 2), ("[SEP]", 3)]
        )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", model_max_length=64, model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
    tokenizer.save_pretrained(directory)
    _tagger().save_pretrained(directory)
    return directory


@cache
def _tagger() -> Any:
    config = transformers.BertConfig(
        vocab_size=SIZE, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=64, pad_token_id=0,
        id2label=dict(enumerate(TAGS)), label2id={tag: i for i, tag in enumerate(TAGS)},
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertForTokenClassification(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0, 0.5)
    return model.eval()
