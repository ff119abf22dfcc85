"""Translators that were fine-tuned with one more language than their tokenizer's class lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AddedToken

from compressor.errors import InputError, UsageError
from compressor.model.architectures import architecture
from compressor.model.checkpoint import open_checkpoint
from compressor.model.languages import (
    languages,
    open_languages,
    require_said,
    set_languages,
)
from compressor.model.stored_tokenizer import open_tokenizer
from compressor.model.tokenizer import save_tokenizer
from compressor.options.inputs import load
from compressor.options.sections import ModelSection
from compressor.runtime import Translator
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.pipeline.test_languages import (
    BOTH_ENGINES,
    TEXTS,
    bpe,
    by_transformers,
    generates,
    m2m100,
    save_model,
    unigram,
)

# How fine-tuning adds a token: special or not, beside the codes of the class or in their place.
WAYS: dict[str, Callable[[Any, str], object]] = {
    "special token": lambda k, x: k.add_tokens([AddedToken(x, normalized=False, special=True)]),
    "ordinary token": lambda k, x: k.add_tokens([x]),
    "replaced": lambda k, x: k.add_special_tokens({"additional_special_tokens": [x]}),
    "extended": lambda k, x: k.add_special_tokens(
        {"extra_special_tokens": [x]}, replace_extra_special_tokens=False
    ),
    "both": lambda k, x: (k.add_tokens([x]), WAYS["replaced"](k, x)),
}
# Architecture, tokenizer, two codes of its class, and one that is new.
FAMILIES: dict[str, tuple[str, Callable[[], Any], str, str, str]] = {
    "nllb": ("m2m_100", lambda: transformers.NllbTokenizer(**bpe()),
             "eng_Latn", "deu_Latn", "tyv_Cyrl"),
    "mbart": ("mbart", lambda: transformers.MBartTokenizer(vocab=unigram()),
              "en_XX", "de_DE", "ty_RU"),
    "mbart-50": ("mbart", lambda: transformers.MBart50Tokenizer(vocab=unigram()),
                 "en_XX", "de_DE", "ty_RU"),
}  # fmt: skip


def open_files(directory: Path) -> Any:
    """A tokenizer with all of its languages, as checkpoints are opened."""
    tokenizer = open_tokenizer(directory, writes=True)
    open_languages(tokenizer)
    return tokenizer


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_an_added_code_is_a_language_as_the_others_are(family: str, way: str, tmp_path: Path):
    """Of the tokenizer in memory, and of what is saved of it."""
    _, make, first, second, new = FAMILIES[family]
    tokenizer = make()
    WAYS[way](tokenizer, new)
    tokenizer.save_pretrained(tmp_path)
    known = languages(open_files(tmp_path))
    assert known == languages(tokenizer)
    assert {code: known[code] for code in (first, second, new)} == {
        code: tokenizer.convert_tokens_to_ids(code) for code in (first, second, new)
    }
    assert not {"<s>", "</s>", "<mask>", "<pad>", "<unk>"} & known.keys()


def test_other_added_tokens_do_not_take_the_languages_away(tmp_path: Path):
    """A domain; codes that are spelled in other ways; and a word, which is no language."""
    _, make, first, second, _ = FAMILIES["nllb"]
    tokenizer = make()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<medical>", "tyv", "zz-ZZ"]})
    tokenizer.add_tokens(["w300"])
    tokenizer.save_pretrained(tmp_path)
    opened = open_files(tmp_path)
    known = languages(opened)
    assert {first, second, "tyv", "zz-ZZ"} <= known.keys()
    assert "w300" not in known
    model: Any = type("Model", (), {"generation_config": transformers.GenerationConfig()})()
    entry = architecture("m2m_100")
    set_languages(model, opened, entry, "tyv", "zz-ZZ", "it")
    assert model.generation_config.forced_bos_token_id == known["zz-ZZ"]
    with pytest.raises(UsageError, match="eng_Latm: it has no such language; did you mean 'eng_L"):
        set_languages(model, opened, entry, "eng_Latm", None, "it")
    # As in a checkpoint whose generation settings alone say the target.
    model.generation_config.forced_bos_token_id = opened.convert_tokens_to_ids("w300")
    opened.tgt_lang = None
    require_said(model, opened, entry, "it")
    assert opened.tgt_lang == "w300"
    # Whoever names a word means it: transformers reads any token as a language.
    set_languages(model, opened, entry, "w300", None, "it")
    assert "w300" in languages(opened)


def by_family(
    family: str, way: str, directory: Path
) -> tuple[Path, Callable[..., Any], Callable[..., list[list[int]]]]:
    """A checkpoint with a code added in a way, its tokenizer and what transformers generates."""
    architecture, make, *_, new = FAMILIES[family]
    tokenizer = make()
    WAYS[way](tokenizer, new)
    dense = save_model(architecture, tokenizer, directory)
    option = "decoder_start_token_id" if family == "mbart" else "forced_bos_token_id"

    def opened(source: str, checkpoint: Path = dense) -> Any:
        plain = type(tokenizer).from_pretrained(checkpoint)
        plain.src_lang = source
        return plain

    def wanted(source: str, target: str, checkpoint: Path = dense) -> list[list[int]]:
        plain = opened(source, checkpoint)
        token = plain.convert_tokens_to_ids(target)
        return by_transformers(checkpoint, plain, **{option: token})

    return dense, opened, wanted


@pytest.mark.slow
@pytest.mark.parametrize(("family", "way"), [("nllb", "special token"), ("mbart-50", "both")])
def test_it_is_translated_from_and_into(family: str, way: str, tmp_path: Path):
    """With calibration, in both engines, and between others when it is opened."""
    *_, first, second, new = FAMILIES[family]
    dense, opened, wanted = by_family(family, way, tmp_path)
    out, rows = tmp_path / "out", toy.pairs_file(tmp_path / "rows.tsv")
    pair = ("--source-language", new, "--target-language", second)
    with pytest.raises(UsageError, match=f"did you mean '{new}'"):
        invoke("export", "-m", dense, "-o", out, "--target-language", new[:-1])
    invoke("export", "-m", dense, "-o", out, *pair, "--calibration", rows, *BOTH_ENGINES)
    translator = Translator(out, threads=1)
    assert [*map(list, translator.encode(TEXTS))] == opened(new)(TEXTS)["input_ids"]
    assert generates(translator, wanted(new, second))
    assert generates(Translator(out, threads=1, engine="ctranslate2"), wanted(new, second))
    between = translator.between(first, new)
    assert [*map(list, between.encode(TEXTS))] == opened(first)(TEXTS)["input_ids"]
    assert generates(between, wanted(first, new))
    assert wanted(first, new) != wanted(first, second)


@pytest.mark.slow
def test_a_run_saves_it_with_the_checkpoint(tmp_path: Path):
    """Which this package reads without an option, and transformers."""
    *_, second, new = FAMILIES["nllb"]
    dense, opened, wanted = by_family("nllb", "replaced", tmp_path)
    out, rows = tmp_path / "out", toy.pairs_file(tmp_path / "rows.tsv")
    quick = ("--method", "magnitude", "--keep", "heads=0.5", "--recover", "none", "--no-bench")
    pair = ("--source-language", new, "--target-language", second)
    invoke("run", "-m", dense, "-o", out, *pair, "--calibration", rows, *quick)
    invoke("verify", out)
    assert generates(Translator(out, threads=1), wanted(new, second, out))
    again = load(ModelSection(path=str(out)), dense=False)
    assert (again.tokenizer.src_lang, again.tokenizer.tgt_lang) == (new, second)
    assert again.tokenizer(TEXTS)["input_ids"] == opened(new)(TEXTS)["input_ids"]
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    assert theirs(TEXTS)["input_ids"] == again.tokenizer(TEXTS)["input_ids"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_source_that_is_new_is_saved(family: str, tmp_path: Path):
    """transformers does not open mBART-50's tokenizer with one: its file names another."""
    _, make, first, _, new = FAMILIES[family]
    model: Any = type("Model", (), {"generation_config": transformers.GenerationConfig()})()
    model.config = transformers.MBartConfig()
    tokenizer = make()
    WAYS["both"](tokenizer, new)
    entry = architecture("m2m_100" if family == "nllb" else "mbart")
    for source in (new, first, new):
        set_languages(model, tokenizer, entry, source, new, "it")
        save_tokenizer(tokenizer, tmp_path / source)
        again = open_files(tmp_path / source)
        assert (again.src_lang, again.tgt_lang) == (source, new)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / source)
        closed = family == "mbart-50" and source == new
        assert theirs.src_lang == ("en_XX" if closed else source)
        theirs.src_lang = source
        for name in ("text", "text_target"):
            assert again(**{name: TEXTS})["input_ids"] == theirs(**{name: TEXTS})["input_ids"]


