"""Tokenizers of the classes that checkpoints have, with a few hundred trained tokens."""

from __future__ import annotations

import itertools
import json
from functools import cache
from typing import Any

import transformers as t
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

_PARTS = ("ka", "ri", "no", "sum", "tel", "ban", "do", "ver", "mi", "lo")
WORDS = ["".join(parts) for parts in itertools.product(_PARTS, repeat=3)]
CORPUS = [" ".join(WORDS[i : i + 7]) for i in range(0, len(WORDS), 5)]
_ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@cache
def trained(name: str) -> Any:
    """The tokenizer of an architecture; not to be changed."""
    return {"bert": _word_piece, "roberta": _byte_pairs, "xlm-roberta": _unigram}[name]()


def _word_piece() -> Any:
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made = trainers.WordPieceTrainer(vocab_size=300, special_tokens=_BERT, show_progress=False)
    backend.train_from_iterator(CORPUS, made)
    return t.BertTokenizer(vocab=backend.get_vocab(), model_max_length=32)


def _byte_pairs() -> Any:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    made = trainers.BpeTrainer(
        vocab_size=500, special_tokens=_ROBERTA, initial_alphabet=letters, show_progress=False
    )
    backend.train_from_iterator(CORPUS, made)
    merges = [tuple(x) for x in json.loads(backend.to_str())["model"]["merges"]]
    return t.RobertaTokenizer(vocab=backend.get_vocab(), merges=merges, model_max_length=32)


def _unigram() -> Any:
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    made = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=_ROBERTA[:4], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(CORPUS, made)
    vocab = [tuple(x) for x in json.loads(backend.to_str())["model"]["vocab"]]
    return t.XLMRobertaTokenizer(vocab=vocab, model_max_length=32)
