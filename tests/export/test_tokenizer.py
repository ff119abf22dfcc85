"""Written tokenizers equal transformers' own; what differs is honored, or refused with the text."""

from __future__ import annotations

import copy
import io
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from tokenizers import AddedToken
from transformers import MarianTokenizer

from compressor.commands import invoke
from compressor.errors import InputError, VerificationError
from compressor.export.tokenizer import write_tokenizer
from compressor.export.tokenizer_check import TokenizerProbe
from compressor.model.checkpoint import open_checkpoint
from compressor.model.difficult_texts import difficult_texts
from compressor.model.tokenizer import save_tokenizer
from compressor.runtime import Classifier, Translator
from compressor.runtime.text import TextTokenizer
from compressor.storage.files import write_json
from tests.helpers import toy
from tests.helpers.damaged_checkpoints import configure
from tests.helpers.errors import raises
from tests.helpers.heads import CORPUS, trained

SUBJECTS = ["the cat", "my old friend", "a small bird", "nobody", "the whole town", "her teacher"]
VERBS = ["sees", "has never liked", "quickly paints", "is looking for", "understands", "won't eat"]
OBJECTS = ["three green apples", "a river", "the answer", "us", "yesterday's bread", "(maybe) it"]
SUBJEKTE = ["die Katze", "mein alter Freund", "ein kleiner Vogel", "niemand", "die ganze Stadt"]
VERBEN = ["sieht", "mag", "malt schnell", "sucht überall", "versteht", "würde gern essen"]
OBJEKTE = ["drei grüne Äpfel", "einen Fluss", "die Größe", "uns", "das Brot", "日本 und мир", "日"]
CODES = [">>de<<", ">>zh_Hans<<"]

TEXTS = [
    "it's nobody's — really “quoted” … text",
    "ﬁ\u0301 Ａ\u0301 marks on what is replaced",
    "日本 日本日 日本語 xx日yy 日 本",
    "мир миру мммир",
    "</s> inside </s>of text<unk> <pad>",
    ">>de<< the cat", ">>de<<the cat", ">>zh_Hans<< the cat", " >>de<< the cat", "the >>de<< cat",
    ">>nowhere<< the cat", ">>de<<", ">>de",
]  # fmt: skip


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
        sentence_iterator=iter(texts), model_writer=model, vocab_size=size, character_coverage=1.0,
        bos_id=-1, hard_vocab_limit=False, minloglevel=2, num_threads=1, **options,
    )  # fmt: skip
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


def require_equal(tokenizer: MarianTokenizer, path: Path, texts: list[str]) -> None:
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


@pytest.mark.parametrize(
    "options",
    [
        {}, {"codes": CODES}, {"split_by_whitespace": False},
        {"normalization_rule_name": "identity"}, {"normalization_rule_name": "nmt_nfkc_cf"},
        {"user_defined_symbols": ["cat", "(maybe)"]},
    ],
    ids=str,
)  # fmt: skip
def test_marian(options: dict, tmp_path: Path) -> None:
    """With codes of languages, and other settings of SentencePiece."""
    tokenizer, path = marian(tmp_path, **options), tmp_path / "tokenizer.json"
    texts = [*TEXTS, *difficult_texts(tokenizer), *random_texts(300 if options else 3000)]
    texts += sentences(SUBJECTS, VERBS, OBJECTS) + sentences(SUBJEKTE, VERBEN, OBJEKTE)
    require_equal(tokenizer, path, texts)
    if not options:
        ids = [tokenizer.encoder[piece] for piece in ("▁", "t", "▁", ".", "▁", "?")]
        assert tokenizer.decode(ids) == "t . ?"
        tokenizer.clean_up_tokenization_spaces = True
        assert tokenizer.decode(ids) == "t.?"
        require_equal(tokenizer, path, TEXTS)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    class SlowTokenizer:
        is_fast = split_special_tokens = False

    def refuse(tokenizer: Any) -> None:
        with raises(InputError, "tokenizer-class-unsupported"):
            write_tokenizer(tokenizer, tmp_path / "x.json")

    refuse(SlowTokenizer())
    whole = marian(tmp_path)
    whole.add_tokens([AddedToken("word", single_word=True)])
    refuse(whole)
    spaces = {"remove_extra_whitespaces": False}, {"treat_whitespace_as_suffix": True}
    for options in (*spaces, {"model_type": "bpe"}):
        refuse(marian(tmp_path, **options))


SETTINGS = "tokenizer_config.json"
ADDED = [
    "<ent>",
    "Mary",
    AddedToken("[L]", lstrip=True),
    AddedToken("[R]", rstrip=True),
    AddedToken("Norm", normalized=True),
]


