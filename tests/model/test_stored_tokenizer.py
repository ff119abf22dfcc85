"""A checkpoint's own `tokenizer.json` is followed, whatever pipeline its class builds.

Right is what the library `tokenizers` makes of a text with the file alone, as transformers 4 does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as t
from tokenizers import Tokenizer

from compressor.commands import invoke
from compressor.errors import CompressWarning, InputError
from compressor.export.tokenizer_check import TokenizerProbe
from compressor.model.checkpoint import open_checkpoint
from compressor.model.difficult_texts import difficult_texts
from compressor.model.files import CheckpointFiles
from compressor.model.stored_tokenizer import difference_of, open_tokenizer
from compressor.model.tokenizer import load_tokenizer, save_tokenizer
from compressor.runtime import Classifier
from tests.helpers.damaged_checkpoints import configure
from tests.helpers.errors import raises
from tests.helpers.heads import CORPUS, WORDS, trained
from tests.helpers.tiny import tiny_model

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
TEXTS = [
    *CORPUS[:5],
    "Karino SUMTEL ban!",
    "ver-mi lo, Café  ½ ﬁ\tdo\u3000ri ",
    "no.Ban(sum) kari##no",
]
LOWER = {"type": "Lowercase"}
SPACES = {"type": "WhitespaceSplit"}
BARE = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {}}  # fmt: skip
REPLACE = {"type": "Replace", "pattern": {"String": "ri"}, "content": "no"}


@cache
def unigram(kind: str) -> Any:
    """A tokenizer of pieces of the class, from the vocabulary of XLM-RoBERTa's."""
    pieces = json.loads(trained("xlm-roberta").backend_tokenizer.to_str())["model"]["vocab"]
    vocab = [(piece, score) for piece, score in pieces if not piece.startswith("<")]
    special = {
        "T5Tokenizer": ["<pad>", "</s>", "<unk>"],
        "PegasusTokenizer": ["<pad>", "<unk>", "</s>"],
        "DebertaV2Tokenizer": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    }.get(kind, ["<s>", "<pad>", "</s>", "<unk>"])
    more = {"T5Tokenizer": {"extra_ids": 0}, "PegasusTokenizer": {"offset": 0}}.get(kind, {})
    vocab = [*((x, 0.0) for x in special), *vocab]
    return getattr(t, kind)(vocab=vocab, model_max_length=64, **more)


def nllb() -> Any:
    """One of merges, with two languages."""
    letters = sorted({"▁", *"".join(WORDS)})
    vocab = {x: i for i, x in enumerate(["<s>", "<pad>", "</s>", "<unk>", *letters, "ka", "▁ka"])}
    return t.NllbTokenizer(
        vocab=vocab, merges=[("k", "a"), ("▁", "ka")], src_lang="eng_Latn", tgt_lang="deu_Latn",
        extra_special_tokens=["eng_Latn", "deu_Latn"], model_max_length=64,
    )  # fmt: skip


def stored(directory: Path, tokenizer: Any, model_type: str, change: Any = None) -> Path:
    """A tokenizer's files, the pipeline in its file changed."""
    tokenizer.save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps({"model_type": model_type}), "utf-8")
    path = directory / FILE
    state = json.loads(path.read_text("utf-8"))
    (change or (lambda state: None))(state)
    path.write_text(json.dumps(state), "utf-8")
    return directory


def put(**parts: Any) -> Any:
    """A change of parts of the pipeline."""
    return lambda state: state.update(parts)


