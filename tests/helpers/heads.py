"""Tiny encoders with the heads of other tasks, their tokenizers and rows."""

from __future__ import annotations

import itertools
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
import transformers as t
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn

from compressor.model.architectures import architecture
from tests.helpers import toy
from tests.helpers.tiny import BUILDERS, TRANSLATORS, tiny_model, word_tokenizer

ENCODERS = tuple(name for name in BUILDERS if name not in TRANSLATORS)
HEADS = {
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
}

# The smallest DeBERTa and ModernBERT whose padding has other values in graphs than in PyTorch.
SMALL: dict[str, dict[str, Any]] = {
    "deberta-v2": {"num_hidden_layers": 2},
    "modernbert": {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"]},
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


def save_scorer(directory: Path, outputs: int = 1, name: str = "bert") -> Path:
    """A tiny classifier with so many outputs, weights of realistic scale."""
    base: Any = tiny_model(name)
    base.config.num_labels = outputs
    torch.manual_seed(0)
    model = type(base)(base.config)
    kept = {k: v for k, v in base.state_dict().items() if v.shape == model.state_dict()[k].shape}
    model.load_state_dict(kept, strict=False)
    with torch.no_grad():
        model.classifier.weight.normal_(0, 0.5)
    model.save_pretrained(directory)
    word_tokenizer("token_type_ids" in architecture(name).inputs).save_pretrained(directory)
    return directory


def write_scores(path: Path, rows: int = 24, seed: int = 0) -> Path:
    """Pairs of texts with a number."""
    rng = random.Random(seed)
    lines = ["sentence1\tsentence2\tscore"]
    for _ in range(rows):
        lines.append(f"{toy.sentence(rng)}\t{toy.sentence(rng)}\t{rng.gauss(0, 1):.3f}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_queries(path: Path, queries: int = 10, seed: int = 0) -> Path:
    """Queries with three to six texts each, in no order; the last query has no relevant one."""
    rng = random.Random(seed)
    lines = []
    for number in range(queries):
        query = f"{toy.sentence(rng)} w{3 + number}"
        for text in range(rng.randint(3, 6)):
            grade = 0 if number == queries - 1 else rng.choice([0, 1, 2]) if text else 1
            lines.append(f"{query}\t{toy.sentence(rng)}\t{grade}")
    rng.shuffle(lines)
    path.write_text("\n".join(["query\ttext\tlabel", *lines]) + "\n", encoding="utf-8")
    return path


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
