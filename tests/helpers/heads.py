"""The tiny encoders with the heads of other tasks than the classification of texts."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn

from compressor.model.architectures import architecture
from tests.helpers.tiny import BUILDERS, TRANSLATORS, tiny_model, word_tokenizer

ENCODERS = tuple(name for name in BUILDERS if name not in TRANSLATORS)
HEADS = {
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
}

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
    word_tokenizer("token_type_ids" in architecture(name).inputs).save_pretrained(directory)
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
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip


def byte_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """RoBERTa's kind of tokenizer: bytes, of which `ab` and ` ab` are one token each."""
    letters = [*"abcdefghij,.-'", "Ġ"]
    vocab = {x: i for i, x in enumerate(["<pad>", "<unk>", "<s>", "</s>", *letters, "ab", "Ġab"])}
    backend = Tokenizer(models.BPE(vocab, [("a", "b"), ("Ġ", "ab")], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.RobertaProcessing(
        ("</s>", 3), ("<s>", 2), trim_offsets=True, add_prefix_space=False
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", sep_token="</s>",
        model_max_length=32,
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


def save_reader(directory: Path, name: str = "bert", **config: Any) -> Path:
    """A model for questions of words of pieces, which reads 32 tokens at a time."""
    tiny_head(name, "question-answering", **config).save_pretrained(directory)
    piece_tokenizer().save_pretrained(directory)
    return directory


def questions(count: int, seed: int = 0, impossible: float = 0.0) -> list[dict[str, Any]]:
    """SQuAD's paragraphs, a question each; many contexts need several windows.

    Args:
        impossible: share of questions without an answer.
    """
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        words = [word for _ in range(rng.randint(1, 6)) for word in piece_words(rng)]
        first = rng.randrange(len(words))
        text = " ".join(words[first : first + rng.randint(1, 3)])
        start = sum(len(word) + 1 for word in words[:first])
        question: dict[str, Any] = {"question": " ".join(piece_words(rng, 2))}
        if rng.random() < impossible:
            question |= {"answers": [], "is_impossible": True}
        else:
            question["answers"] = [{"text": text, "answer_start": start}]
        made.append({"context": " ".join(words), "qas": [question]})
    return made


def write_questions(path: Path, paragraphs: list[dict[str, Any]]) -> Path:
    """A file of questions as SQuAD has them."""
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}), encoding="utf-8")
    return path
