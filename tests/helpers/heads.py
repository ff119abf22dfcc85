"""The tiny encoders with the heads of other tasks than the classification of texts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn

from compressor.model.architectures import READER, TOKEN_CLASSIFIER
from tests.helpers.tiny import BUILDERS, TRANSLATORS, tiny_model, word_tokenizer

ENCODERS = tuple(name for name in BUILDERS if name not in TRANSLATORS)
HEADS = {"token-classification": TOKEN_CLASSIFIER, "question-answering": READER}

TAGS = ("O", "B-per", "I-per", "B-loc", "I-loc")


def tiny_head(name: str, task: str, seed: int = 0, **config: Any) -> Any:
    """A tiny encoder with the head for a task; its weights have a realistic scale.

    Args:
        config: what differs in its configuration.
    """
    classifier: Any = tiny_model(name, seed)
    if task == "question-answering":
        classifier.config.num_labels = 2  # a start and an end
    classifier.config.update(config)
    model = getattr(transformers, HEADS[task]).from_config(classifier.config)
    model.base_model.load_state_dict(classifier.base_model.state_dict(), strict=False)
    torch.manual_seed(seed)
    for module in model.children():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 1.5 / module.in_features**0.5)
    return model.eval()


def save_head(directory: Path, name: str, task: str, **config: Any) -> Path:
    """A checkpoint of such a model, whose tokens are the words w3 … w59."""
    tiny_head(name, task, **config).save_pretrained(directory)
    word_tokenizer().save_pretrained(directory)
    return directory


def piece_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """BERT's kind of tokenizer: words of the letters a to j, of which `##` marks all but the first.

    `ab` and `##cd` are one token each; the letters k to z are unknown.
    """
    letters = "abcdefghij"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{x}" for x in letters)]
    tokens += ["ab", "##cd", *",.-'?"]
    vocab = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", model_max_length=32,
    )  # fmt: skip


def piece_words(rng: random.Random, most: int = 9) -> list[str]:
    """Words that this tokenizer splits."""
    lengths = [rng.choice([1, 2, 3, 5]) for _ in range(rng.randint(1, most))]
    return ["".join(rng.choices("abcdefghij", k=length)) for length in lengths]


def save_tagger(directory: Path, name: str = "bert", **config: Any) -> Path:
    """A token classifier with the labels `TAGS` for words of pieces."""
    labels = {"id2label": dict(enumerate(TAGS)), "label2id": {x: i for i, x in enumerate(TAGS)}}
    tiny_head(name, "token-classification", **labels, **config).save_pretrained(directory)
    piece_tokenizer().save_pretrained(directory)
    return directory


def write_tagged(path: Path, rows: int = 24, seed: int = 0) -> Path:
    """Sentences of words with tags, in CoNLL columns."""
    rng = random.Random(seed)
    sentences = [
        "".join(f"{word}\t{rng.choice(TAGS)}\n" for word in piece_words(rng)) for _ in range(rows)
    ]
    path.write_text("\n".join(sentences), encoding="utf-8")
    return path