@pytest.mark.slow
def test_m2m100_translates_from_and_into_an_added_language(tmp_path: Path):
    """transformers does so when the tables of its tokenizer in memory are changed."""
    dense, out = m2m100(tmp_path, add_behind_the_languages), tmp_path / "out"

    def wanted(source: str, target: str) -> list[list[int]]:
        plain = transformers.M2M100Tokenizer.from_pretrained(dense)
        number = plain.convert_tokens_to_ids("__xx__")
        plain.lang_code_to_token["xx"], plain.lang_token_to_id["__xx__"] = "__xx__", number
        plain.src_lang = source
        return by_transformers(dense, plain, forced_bos_token_id=plain.get_lang_id(target))

    with pytest.raises(UsageError, match="xy: .* has no such language"):
        invoke("export", "-m", dense, "-o", out, "--target-language", "xy")
    pair = ("--source-language", "xx", "--target-language", "de")
    invoke("export", "-m", dense, "-o", out, *pair, *BOTH_ENGINES)
    assert wanted("en", "xx") != wanted("en", "de")
    translator = Translator(out, threads=1)
    assert translator.encode(["w3"])[0][0] == translator.artifact.languages.codes["xx"]
    assert generates(translator, wanted("xx", "de"))
    assert generates(Translator(out, threads=1, engine="ctranslate2"), wanted("xx", "de"))
    assert generates(translator.between("en", "xx"), wanted("en", "xx"))
    opened = open_checkpoint(str(dense))
    set_languages(opened.model, opened.tokenizer, opened.entry, "xx", "xx", "it")
    save_tokenizer(opened.tokenizer, tmp_path / "saved")
    again = open_files(tmp_path / "saved")
    assert (again.src_lang, again.tgt_lang) == ("xx", "xx")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")  # opens it, from English


def add_behind_the_languages(tokenizer: Any) -> None:
    """As of the hub's files, whose languages are added tokens themselves."""
    names = sorted(tokenizer.lang_token_to_id, key=tokenizer.lang_token_to_id.__getitem__)
    tokenizer.add_special_tokens({"extra_special_tokens": names})
    tokenizer.add_tokens(["<medical>"])
    WAYS["replaced"](tokenizer, "__xx__")


@pytest.mark.slow
def test_two_languages_with_one_token_are_refused(tmp_path: Path):
    """Tokens of M2M100's own languages are not in its vocabulary: another may get their number."""
    with raises(InputError, "tokenizer-unreadable") as caught:
        m2m100(tmp_path, lambda tokenizer: WAYS["special token"](tokenizer, "__xx__"))
    assert "languages af and xx have one token" in str(caught.value)
