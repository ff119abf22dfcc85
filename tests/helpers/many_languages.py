"""Tiny translators with the tokenizers of real ones, and the tokens of three languages."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers as t
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from compressor.model.modes import quiet_transformers
from compressor.tasks.texts import SOURCE, TARGET, TextFile
from tests.helpers.tiny import tiny_model

# Two languages, and a third one, which no text below is in; all of syllables of their own.
_SYLLABLES = ("ka ri no sum tel ban", "vü zo gá pé fro lix", "мир да чо кто йо")
_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def _words(syllables: str) -> list[str]:
    parts = syllables.split()
    return ["".join(x) for n in (1, 2, 3) for x in itertools.product(parts, repeat=n)]


SOURCES, TARGETS, OTHERS = map(_words, _SYLLABLES)


def lines(words: list[str], count: int, seed: int = 0, most: int = 6) -> list[str]:
    """Sentences of some of the words."""
    rng = random.Random(seed)
    return [f"{' '.join(rng.choices(words, k=rng.randint(1, most)))}." for _ in range(count)]


# Half of the words of each language.
SOURCE_TEXTS, TARGET_TEXTS = lines(SOURCES[::2], 40), lines(TARGETS[::2], 40)
UNCOVERED = [*lines(SOURCES[1::2], 8, 1), *lines(OTHERS, 4, 2), "Ünbekannt 漢字 ???"]


def _corpus() -> list[str]:
    return [x for words in (SOURCES, TARGETS, OTHERS) for x in lines(words, 400, 3)]


@functools.cache
def _unigram() -> list[tuple[str, float]]:
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    made = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(_corpus(), made)
    pieces = json.loads(backend.to_str())["model"]["vocab"]
    return [(piece, score) for piece, score in pieces if piece != "<unk>"]


def _scored(special: list[str]) -> list[tuple[str, float]]:
    return [*((x, 0.0) for x in special), *_unigram()]


@functools.cache
def _merged(by_bytes: bool) -> dict[str, Any]:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = (
        pre_tokenizers.ByteLevel(add_prefix_space=False) if by_bytes else pre_tokenizers.Metaspace()
    )
    letters = pre_tokenizers.ByteLevel.alphabet() if by_bytes else []
    made = trainers.BpeTrainer(
        vocab_size=500, special_tokens=_SPECIAL, initial_alphabet=letters, show_progress=False
    )
    backend.train_from_iterator(_corpus(), made)
    merges = json.loads(backend.to_str())["model"]["merges"]
    return {"vocab": backend.get_vocab(), "merges": [tuple(x) for x in merges]}


def _pieces(path: Path, kind: str, size: int, corpus: list[str]) -> list[str]:
    """Train a SentencePiece model, write it, and return its pieces but for the first three."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_prefix=str(path.with_suffix("")), vocab_size=size,
        model_type=kind, minloglevel=2, hard_vocab_limit=False, character_coverage=1.0,
        num_threads=1,
    )  # fmt: skip
    path.with_suffix(".model").rename(path)
    path.with_suffix(".vocab").unlink()
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [model.id_to_piece(i) for i in range(3, len(model))]


def _m2m100(directory: Path) -> Any:
    model = directory / "sentencepiece.bpe.model"
    tokens = [*_SPECIAL, *_pieces(model, "bpe", 400, _corpus())]
    vocabulary = directory / "vocab.json"
    vocabulary.write_text(json.dumps({x: i for i, x in enumerate(tokens)}), encoding="utf-8")
    return t.M2M100Tokenizer(str(vocabulary), str(model))


def _marian(directory: Path, codes: tuple[str, ...] = (), two: bool = False) -> Any:
    """Its vocabulary lacks some of the pieces; padding is last, as in the hub's."""
    source, target = directory / "source.spm", directory / "target.spm"
    first = _pieces(source, "unigram", 300, [*lines(SOURCES, 400, 3), *lines(OTHERS, 400, 3)])
    second = _pieces(target, "unigram", 280, [*lines(TARGETS, 400, 3), *lines(OTHERS, 400, 3)])
    first = [x for i, x in enumerate(first) if len(x) < 3 or i % 9]
    sides = [first, second] if two else [[*first, *second]]
    # Of two vocabularies both have padding in the same place.
    longest = max(len(dict.fromkeys(side)) for side in sides)
    files = ["vocab.json", "target_vocab.json"]
    for side, file in zip(sides, files, strict=False):
        tokens = ["</s>", "<unk>", *dict.fromkeys(side)]
        tokens += [f"unused{i}" for i in range(longest + 2 - len(tokens))]
        tokens += [*codes, "<pad>"]
        numbers = {x: i for i, x in enumerate(tokens)}
        (directory / file).write_text(json.dumps(numbers), encoding="utf-8")
    options = {"target_vocab_file": str(directory / files[1]), "separate_vocabs": True}
    return t.MarianTokenizer(
        str(source), str(target), str(directory / files[0]), **options if two else {}
    )


@dataclass(frozen=True)
class Family:
    """A kind of translator: architecture, tokenizer, the languages of its run, and a prefix."""

    architecture: str
    make: Callable[[Path], Any]
    languages: tuple[str | None, str | None] = (None, None)
    options: tuple[str, ...] = ()

    @property
    def flags(self) -> list[str]:
        """Options of a command that set its languages."""
        named = zip(("--source-language", "--target-language"), self.languages, strict=True)
        return [*(x for pair in named if pair[1] for x in pair if x), *self.options]


