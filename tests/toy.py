"""Checkpoints and data that a user could have, small enough to build in a test."""

from __future__ import annotations

import random
from pathlib import Path

import sentencepiece
from transformers import MarianTokenizer

from tests.test_checkpoint import word_tokenizer
from tests.tiny import LABELS, TRANSLATORS, tiny_model

WORDS = [f"w{i}" for i in range(3, 60)]


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.choice([1, 2, 3, 5, 8, 12])))


def classifier(directory: Path, name: str = "bert") -> Path:
    """A classifier of the architecture with labels LABEL_0 …, a word per token."""
    tiny_model(name).save_pretrained(directory)
    word_tokenizer().save_pretrained(directory)
    return directory


def translator(directory: Path, name: str = "marian") -> Path:
    """A translator of the architecture whose tokens are the words w3 … w59."""
    assert name in TRANSLATORS
    model = tiny_model(name)
    if name == "mbart":
        model.config.decoder_start_token_id = 5
    model.save_pretrained(directory)
    word_tokenizer().save_pretrained(directory)
    return directory


def marian_with_pieces(directory: Path) -> Path:
    """A Marian checkpoint in the hub's own format, with a trained SentencePiece vocabulary."""
    import json

    from tests import tiny

    directory.mkdir(parents=True)
    rng = random.Random(3)
    corpus = [f"{sentence(rng)} und {sentence(rng)}." for _ in range(400)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_prefix=str(directory / "spm"), vocab_size=57,
        minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    data = (directory / "spm.model").read_bytes()
    for name in ("source.spm", "target.spm"):
        (directory / name).write_bytes(data)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(directory / "spm.model"))
    vocab = {"</s>": 0, "<unk>": 1}
    for i in range(3, pieces.get_piece_size()):
        vocab[pieces.id_to_piece(i)] = len(vocab)
    while len(vocab) < 59:
        vocab[f"unused{len(vocab)}"] = len(vocab)
    vocab["<pad>"] = 59
    (directory / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    model = tiny.tiny_model("marian")
    for settings in (model.config, model.generation_config):
        settings.pad_token_id = settings.decoder_start_token_id = 59
        settings.eos_token_id = 0
    model.generation_config.bad_words_ids = [[59]]
    model.save_pretrained(directory)
    MarianTokenizer.from_pretrained(directory, model_max_length=32).save_pretrained(directory)
    for leftover in ("spm.model", "spm.vocab"):
        (directory / leftover).unlink()
    return directory


def pairs_file(path: Path, rows: int = 24, seed: int = 0) -> Path:
    """Sentence pairs of the words that the toy translators know."""
    rng = random.Random(seed)
    lines = ["src\ttgt", *(f"{sentence(rng)}\t{sentence(rng)}" for _ in range(rows))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def labels_file(path: Path, rows: int = 24, seed: int = 0) -> Path:
    """Texts and labels that the toy classifiers know."""
    rng = random.Random(seed)
    lines = ["text\tlabel"]
    lines += [f"{sentence(rng)}\tLABEL_{rng.randrange(LABELS)}" for _ in range(rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
