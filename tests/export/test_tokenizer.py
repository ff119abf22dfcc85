"""Written tokenizers equal transformers' own, which gives every expected value here."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import MarianTokenizer, PreTrainedTokenizerFast

from compressor.errors import InputError
from compressor.export.tokenizer import write_tokenizer
from compressor.runtime.text import TextTokenizer
from tests.helpers.errors import raises

SUBJECTS = ["the cat", "my old friend", "a small bird", "nobody", "the whole town", "her teacher"]
VERBS = ["sees", "has never liked", "quickly paints", "is looking for", "understands", "won't eat"]
OBJECTS = ["three green apples", "a river", "the answer", "us", "yesterday's bread", "(maybe) it"]
SUBJEKTE = ["die Katze", "mein alter Freund", "ein kleiner Vogel", "niemand", "die ganze Stadt"]
VERBEN = ["sieht", "mag", "malt schnell", "sucht überall", "versteht", "würde gern essen"]
OBJEKTE = ["drei grüne Äpfel", "einen Fluss", "die Größe", "uns", "das Brot", "日本 und мир", "日"]
CODES = [">>de<<", ">>zh_Hans<<"]

TEXTS = [
    "",
    " ",
    " \t \n",
    "The cat sees a river.",
    "  two  spaces   inside and around  ",
    "tab\tand\nnew line\r\nand\u00a0more\u3000space",
    "it's nobody's — really “quoted” … text",
    "zero\u200bwidth, soft\u00adhyphen, \u0000null, \ufeffmark",
    "emoji 🙂 👩‍👩‍👧 ☺️ 1️⃣ 🇩🇪",
    "ﬁne ﬃ ½ Ⅳ ™ ℡ ①②",
    "ＦＵＬＬ　ｗｉｄｔｈ",
    "decomposed e\u0301 u\u0308 a\u0323\u0302",
    "ﬁ\u0301 Ａ\u0301 marks on what is replaced",
    "ｶﾞｷﾞ halfwidth, か\u3099 decomposed",
    "\u1112\u1161\u11ab\u1100\u1173\u11af jamo",
    "ش\u0651\u064eرق marks in typing order",
    "日本 日本日 日本語 xx日yy 日 本",
    "мир миру мммир",
    "unknown ツ単語 next",
    "grüne Größe",
    "▁ lower ▁block ▁▁ here▁",
    "</s> inside </s>of text<unk> <pad>",
    "<s> <unk",
    "a" * 60,
    "!?.,;:" * 9,
    "\ufdd0 \ufdd1\ufdd0x",
    ">>de<< the cat",
    ">>de<<the cat",
    ">>zh_Hans<< the cat",
    " >>de<< the cat",
    "the >>de<< cat",
    ">>nowhere<< the cat",
    ">> a << b",
    ">>de<<",
    ">>de",
]


def random_texts(count: int, seed: int = 0) -> list[str]:
    """Letters, spaces, marks, symbols and other scripts in any order."""
    rng = random.Random(seed)
    blocks = [(0x20, 0x250), (0x300, 0x370), (0x400, 0x450), (0x600, 0x660), (0x1100, 0x1200)]
    blocks += [(0x2000, 0x2040), (0x3040, 0x3100), (0xAC00, 0xAC20), (0xFF00, 0xFFF0)]
    pool = [chr(c) for start, end in blocks for c in range(start, end)]
    pool += list(" abcdefgh日本мир") * 40
    return ["".join(rng.choices(pool, k=rng.randint(1, 14))) for _ in range(count)]


def sentences(subjects: list[str], verbs: list[str], objects: list[str]) -> list[str]:
    """Every combination, each with a word that the syllables of its words make up."""
    plain = [f"{s} {v} {o}" for s in subjects for v in verbs for o in objects]
    rng = random.Random(0)
    syllables = sorted({w[i : i + 3] for text in plain for w in text.split() for i in (0, 2, 3)})
    return [f"{text} {''.join(rng.choices(syllables, k=2))}{rng.choice('.?')}" for text in plain]


def pieces_of(texts: Iterable[str], size: int, path: Path, **options) -> list[str]:
    """Train a SentencePiece model, write it, and return its pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=size,
        character_coverage=1.0,
        bos_id=-1,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    path.write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [processor.id_to_piece(i) for i in range(processor.vocab_size())]