_PEGASUS = [
    "<pad>",
    "</s>",
    "<mask_1>",
    "<mask_2>",
    *(f"<unk_{i}>" for i in range(2, 103)),
    "<unk>",
]
_LANGUAGES = ("en_XX", "de_DE")
FAMILIES = {
    "nllb": Family(
        "m2m_100", lambda _: t.NllbTokenizer(**_merged(False)), ("eng_Latn", "deu_Latn")
    ),
    "m2m100": Family("m2m_100", _m2m100, ("en", "de")),
    "mbart": Family("mbart", lambda _: t.MBartTokenizer(vocab=_scored(_SPECIAL)), _LANGUAGES),
    "mbart-50": Family(
        "mbart", lambda _: t.MBart50Tokenizer(vocab=_scored([*_SPECIAL, "en_XX"])), _LANGUAGES
    ),
    "t5": Family(
        "t5", lambda _: t.T5Tokenizer(vocab=_scored(["<pad>", "</s>", "<unk>"])),
        options=("--prefix", "banno telka: "),
    ),
    "mt5": Family("mt5", lambda _: t.T5Tokenizer(vocab=_scored(["<pad>", "</s>", "<unk>"]))),
    "umt5": Family("umt5", lambda _: t.T5Tokenizer(vocab=_scored(["<pad>", "</s>", "<unk>"]))),
    "pegasus": Family("pegasus", lambda _: t.PegasusTokenizer(vocab=_scored(_PEGASUS))),
    "bart": Family("bart", lambda _: t.BartTokenizer(**_merged(True))),
    "marian": Family("marian", _marian),
    "marian-codes": Family(
        "marian", lambda path: _marian(path, (">>deu<<", ">>fra<<", ">>rus<<")), (None, "deu")
    ),
    "marian-two": Family("marian", lambda path: _marian(path, two=True)),
}  # fmt: skip


@torch.no_grad()
def save_family(name: str, directory: Path) -> Path:
    """A checkpoint of a family, with one layer in each stack, weights of realistic scale."""
    family = FAMILIES[name]
    directory.mkdir(parents=True)
    tokenizer = family.make(directory)
    tokenizer.model_max_length = 32
    template: Any = tiny_model(family.architecture)
    config = template.config
    for stack in ("encoder_layers", "decoder_layers", "num_layers", "num_decoder_layers"):
        if hasattr(config, stack):
            setattr(config, stack, 1)
    # Behind M2M100's languages, which its tokenizer does not count, and some rows without a token.
    size = max([len(tokenizer), *getattr(tokenizer, "lang_token_to_id", {}).values()]) + 3
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    from_padding = config.model_type in ("marian", "pegasus") or "t5" in config.model_type
    ends["decoder_start_token_id"] = ends["pad_token_id" if from_padding else "eos_token_id"]
    shares = not getattr(tokenizer, "separate_vocabs", False)
    config.update({"vocab_size": size, "decoder_vocab_size": size, **ends})
    config.update({"share_encoder_decoder_embeddings": shares})
    torch.manual_seed(4)
    model: Any = type(template)(config)
    known = template.state_dict()
    for path, weight in model.state_dict().items():
        if path in known and known[path].shape == weight.shape:
            weight.copy_(known[path])
        elif weight.dim() == 2:
            weight.normal_(0, weight.shape[1] ** -0.5)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(0, 0.3)
    settings = model.generation_config
    settings.update(max_length=16, suppress_tokens=[tokenizer.pad_token_id, size - 1], **ends)
    if config.model_type == "marian":
        settings.bad_words_ids = [[tokenizer.pad_token_id]]
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def text_files(directory: Path) -> tuple[TextFile, TextFile]:
    files = []
    for option, texts in ((SOURCE, SOURCE_TEXTS), (TARGET, TARGET_TEXTS)):
        path = directory / f"{option.strip('-')}.txt"
        path.write_text("\n".join(texts) + "\n", encoding="utf-8")
        files.append(TextFile(path, option))
    return files[0], files[1]


def plain(directory: Path) -> tuple[Any, Any]:
    """Model and tokenizer as transformers alone opens them."""
    with quiet_transformers():
        model = t.AutoModelForSeq2SeqLM.from_pretrained(directory)
        tokenizer = t.AutoTokenizer.from_pretrained(directory)
    return model.eval(), tokenizer


def source_tokens(tokenizer: Any) -> dict[int, str]:
    """Number of each token that a source can have -> its text."""
    codes = getattr(tokenizer, "lang_token_to_id", {})
    return {i: token for token, i in (tokenizer.get_vocab() | codes).items()}


def target_tokens(tokenizer: Any) -> dict[int, str]:
    """Number of each token that a decoder can generate -> its text."""
    if getattr(tokenizer, "separate_vocabs", False):
        return {i: token for token, i in tokenizer.target_encoder.items()}
    return source_tokens(tokenizer)


@torch.no_grad()
def translations(
    model: Any, tokenizer: Any, texts: Sequence[str], kept: set[str], beams: int, most: int = 10
) -> list[list[str]]:
    """Tokens as text, from a model that generates the kept ones alone."""
    tokens = target_tokens(tokenizer)
    left_out = [i for i in range(model.lm_head.out_features) if tokens.get(i) not in kept]

    def mask(module: Any, inputs: Any, logits: torch.Tensor) -> torch.Tensor:
        return logits.index_fill(-1, torch.tensor(left_out, dtype=torch.long), -torch.inf)

    handle = model.lm_head.register_forward_hook(mask)
    batch = tokenizer(list(texts), padding=True, return_tensors="pt")
    batch.pop("token_type_ids", None)
    with quiet_transformers():
        rows = model.generate(**batch, num_beams=beams, do_sample=False, max_new_tokens=most)
    handle.remove()
    return [[tokens[i] for i in row if i != tokenizer.pad_token_id] for row in rows.tolist()]