def test_tokens_added_to_a_marian_tokenizer(tmp_path: Path) -> None:
    """Behind the vocabulary, where `add_tokens` puts them; matched in the raw text."""
    tokenizer = marian(tmp_path, CODES)
    tokenizer.add_tokens(ADDED)
    tokenizer.add_tokens([">>fr<<", "[S]"], special_tokens=True)
    path = tmp_path / "tokenizer.json"
    write_tokenizer(tokenizer, path)
    texts = [
        "the <ent> cat", "the<ent>cat", "<ent> Mary the", "theMarycat", "  [L] cat[R]  cat",
        "[S]the cat[S] the", ">>fr<<the", ">>de<< <ent> >>de<< a", "the >>fr<< cat",
        "<ent>\u00a0the",
        # Normalized to tokens, which are none then: full width, and the end token.
        "\uff2d\uff41\uff52\uff59 \uff1c\uff0f\uff53\uff1e \uff2dARY", "\ufdd2<ent>",
    ]  # fmt: skip
    written = TextTokenizer(path)
    wanted = [tokenizer(text)["input_ids"] for text in texts]
    assert [list(row) for row in written.encode(texts)] == wanted
    assert written.decode(wanted) == tokenizer.batch_decode(wanted, skip_special_tokens=True)
    TokenizerProbe(tokenizer, difficult_texts(tokenizer)).check_file(path)
    assert len(tokenizer) - len(tokenizer.encoder) == 7


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"truncation_side": "left", "padding_side": "left"},
        {"model_input_names": ["input_ids", "attention_mask"]},
        {"do_lower_case": True, "strip_accents": True, "add_prefix_space": True},
        {"cls_token": "[X]", "add_bos_token": True, "clean_up_tokenization_spaces": True},
    ],
    ids=str,
)
def test_settings_are_followed_by_what_is_written(tmp_path: Path, name: str, values: Any) -> None:
    """By the runtime's file, and by the files that transformers opens again."""
    trained(name).save_pretrained(tmp_path)
    configure(SETTINGS, **values)(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_tokens([copy.copy(x) for x in ADDED])
    texts = [*difficult_texts(tokenizer), *CORPUS[:9]]
    backend = tokenizer.backend_tokenizer
    backend.enable_truncation(3)
    backend.enable_padding(length=12)
    write_tokenizer(tokenizer, tmp_path / "written.json")  # neither leaks, nor changes
    assert (backend.truncation["max_length"], backend.padding["length"]) == (3, 12)
    for writes in (False, True):
        probe = TokenizerProbe(tokenizer, texts, texts[3:] + texts[:3], not writes, writes)
        probe.check_file(tmp_path / "written.json")
    save_tokenizer(tokenizer, tmp_path / "saved")
    probe.check_saved(tmp_path / "saved")


@pytest.mark.parametrize(
    ("change", "id"),
    [
        ({"decoder": {"type": "Fuse"}}, "tokenizer-decodes-differently"),
        ({"normalizer": {"type": "Lowercase"}}, "tokenizer-encodes-differently"),
        ({"post_processor": {}}, "tokenizer-encodes-differently"),
        ({"added_tokens": []}, "tokenizer-encodes-differently"),
    ],
)
def test_a_file_that_does_something_else_is_refused(
    tmp_path: Path, change: dict[str, Any], id: str
) -> None:
    tokenizer = copy.deepcopy(trained("bert"))
    tokenizer.add_tokens(["<ent>"])
    path = tmp_path / "tokenizer.json"
    write_tokenizer(tokenizer, path)
    texts = difficult_texts(tokenizer)
    state = json.loads(path.read_text(encoding="utf-8"))
    if "post_processor" in change:  # the second text of a pair has the types of the first
        state["post_processor"]["pair"][-1]["SpecialToken"]["type_id"] = 0
    elif "added_tokens" in change:
        state["added_tokens"] = [x for x in state["added_tokens"] if x["content"] != "<ent>"]
    else:
        state |= change
    write_json(path, state)
    probe = TokenizerProbe(tokenizer, texts, texts[1:] + texts[:1], types=True)
    with raises(VerificationError, id):
        probe.check_file(path)


@pytest.mark.slow
@torch.no_grad()
def test_texts_are_cut_on_the_left_by_every_engine(tmp_path: Path) -> None:
    """A classifier's probabilities, and translations, are transformers' of long texts."""
    long = [" ".join(toy.sentences(8, seed=i)) for i in range(4)]

    def exported(name: str, engine: str) -> Path:
        dense = toy.first_layers(toy.checkpoint(tmp_path / f"all-{name}", name), tmp_path / name)
        sides = {"truncation_side": "left", "padding_side": "left"}
        configure(SETTINGS, model_max_length=16, **sides)(dense)
        engines, out = f"onnxruntime,{engine}", tmp_path / f"out-{name}"
        assert invoke(["export", "-m", str(dense), "-o", str(out), "--engines", engines]) == 0
        assert invoke(["verify", str(out)]) == 0
        return out

    out = exported("bert", "openvino")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "bert")
    model = open_checkpoint(str(tmp_path / "bert")).model
    rows = [tokenizer(text, truncation=True, return_tensors="pt") for text in long]
    wanted = np.stack([model(**row).logits[0].numpy() for row in rows])
    for engine in ("onnxruntime", "openvino"):
        actual = Classifier(out, engine=engine, threads=1).logits(long)
        np.testing.assert_allclose(actual, wanted, atol=1e-4)
    out = exported("marian", "ctranslate2")
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "marian")
    batch = tokenizer(long, truncation=True, padding=True, return_tensors="pt")
    batch.pop("token_type_ids", None)
    answers = model.generate(**batch, num_beams=1, do_sample=False)
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    for engine in ("onnxruntime", "ctranslate2"):
        assert Translator(out, engine=engine, threads=1).translate(long) == texts