def ids_of(file: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Any:
    file.no_truncation()
    file.no_padding()
    rows = texts if pairs is None else list(zip(texts, pairs, strict=True))
    return [(x.ids, x.type_ids) for x in file.encode_batch(rows)]


def read_by(tokenizer: Any, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Any:
    found = tokenizer(list(texts), pairs and list(pairs), return_token_type_ids=True)
    return list(zip(found["input_ids"], found["token_type_ids"], strict=True))


# Tokenizer, its model, what the file has of its own, and what of that texts show.
FOLLOWED = {
    "roberta lower-cased": ("roberta", "roberta", put(normalizer=LOWER), "normalizer"),
    "bart lower-cased": ("roberta", "bart", put(normalizer=LOWER), "normalizer"),
    "bert split at spaces": ("bert", "bert", put(pre_tokenizer=SPACES), "pre-tokenizer"),
    "bert without a normalizer": ("bert", "bert", put(normalizer=None), "normalizer"),
    "electra in two steps": (
        "bert", "electra",
        put(normalizer={"type": "Sequence", "normalizers": [LOWER, {"type": "StripAccents"}]}),
        "normalizer",
    ),
    "distilbert without ends": ("distilbert", "distilbert", put(post_processor=BARE),
                                "post-processor"),
    "bert joins pairs otherwise": ("bert", "bert",
                                   lambda x: x["post_processor"]["pair"].pop(), "post-processor"),
    "bert of short words": ("bert", "bert",
                            lambda x: x["model"].update(max_input_chars_per_word=7), "model"),
    "xlm-roberta replaces": ("xlm-roberta", "xlm-roberta", put(normalizer=REPLACE), "normalizer"),
    "mpnet split at spaces": ("mpnet", "mpnet", put(pre_tokenizer=SPACES), "pre-tokenizer"),
    "camembert lower-cased": ("CamembertTokenizer", "camembert", put(normalizer=LOWER),
                              "normalizer"),
    "deberta replaces": ("DebertaV2Tokenizer", "deberta-v2", put(normalizer=REPLACE),
                         "normalizer"),
    "t5 in whole": ("T5Tokenizer", "t5",
                    put(pre_tokenizer={"type": "Metaspace", "replacement": "▁",
                                       "prepend_scheme": "never", "split": False}),
                    "pre-tokenizer"),
    "pegasus decoded otherwise": ("PegasusTokenizer", "pegasus", put(decoder={"type": "Fuse"}),
                                  "decoder"),
}  # fmt: skip
WRITERS = ("bart", "t5", "pegasus", "mbart", "m2m_100")


def tokenizer_of(name: str) -> Any:
    if name.endswith("Tokenizer"):
        return unigram(name)
    if name in ("distilbert", "mpnet"):
        kind = {"distilbert": t.DistilBertTokenizer, "mpnet": t.MPNetTokenizer}[name]
        vocab = dict(trained("bert").get_vocab())
        if name == "mpnet":
            names = {"[PAD]": "<pad>", "[CLS]": "<s>", "[SEP]": "</s>", "[MASK]": "<mask>"}
            vocab = {names.get(x, x): i for x, i in vocab.items()}
        return kind(vocab=vocab, model_max_length=32)
    return trained(name)


@pytest.mark.parametrize("case", FOLLOWED)
def test_the_file_is_followed(case: str, tmp_path: Path) -> None:
    """When it is opened, and by transformers and again once it was saved."""
    name, model_type, change, part = FOLLOWED[case]
    directory, writes = stored(tmp_path, tokenizer_of(name), model_type, change), False
    writes = model_type in WRITERS
    file = Tokenizer.from_file(str(directory / FILE))
    opened = open_tokenizer(directory, writes=writes)
    texts = [*TEXTS, *difficult_texts(opened)]
    pairs = None if writes else [*texts[3:], *texts[:3]]
    wanted, wanted_pairs = ids_of(file, texts), ids_of(file, texts, pairs)
    plain = t.AutoTokenizer.from_pretrained(directory)
    rows = [row for row, _ in wanted]
    decoded = file.decode_batch(rows)
    assert part in difference_of(opened)
    assert type(plain).__name__ in difference_of(opened)
    built = read_by(plain, texts), read_by(plain, texts, pairs)
    assert (*built, plain.batch_decode(rows, skip_special_tokens=True)) != (
        wanted,
        wanted_pairs,
        decoded,
    )
    save_tokenizer(opened, directory / "saved")
    (directory / "saved" / "config.json").write_bytes((directory / "config.json").read_bytes())
    again = open_tokenizer(directory / "saved", writes=writes)
    assert not difference_of(again)
    for tokenizer in (opened, again, t.AutoTokenizer.from_pretrained(directory / "saved")):
        assert read_by(tokenizer, texts) == wanted
        assert read_by(tokenizer, texts, pairs) == wanted_pairs
        assert tokenizer.batch_decode(rows, skip_special_tokens=True) == decoded
        assert tokenizer.model_input_names == plain.model_input_names
        assert tokenizer.special_tokens_map == plain.special_tokens_map


@pytest.mark.parametrize(("name", "model_type"), [("MBartTokenizer", "mbart"), ("nllb", "m2m_100")])
def test_translators_between_languages_follow_it_too(
    name: str, model_type: str, tmp_path: Path
) -> None:
    """What surrounds a text is the languages' in either; a change of language goes on to work."""
    made = nllb() if name == "nllb" else unigram(name)
    source, target = ("eng_Latn", "deu_Latn") if name == "nllb" else ("en_XX", "de_DE")
    directory = stored(tmp_path, made, model_type, put(normalizer=LOWER))
    file = Tokenizer.from_file(str(directory / FILE))
    end, codes = made.eos_token_id, {x: file.token_to_id(x) for x in (source, target)}

    def wanted(language: str) -> list[list[int]]:
        rows = [x.ids for x in file.encode_batch(TEXTS, add_special_tokens=False)]
        code = codes[language]
        return [[code, *x, end] if name == "nllb" else [*x, end, code] for x in rows]

    opened = open_tokenizer(directory, writes=True)
    assert "normalizer" in difference_of(opened)
    opened.tgt_lang = target
    save_tokenizer(opened, directory / "saved")
    (directory / "saved" / "config.json").write_bytes((directory / "config.json").read_bytes())
    TokenizerProbe(opened, difficult_texts(opened)).check_saved(directory / "saved")
    by_transformers = t.AutoTokenizer.from_pretrained(directory / "saved")
    assert by_transformers(TEXTS)["input_ids"] == wanted(source)
    for tokenizer in (opened, open_tokenizer(directory / "saved", writes=True)):
        assert type(tokenizer) is type(made)
        assert tokenizer(TEXTS)["input_ids"] == wanted(source)
        assert tokenizer(text_target=TEXTS)["input_ids"] == wanted(target)
        tokenizer.src_lang = target
        assert tokenizer(TEXTS)["input_ids"] == wanted(target)
    assert not difference_of(tokenizer)
    configure(SETTINGS, language_tokenizer_class="GPT2Tokenizer")(directory)
    with raises(InputError, "tokenizer-unreadable"):
        load_tokenizer(CheckpointFiles(directory, "", None, t.MBartConfig()))


SAME = [
    # Nothing of its own, and what merely has another form.
    ("bert", "bert", None, {}),
    ("roberta", "roberta", None, {}),
    ("xlm-roberta", "xlm-roberta", None, {}),
    # What tokenizer_config.json says wins over the file, in transformers 4 as well.
    ("bert", "bert", lambda x: x["normalizer"].update(lowercase=False), {"do_lower_case": True}),
    ("bert", "bert", lambda x: x["normalizer"].update(strip_accents=True),
     {"strip_accents": False, "do_lower_case": True}),
    ("roberta", "roberta", lambda x: x["pre_tokenizer"].update(add_prefix_space=False),
     {"add_prefix_space": True}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "model_type", "change", "settings"), SAME)
def test_what_is_the_same_is_left_as_it_is(
    name: str, model_type: str, change: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    directory = stored(tmp_path, trained(name), model_type, change)
    configure(SETTINGS, **settings)(directory)
    opened = open_tokenizer(directory)
    usual = t.AutoTokenizer.from_pretrained(directory)
    texts = [*TEXTS, *difficult_texts(usual)]
    assert not difference_of(opened)
    assert read_by(opened, texts) == read_by(usual, texts)
    save_tokenizer(opened, directory / "saved")
    saved = json.loads((directory / "saved" / SETTINGS).read_text("utf-8"))
    assert saved["tokenizer_class"] == type(usual).__name__


def test_a_file_that_is_silent_in_the_settings_counts(tmp_path: Path) -> None:
    """A class's default is no statement: lower-casing, and a space before the text."""
    for name, key, change in (
        ("bert", "do_lower_case", lambda x: x["normalizer"].update(lowercase=False)),
        ("roberta", "add_prefix_space", lambda x: x["pre_tokenizer"].update(add_prefix_space=True)),
    ):
        directory = stored(tmp_path / name, trained(name), name, change)
        path = directory / SETTINGS
        settings = json.loads(path.read_text("utf-8"))
        settings.pop(key)
        path.write_text(json.dumps(settings), "utf-8")
        file = Tokenizer.from_file(str(directory / FILE))
        opened = open_tokenizer(directory)
        assert read_by(opened, TEXTS) == ids_of(file, TEXTS)
        assert difference_of(opened)
        save_tokenizer(opened, directory / "saved")
        saved = json.loads((directory / "saved" / SETTINGS).read_text("utf-8"))
        assert saved.get(key) in (None, True)  # as the file: transformers 4 goes by it


def test_tokens_that_the_file_alone_adds_are_kept(tmp_path: Path) -> None:
    """`added_tokens_decoder`, which transformers 4 writes, lists those of the settings."""
    flags = {"single_word": False, "lstrip": True, "rstrip": False, "normalized": True}
    more = {"id": 300, "content": "ri no", "special": False} | flags
    directory = stored(
        tmp_path, trained("bert"), "bert", lambda state: state["added_tokens"].append(more)
    )
    special = trained("bert").added_tokens_decoder
    listed = {str(i): {"content": str(x), "special": True} for i, x in special.items()}
    configure(SETTINGS, added_tokens_decoder=listed)(directory)
    texts = ["kari no ban", "ri no", *TEXTS]
    opened = open_tokenizer(directory)
    assert read_by(opened, texts) == ids_of(Tokenizer.from_file(str(directory / FILE)), texts)
    assert "added tokens" in difference_of(opened)
    assert 300 in opened("kari no ban")["input_ids"]


def test_cutting_and_padding_are_those_of_the_file(tmp_path: Path) -> None:
    limits: dict[str, Any] = {
        "truncation": {"direction": "Left", "max_length": 9, "strategy": "LongestFirst",
                       "stride": 0},
        "padding": {"strategy": {"Fixed": 12}, "direction": "Right", "pad_to_multiple_of": None,
                    "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
    }  # fmt: skip
    change = put(normalizer=None, **limits)
    directory = stored(tmp_path, trained("bert"), "bert", change)
    opened = open_tokenizer(directory)
    assert opened.truncation_side == "left"
    save_tokenizer(opened, directory / "saved")
    saved = json.loads((directory / "saved" / FILE).read_text("utf-8"))
    assert {name: saved[name] for name in limits} == limits


def test_merges_that_are_left_out_at_random_are_refused(tmp_path: Path) -> None:
    change = lambda x: x["model"].update(dropout=0.5)  # noqa: E731
    for name, kind in (("class", "RobertaTokenizer"), ("plain", "PreTrainedTokenizerFast")):
        directory = stored(tmp_path / name, trained("roberta"), "roberta", change)
        configure(SETTINGS, tokenizer_class=kind)(directory)
        config = t.RobertaConfig(vocab_size=500)
        with raises(InputError, "tokenizer-at-random"):
            load_tokenizer(CheckpointFiles(directory, "", None, config))


@pytest.mark.slow
@torch.no_grad()
def test_a_run_reads_texts_by_the_file_and_says_so(tmp_path: Path, capsys: Any) -> None:
    """Its models' logits are those for the file's tokens, also where the artifact is opened."""
    source, out, rows = tmp_path / "m", tmp_path / "out", tmp_path / "rows.tsv"
    stored(source, trained("roberta"), "roberta", put(normalizer=LOWER))
    config: Any = tiny_model("roberta").config
    config.vocab_size, config.pad_token_id, config.num_hidden_layers = 500, 1, 1
    torch.manual_seed(0)
    dense = t.RobertaForSequenceClassification(config).eval()
    for weight in dense.parameters():
        weight.normal_(0, 0.2)
    dense.save_pretrained(source)
    texts = [text.upper() for text in CORPUS[:12]]
    lines = [f"{text}\tLABEL_{i % 5}" for i, text in enumerate(texts)]
    rows.write_text("\n".join(["text\tlabel", *lines, ""]), "utf-8")
    options = ["--calibration", str(rows), "--keep", "0.5", "--device", "cpu", "--no-bench"]
    assert invoke(["run", "-m", str(source), *options, "-o", str(out)]) == 0
    assert capsys.readouterr().err.count("follows tokenizer.json") == 1
    for name in ("README.md", "report.md"):
        text = (out / name).read_text("utf-8").replace("\\", "")
        assert "The tokenizer follows tokenizer.json, whose normalizer" in text
    file = Tokenizer.from_file(str(source / FILE))
    encoded = file.encode_batch(texts)
    opened = open_checkpoint(str(out))
    assert opened.notes == []
    for directory, model in ((out, opened.model), (out / ".compress" / "dense", dense)):
        wanted = [model(torch.tensor([x.ids])).logits[0].numpy() for x in encoded]
        np.testing.assert_allclose(Classifier(directory).logits(texts), wanted, atol=1e-4)
    for tokenizer in (opened.tokenizer, t.AutoTokenizer.from_pretrained(out)):
        assert tokenizer(texts)["input_ids"] == [x.ids for x in encoded]
    with pytest.warns(CompressWarning, match="follows tokenizer.json"):
        open_checkpoint(str(source))