def marian(directory: Path, codes: Iterable[str] = (), **options) -> MarianTokenizer:
    """A tokenizer with separate source and target pieces, and a vocabulary that lacks some."""
    source = sentences(SUBJECTS, VERBS, OBJECTS)
    spm = directory / "source.spm"
    source_pieces = pieces_of(source, 170, spm, **options)
    target_pieces = pieces_of(
        sentences(SUBJEKTE, VERBEN, OBJEKTE), 150, directory / "target.spm", **options
    )
    missing = [p for p in source_pieces if len(p) > 2 and p not in target_pieces][::4]
    vocabulary = {"</s>": 0, "<unk>": 1}
    # Pieces that no model would find, of characters that the source knows in part or not at all.
    for piece in [*source_pieces, *target_pieces, "日本", "▁日x", "x日y", *codes, "<pad>"]:
        if piece not in missing:
            vocabulary.setdefault(piece, len(vocabulary))
    (directory / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    assert len(missing) > 5
    assert "日" not in "".join(source_pieces)
    return MarianTokenizer(str(spm), str(directory / "target.spm"), str(directory / "vocab.json"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> MarianTokenizer:
    return marian(tmp_path_factory.mktemp("marian"))


def assert_equal(tokenizer, path: Path, texts: list[str]) -> TextTokenizer:
    """Encoding of texts, and decoding of that and of random ids."""
    write_tokenizer(tokenizer, path)
    written = TextTokenizer(path)
    expected = [tokenizer(text)["input_ids"] for text in texts]
    for text, want, got in zip(texts, expected, written.encode(texts), strict=True):
        assert got == want, repr(text)
    rng = random.Random(1)
    rows = [rng.choices(range(len(tokenizer)), k=rng.randint(0, 9)) for _ in range(500)]
    rows += expected
    decoded = tokenizer.batch_decode(rows, skip_special_tokens=True)
    assert written.decode(rows) == decoded
    return written


def test_marian(tokenizer: MarianTokenizer, tmp_path: Path) -> None:
    texts = [*TEXTS, *sentences(SUBJECTS, VERBS, OBJECTS), *sentences(SUBJEKTE, VERBEN, OBJEKTE)]
    assert_equal(tokenizer, tmp_path / "tokenizer.json", [*texts, *random_texts(3000)])


def test_language_codes(tmp_path: Path) -> None:
    multilingual = marian(tmp_path, CODES)
    texts = [*TEXTS, *random_texts(300)]
    written = assert_equal(multilingual, tmp_path / "tokenizer.json", texts)
    (row,) = written.encode([">>zh_Hans<< the cat"])
    assert row[0] == multilingual.encoder[">>zh_Hans<<"]


@pytest.mark.parametrize(
    "options",
    [
        {"normalization_rule_name": "identity"},
        {"normalization_rule_name": "nmt_nfkc_cf"},
        {"split_by_whitespace": False},
        {"user_defined_symbols": ["cat", "(maybe)"]},
    ],
    ids=str,
)
def test_other_sentencepiece_settings(options: dict, tmp_path: Path) -> None:
    other = marian(tmp_path, **options)
    texts = [*TEXTS, *sentences(SUBJECTS, VERBS, OBJECTS), *random_texts(300)]
    assert_equal(other, tmp_path / "tokenizer.json", texts)


def test_clean_up_of_spaces(tokenizer: MarianTokenizer, tmp_path: Path) -> None:
    ids = [tokenizer.encoder[piece] for piece in ("▁", "t", "▁", ".", "▁", "?")]
    assert tokenizer.decode(ids) == "t . ?"
    tokenizer.clean_up_tokenization_spaces = True
    try:
        assert tokenizer.decode(ids) == "t.?"
        assert_equal(tokenizer, tmp_path / "tokenizer.json", TEXTS)
    finally:
        tokenizer.clean_up_tokenization_spaces = False


def word_pieces(**options) -> PreTrainedTokenizerFast:
    """A BERT-like tokenizer of a few words, built here."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "see", "##s", "a", "river", "."]
    words += [",", "don", "'", "t", "n", "!", "##!"]
    built = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    built.normalizer = normalizers.BertNormalizer()
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    built.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    built.decoder = decoders.WordPiece(cleanup=False)
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=built, model_input_names=inputs, **names, **options
    )


@pytest.mark.parametrize("clean_up", [False, True])
def test_fast_tokenizers(clean_up: bool, tmp_path: Path) -> None:
    fast = word_pieces(clean_up_tokenization_spaces=clean_up)
    texts = ["The cat sees a river.", "don't!", "", "  the   cat , ", "unknown [SEP] word !"]
    written = assert_equal(fast, tmp_path / "tokenizer.json", texts)
    (row,) = written.encode(["the cat"], ["a river."])
    both = fast("the cat", "a river.")
    assert row == both["input_ids"]
    assert row.type_ids == both["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert written.decode([fast("the cat .")["input_ids"]]) == [
        "the cat." if clean_up else "the cat ."
    ]


def test_settings_of_a_fast_tokenizer_neither_leak_nor_change(tmp_path: Path) -> None:
    fast = word_pieces()
    fast.backend_tokenizer.enable_truncation(3)
    fast.backend_tokenizer.enable_padding(length=12)
    write_tokenizer(fast, tmp_path / "tokenizer.json")
    (row,) = TextTokenizer(tmp_path / "tokenizer.json").encode(["the cat sees a river."])
    assert len(row) == 9
    assert fast.backend_tokenizer.truncation["max_length"] == 3
    assert fast.backend_tokenizer.padding["length"] == 12


@pytest.mark.parametrize(
    "options", [{"remove_extra_whitespaces": False}, {"treat_whitespace_as_suffix": True}], ids=str
)
def test_unusual_spaces_are_refused(options: dict, tmp_path: Path) -> None:
    with raises(InputError, "sentencepiece-spaces-unsupported"):
        write_tokenizer(marian(tmp_path, **options), tmp_path / "tokenizer.json")


def test_what_cannot_be_written(tmp_path: Path) -> None:
    pieces_of(sentences(SUBJECTS, VERBS, OBJECTS), 150, tmp_path / "target.spm")
    pieces = pieces_of(
        sentences(SUBJECTS, VERBS, OBJECTS), 150, tmp_path / "source.spm", model_type="bpe"
    )
    vocabulary = {piece: i for i, piece in enumerate(["</s>", "<pad>", *pieces])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    bpe = MarianTokenizer(*(str(tmp_path / n) for n in ("source.spm", "target.spm", "vocab.json")))
    with raises(InputError, "sentencepiece-not-unigram"):
        write_tokenizer(bpe, tmp_path / "x.json")

    class SlowTokenizer:
        is_fast = split_special_tokens = False

    with raises(InputError, "tokenizer-class-unsupported") as caught:
        write_tokenizer(SlowTokenizer(), tmp_path / "x.json")  # type: ignore[arg-type]
    assert "--layout optimum" in str(caught.value)
