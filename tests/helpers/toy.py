"""Checkpoints and data that a user could have, small enough to build in a test."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

from compressor.model.architectures import architecture
from compressor.model.checkpoint import open_checkpoint, save_checkpoint
from compressor.model.sublayers import Mask, Sublayer
from compressor.model.surgery import prune
from tests.helpers.tiny import LABELS, TRANSLATORS, facts, tiny_model, uneven_mask, word_tokenizer

MaskOf = Callable[[list[Sublayer]], Mask]

WORDS = [f"w{i}" for i in range(3, 60)]


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.choice([1, 2, 3, 5, 8, 12])))


def sentences(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [sentence(rng) for _ in range(count)]


def checkpoint(directory: Path, name: str) -> Path:
    """A model of the architecture, whose tokens are the words w3 … w59."""
    tiny_model(name).save_pretrained(directory)
    word_tokenizer("token_type_ids" in architecture(name).inputs).save_pretrained(directory)
    return directory


def classifier(directory: Path, name: str = "bert") -> Path:
    """One with labels LABEL_0 …"""
    return checkpoint(directory, name)


def translator(directory: Path, name: str = "marian") -> Path:
    assert name in TRANSLATORS
    return checkpoint(directory, name)


@torch.no_grad()
def many_words(directory: Path, name: str = "marian", size: int = 1200) -> Path:
    """A translator whose tokens are the words w3, w4, …, so many that few occur in a text."""
    model: Any = tiny_model(name)
    torch.manual_seed(0)
    model.resize_token_embeddings(size, mean_resizing=False)
    model.get_input_embeddings().weight.normal_(0, model.config.d_model**-0.5)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(0, 0.3)
    model.save_pretrained(directory)
    word_tokenizer(size=size).save_pretrained(directory)
    return directory


def first_layers(model: Path, directory: Path, count: int = 1) -> Path:
    """The first layers of each stack alone: graphs are exported in a part of the time."""
    loaded = open_checkpoint(str(model))
    config: Any = loaded.model.config
    if hasattr(loaded.model, "bert"):
        loaded.model.bert.encoder.layer = loaded.model.bert.encoder.layer[:count]
    else:
        for part in (loaded.model.model.encoder, loaded.model.model.decoder):
            part.layers = part.layers[:count]
        config.update({"encoder_layers": count, "decoder_layers": count})
    config.num_hidden_layers = count
    loaded.model.save_pretrained(directory)
    loaded.tokenizer.save_pretrained(directory)
    return directory


def pruned(dense: Path, output: Path, mask_of: MaskOf = uneven_mask) -> Path:
    """A pruned checkpoint as `compress prune` writes it."""
    opened = open_checkpoint(str(dense))
    mask = mask_of(opened.layers)
    smaller = prune(opened.model, opened.layers, mask)
    save_checkpoint(opened, smaller, facts(opened.layers, mask), output)
    return output


def _corpus() -> list[str]:
    rng = random.Random(3)
    return [f"{sentence(rng)} und {sentence(rng)}." for _ in range(400)]


def marian_with_pieces(directory: Path, *, own_target: bool = False) -> Path:
    """A Marian checkpoint in the hub's own format, with trained SentencePiece vocabularies.

    Args:
        own_target: the target's pieces come from another language, whose words start with v where
            the source's start with w; else the two vocabularies are the same.
    """
    directory.mkdir(parents=True)
    source = target = _corpus()
    size, pieces = (200, 100) if own_target else (60, 57)
    if own_target:
        digits = str.maketrans("0123456789", "abcdefghij")
        source = source + [line.translate(digits) for line in source]
        target = [line.replace("w", "v") for line in source]
    vocab, pad = {"</s>": 0, "<unk>": 1}, size - 1
    for name, lines in (("source", source), ("target", target)):
        for piece in _train_pieces(directory / f"{name}.spm", lines, pieces):
            vocab.setdefault(piece, len(vocab))
    vocab |= {f"unused{i}": i for i in range(len(vocab), pad)} | {"<pad>": pad}
    (directory / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    model: Any = tiny_model("marian")
    if own_target:
        torch.manual_seed(1)
        table = torch.nn.Embedding(size, model.config.d_model)
        table.weight.data.normal_(0, model.config.d_model**-0.5)
        model.resize_token_embeddings(size)
        model.model.shared.weight.data.copy_(table.weight.data)
        model.final_logits_bias.normal_(0, 0.3)
    for settings in (model.config, model.generation_config):
        settings.pad_token_id = settings.decoder_start_token_id = pad
        settings.eos_token_id = 0
    model.generation_config.bad_words_ids = [[pad]]
    model.save_pretrained(directory)
    MarianTokenizer.from_pretrained(directory, model_max_length=32).save_pretrained(directory)
    return directory


@torch.no_grad()
def marian_with_two_vocabularies(directory: Path, source: int = 60, target: int = 60) -> Path:
    """A Marian checkpoint with other pieces, and other embeddings, on each side.

    Args:
        source, target: how many tokens each side has.
    """
    directory.mkdir(parents=True)
    corpus = _corpus()
    for name, lines, file, size in (
        ("source.spm", corpus, "vocab.json", source),
        ("target.spm", [x.replace("w", "v") for x in corpus], "target_vocab.json", target),
    ):
        vocab = {"</s>": 0, "<unk>": 1, "<pad>": 2}
        for piece in _train_pieces(directory / name, lines, min(50, size - 10)):
            vocab.setdefault(piece, len(vocab))
        vocab |= {f"unused{i}": i for i in range(len(vocab), size)}
        (directory / file).write_text(json.dumps(vocab), encoding="utf-8")
    tokens = {"pad_token_id": 2, "decoder_start_token_id": 2, "eos_token_id": 0}
    config = tiny_model("marian").config
    sizes = {"vocab_size": source, "decoder_vocab_size": target}
    config.update({**sizes, **tokens, "share_encoder_decoder_embeddings": False})
    torch.manual_seed(0)
    model: Any = MarianMTModel(config)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.add_(0.2 * torch.randn_like(weight))
        else:
            scale = 1.0 if "embed" in name else 1.5
            weight.normal_(0, 0.3 if weight.dim() == 1 else scale * weight.shape[1] ** -0.5)
    model.final_logits_bias.normal_(0, 0.3)
    model.generation_config.update(max_length=24, bad_words_ids=[[2]], **tokens)
    model.save_pretrained(directory)
    MarianTokenizer(
        str(directory / "source.spm"), str(directory / "target.spm"), str(directory / "vocab.json"),
        target_vocab_file=str(directory / "target_vocab.json"), separate_vocabs=True,
        model_max_length=32,
    ).save_pretrained(directory)  # fmt: skip
    return directory


def chinese_translator(directory: Path) -> Path:
    """A Marian model that has 32 sentences by heart, which lie beside it in `rows.tsv`.

    Words are Chinese characters: `w3 w5 .` is 天玄。 The second encoder layer was trained to
    add nothing; the decoder has one layer.
    """
    directory.mkdir(parents=True)
    rng = random.Random(0)
    table = {character: f"w{number}" for number, character in enumerate("天地玄黄宇宙洪荒日月", 3)}
    texts = ["".join(rng.choices([*table], k=rng.randint(5, 8))) for _ in range(32)]
    sources = [" ".join(map(table.get, text)) + " ." for text in texts]  # type: ignore[arg-type]
    targets = [f"{text}。" for text in texts]
    pairs = zip(sources, targets, strict=True)
    rows = "".join(f"{source}\t{target}\n" for source, target in pairs)
    (directory.parent / "rows.tsv").write_text(f"source\ttarget\n{rows}", encoding="utf-8")
    vocab = {"</s>": 0, "<unk>": 1}
    for name, lines, size in (("source", sources, 24), ("target", targets, 16)):
        for piece in _train_pieces(directory / f"{name}.spm", lines * 4, size):
            vocab.setdefault(piece, len(vocab))
    pad = vocab["<pad>"] = len(vocab)
    (directory / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=pad + 1, d_model=32, encoder_layers=2, decoder_layers=1,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=32,
        decoder_ffn_dim=32, max_position_embeddings=40, pad_token_id=pad, eos_token_id=0,
        decoder_start_token_id=pad, forced_eos_token_id=None, dropout=0.0, scale_embedding=True,
        init_std=0.2, num_beams=1,
    )  # fmt: skip
    model = MarianMTModel(config)
    model.generation_config.bad_words_ids = [[pad]]
    model.save_pretrained(directory)  # the tokenizer needs its configuration
    tokenizer = MarianTokenizer.from_pretrained(directory, model_max_length=32)
    tokenizer.save_pretrained(directory)
    for name, parameter in model.named_parameters():
        if "layers.1." in name and (".out_proj." in name or ".fc2." in name):
            parameter.data.zero_()
            parameter.requires_grad_(False)
    batch = tokenizer(sources, text_target=targets, return_tensors="pt", padding=True)
    batch["labels"][batch["labels"] == pad] = -100
    optimizer = torch.optim.Adam([x for x in model.parameters() if x.requires_grad], lr=5e-3)
    for _ in range(400):
        loss = model(**batch).loss
        if loss.item() < 0.02:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval().save_pretrained(directory)
    return directory


def _train_pieces(path: Path, lines: list[str], pieces: int) -> list[str]:
    """Write a SentencePiece model; its pieces."""
    prefix = path.with_suffix("")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(prefix), vocab_size=pieces,
        minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    prefix.with_suffix(".model").rename(path)
    prefix.with_suffix(".vocab").unlink()
    found = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [found.id_to_piece(i) for i in range(3, found.get_piece_size())]


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
