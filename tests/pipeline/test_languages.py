"""Languages of multilingual translators, and prefixes: recorded once, followed everywhere."""

from __future__ import annotations

import json
import string
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sentencepiece
import torch
import transformers

from compressor.commands import invoke
from compressor.errors import InputError, UsageError
from compressor.export.tokenizer import write_tokenizer
from compressor.export.tokenizer_check import TokenizerProbe, difficult_texts
from compressor.model.checkpoint import open_checkpoint
from compressor.model.languages import source_prefix
from compressor.pipeline.inputs import encode, load
from compressor.request.sections import ModelSection
from compressor.runtime import Translator, collate
from compressor.storage.files import write_json
from compressor.tasks import TASKS, Rows
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.tiny import tiny_model

pytestmark = pytest.mark.slow

TEXTS = toy.sentences(9)
_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
_PIECES = ["▁", "▁w", *map(str, range(10)), *(f"▁w{i}" for i in range(3, 60))]


def unigram() -> list[tuple[str, float]]:
    return [(x, 0.0) for x in _SPECIAL] + [(x, -float(len(x))) for x in _PIECES]


def bpe() -> dict[str, Any]:
    """Words are put together from left to right."""
    letters = ["▁", "w", *map(str, range(10))]
    merges = [("▁", "w"), *(("▁w", str(i)) for i in range(10))]
    tokens = [*_SPECIAL, *letters, *("".join(pair) for pair in merges)]
    return {"vocab": {x: i for i, x in enumerate(tokens)}, "merges": merges}


# Architecture, tokenizer, and languages: those of the artifact, and others.
CASES: dict[str, tuple[str, Any, tuple[str, str], tuple[str, str]]] = {
    "mbart": (
        "mbart",
        lambda: transformers.MBartTokenizer(vocab=unigram()),
        ("en_XX", "de_DE"),
        ("ro_RO", "fr_XX"),
    ),
    "mbart-50": (
        "mbart",
        lambda: transformers.MBart50Tokenizer(vocab=unigram()),
        ("en_XX", "de_DE"),
        ("uk_UA", "fr_XX"),
    ),
    "nllb": (
        "m2m_100",
        lambda: transformers.NllbTokenizer(**bpe()),
        ("eng_Latn", "deu_Latn"),
        ("ron_Latn", "fra_Latn"),
    ),
}


@torch.no_grad()
def dense_model(name: str, directory: Path) -> Path:
    architecture, make, *_ = CASES[name]
    model: Any = tiny_model(architecture)
    tokenizer = make()
    tokenizer.model_max_length = 32
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    torch.manual_seed(3)
    model.model.shared.weight.normal_(0, model.config.d_model**-0.5)
    model.generation_config.suppress_tokens = [1]  # padding, which no trained model generates
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = 2
    model.save_pretrained(directory / "whole")
    tokenizer.save_pretrained(directory / "whole")
    return toy.first_layers(directory / "whole", directory / "dense")


@torch.no_grad()
def wanted(name: str, dense: Path, pair: tuple[str, str]) -> list[list[int]]:
    """Token for token what transformers generates between two languages."""
    model: Any = open_checkpoint(str(dense)).model
    tokenizer = type(CASES[name][1]()).from_pretrained(dense, src_lang=pair[0], tgt_lang=pair[1])
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True, return_token_type_ids=False)
    token = tokenizer.convert_tokens_to_ids(pair[1])
    option = "decoder_start_token_id" if name == "mbart" else "forced_bos_token_id"
    rows = model.generate(**batch, num_beams=1, do_sample=False, max_length=12, **{option: token})
    return rows[:, 1:].tolist()


def generated(translator: Translator) -> list[list[int]]:
    artifact = translator.artifact
    batch = collate(translator.encode(TEXTS), artifact.pad_token_id, artifact.inputs)
    return translator.generate(batch, max_new_tokens=11)


def same(found: list[list[int]], expected: list[list[int]]) -> bool:
    return [row[: len(x)] for x, row in zip(found, expected, strict=True)] == found


@pytest.mark.parametrize(
    "name", ["mbart", "nllb", pytest.param("mbart-50", marks=pytest.mark.attack)]
)
def test_languages_are_recorded_and_changed(name: str, tmp_path: Path, capsys):
    _, _, pair, others = CASES[name]
    dense, out = dense_model(name, tmp_path), tmp_path / "out"
    languages = ["--source-language", pair[0], "--target-language", pair[1]]
    engines = ["--engines", "onnxruntime,ctranslate2"]
    assert invoke(["export", "-m", str(dense), "-o", str(out), *languages, *engines]) == 0
    assert invoke(["verify", str(out)]) == 0
    translator = Translator(out, threads=1)
    expected, changed = wanted(name, dense, pair), wanted(name, dense, others)
    assert expected != changed
    assert same(generated(translator), expected)
    assert same(generated(Translator(out, threads=1, engine="ctranslate2")), expected)
    assert same(generated(translator.between(*others)), changed)
    source, target = others
    assert same(generated(translator.between(source).between(target=target)), changed)
    again = Translator(out, threads=1, source_language=source, target_language=target)
    assert same(generated(again), changed)
    assert same(generated(translator), expected), "the first is as it was"
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(TEXTS), encoding="utf-8")
    capsys.readouterr()
    to = ["--source-language", source, "--target-language", target]
    assert invoke(["translate", str(out), str(lines), "--threads", "1", *to]) == 0
    assert capsys.readouterr().out.splitlines() == again.translate(TEXTS)
    wrong = target[:-1]
    for command in (
        ["translate", str(out), str(lines), "--target-language", wrong],
        ["export", "-m", str(dense), "-o", str(tmp_path / "x"), "--target-language", wrong],
    ):
        assert invoke(command) == 2
        assert f"did you mean {target!r}" in capsys.readouterr().err


LAYOUTS = ("compress", "optimum", "ctranslate2")


@pytest.mark.parametrize("name", ["mbart", "nllb"])
def test_nothing_is_made_for_no_language(name: str, tmp_path: Path, capsys):
    """But for `inspect`, which makes nothing."""
    dense, pair = dense_model(name, tmp_path), CASES[name][2]
    out, rows = str(tmp_path / "out"), toy.pairs_file(tmp_path / "rows.tsv")
    commands = [["export", "-m", str(dense), "-o", out, "--layout", name] for name in LAYOUTS]
    commands += [
        ["score", "-m", str(dense), "--calibration", str(rows), "-o", f"{out}.json"],
        ["run", "-m", str(dense), "--calibration", str(rows), "--keep", "0.5", "-o", out],
    ]
    for command in commands:
        assert invoke(command) == 4
        assert "--target-language" in capsys.readouterr().err
    assert invoke(["inspect", str(dense)]) == 0
    said = load(ModelSection(path=str(dense), target_language=pair[1]))
    # As in checkpoints with one target: generation settings alone say it.
    said.model.generation_config.save_pretrained(dense)  # type: ignore[operator,union-attr]
    again = load(ModelSection(path=str(dense)))
    assert again.tokenizer.tgt_lang == pair[1]
    settings = json.loads((dense / "tokenizer_config.json").read_text(encoding="utf-8"))
    for code, words in ((CASES[name][3][1], "say which with"), ("xx_Xxxx", "no such language")):
        write_json(dense / "tokenizer_config.json", settings | {"tgt_lang": code})
        assert invoke(commands[0]) == 4
        assert words in capsys.readouterr().err


def test_the_tokenizers_language_is_forced(tmp_path: Path):
    """Where the files of the tokenizer alone say it, answers are those of naming it."""
    dense = dense_model("nllb", tmp_path)
    path = dense / "tokenizer_config.json"
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | {"tgt_lang": "deu_Latn"})
    opened = load(ModelSection(path=str(dense)))
    token = opened.tokenizer.convert_tokens_to_ids("deu_Latn")
    assert opened.model.generation_config.forced_bos_token_id == token  # type: ignore[union-attr]


def test_artifacts_that_say_no_language_need_one(tmp_path: Path):
    """Those of earlier versions, which were made without."""
    dense, out = dense_model("nllb", tmp_path), tmp_path / "out"
    command = ["export", "-m", str(dense), "-o", str(out), "--target-language", "deu_Latn"]
    assert invoke(command) == 0
    expected = Translator(out, threads=1).translate(TEXTS)
    path = out / "onnx" / "graphs.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    description["languages"]["target"] = None
    description["generation"]["forced_bos_token_id"] = None
    write_json(path, description)
    with raises(UsageError, "target-language-missing"):
        Translator(out, threads=1, verify=False)
    given = Translator(out, threads=1, verify=False, target_language="deu_Latn")
    assert given.translate(TEXTS) == expected


def test_a_prefix_that_the_checkpoint_names_must_be_given(tmp_path: Path, capsys):
    dense = toy.translator(tmp_path / "marian")
    path = dense / "config.json"
    tasks = {"summarization": {"prefix": "w3: ", "num_beams": 4}, "translation": {"prefix": "w4: "}}
    config = json.loads(path.read_text(encoding="utf-8"))
    write_json(path, config | {"task_specific_params": tasks})
    out = str(tmp_path / "out")
    for name in LAYOUTS:
        assert invoke(["export", "-m", str(dense), "-o", out, "--layout", name]) == 4
        assert "'w3: ', 'w4: '" in capsys.readouterr().err
    for prefix in ("w4: ", ""):
        opened = load(ModelSection(path=str(dense), prefix=prefix))
        # Recorded, also where there is none: what is made of it needs no option again.
        opened.tokenizer.save_pretrained(dense)
        assert source_prefix(load(ModelSection(path=str(dense))).tokenizer) == prefix


def test_a_language_that_a_marian_model_is_told_by_the_text(tmp_path: Path, capsys):
    """`>>fra<< The cat`, as transformers' tokenizer reads it."""
    dense = toy.first_layers(toy.marian_with_pieces(tmp_path / "whole"), tmp_path / "dense")
    path = dense / "vocab.json"
    ids = json.loads(path.read_text(encoding="utf-8"))
    numbers = {number: piece for piece, number in ids.items()}
    numbers |= {57: ">>fra<<", 58: ">>deu<<"}
    write_json(path, {piece: number for number, piece in numbers.items()})
    command = ["export", "-m", str(dense), "-o", str(tmp_path / "out")]
    assert invoke(command) == 4
    assert "(>>deu<<, >>fra<<)" in capsys.readouterr().err
    assert invoke([*command, "--target-language", "frx"]) == 2
    assert "did you mean 'fra'" in capsys.readouterr().err
    assert invoke([*command, "--target-language", "fra"]) == 0
    plain = transformers.MarianTokenizer.from_pretrained(dense)
    wanted = plain([f">>fra<< {text}" for text in TEXTS])["input_ids"]
    assert [list(row) for row in Translator(tmp_path / "out", threads=1).encode(TEXTS)] == wanted
    assert {row[0] for row in wanted} == {57}
    load(ModelSection(path=str(dense), prefix=""))  # texts with codes of their own


def test_models_without_languages_refuse_them(tmp_path: Path, capsys):
    dense = toy.first_layers(toy.translator(tmp_path / "whole"), tmp_path / "dense")
    for option in (["--source-language", "en"], ["--target-language", "de"]):
        assert invoke(["export", "-m", str(dense), "-o", str(tmp_path / "out"), *option]) == 2
        assert "has none" in capsys.readouterr().err
    bert = str(toy.classifier(tmp_path / "bert"))
    for option in ("--prefix", "--target-language"):
        command = ["export", "-m", bert, "-o", str(tmp_path / "out"), option, "en"]
        assert invoke(command) == 2
        assert "is for translation" in capsys.readouterr().err


def test_a_prefix_is_recorded_and_added_once(tmp_path: Path):
    """In rows to score and train on, and in the artifact's texts."""
    dense = toy.first_layers(toy.translator(tmp_path / "whole"), tmp_path / "dense")
    prefix = "w7 w8: "
    out, smaller, scores = tmp_path / "out", tmp_path / "smaller", str(tmp_path / "scores.json")
    assert invoke(["export", "-m", str(dense), "-o", str(out), "--prefix", prefix]) == 0
    given = ["-m", str(dense), "--prefix", prefix]
    assert invoke(["score", *given, "--method", "magnitude", "-o", scores]) == 0
    keep = ["--keep", "heads=0.5", "--scores", scores]
    assert invoke(["prune", *given, *keep, "-o", str(smaller)]) == 0
    rows = Rows("translation", TEXTS, None, TEXTS, ["x"], "0")
    plain = open_checkpoint(str(dense)).tokenizer
    expected = [tuple(plain(prefix + text)["input_ids"]) for text in TEXTS]
    targets = [tuple(plain(text_target=text)["input_ids"]) for text in TEXTS]
    for checkpoint in (
        load(ModelSection(path=str(dense), prefix=prefix)),
        load(ModelSection(path=str(smaller)), dense=False),
    ):
        examples = encode(rows, checkpoint, TASKS["translation"])
        assert [x.source for x in examples] == expected
        assert [x.target for x in examples] == targets
    translator = Translator(out, threads=1)
    assert [tuple(row) for row in translator.encode(TEXTS)] == expected
    description = json.loads((out / "onnx" / "graphs.json").read_text(encoding="utf-8"))
    assert description["source_prefix"] == prefix
    without = Translator(out, threads=1)
    without._tokenizer.prefix = ""
    assert without.translate([prefix + text for text in TEXTS]) == translator.translate(TEXTS)
    assert list(translator.translate_stream(iter(TEXTS))) == translator.translate(TEXTS)
    with raises(UsageError, "option-without-use"):
        Translator(out, threads=1, target_language="de")


def m2m100(directory: Path) -> Path:
    """With the tokenizer of the hub's checkpoints: SentencePiece, and `vocab.json`."""
    directory.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*toy.sentences(300), string.ascii_lowercase + "_<>/"]),
        model_prefix=str(directory / "pieces"), vocab_size=70, model_type="bpe", minloglevel=2,
        hard_vocab_limit=False, character_coverage=1.0,
    )  # fmt: skip
    model = (directory / "pieces.model").rename(directory / "sentencepiece.bpe.model")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    tokens = [*_SPECIAL, *(pieces.id_to_piece(i) for i in range(3, len(pieces)))]
    write_json(directory / "vocab.json", {token: i for i, token in enumerate(tokens)})
    tokenizer = transformers.M2M100Tokenizer(
        str(directory / "vocab.json"), str(model), model_max_length=32
    )
    network: Any = tiny_model("m2m_100")
    network.resize_token_embeddings(len(tokens) + 100 + 8, mean_resizing=False)
    network.generation_config.suppress_tokens = [1]
    network.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@torch.no_grad()
def test_m2m100_is_exported_with_its_languages(tmp_path: Path, capsys):
    """Its tokenizer is Python alone, and its language a forced first token."""
    dense, out = m2m100(tmp_path / "dense"), tmp_path / "out"
    command = ["export", "-m", str(dense), "-o", str(out), "--target-language", "de"]
    assert invoke([*command, "--engines", "onnxruntime,ctranslate2"]) == 0
    names = json.loads((out / "ctranslate2/shared_vocabulary.json").read_text(encoding="utf-8"))
    checkpoint = open_checkpoint(str(dense))
    model: Any = checkpoint.model
    ids = checkpoint.tokenizer.lang_code_to_id
    assert (names[ids["de"]], names[ids["en"]]) == ("__de__", "__en__")
    translator = Translator(out, threads=1)

    def wanted(source: str, target: str) -> list[list[int]]:
        checkpoint.tokenizer.src_lang = source
        batch = checkpoint.tokenizer(TEXTS, return_tensors="pt", padding=True)
        settings = {"num_beams": 1, "do_sample": False, "max_length": 12}
        rows = model.generate(**batch, **settings, forced_bos_token_id=ids[target])
        return rows[:, 1:].tolist()

    assert same(generated(translator), wanted("en", "de"))
    engine = Translator(out, threads=1, engine="ctranslate2")
    assert same(generated(engine), wanted("en", "de"))
    assert wanted("fr", "ro") != wanted("en", "de")
    assert same(generated(translator.between("fr", "ro")), wanted("fr", "ro"))


def test_m2m100_texts_are_cut_as_by_sentencepiece(tmp_path: Path):
    tokenizer = open_checkpoint(str(m2m100(tmp_path / "dense"))).tokenizer
    tokenizer.src_lang = "de"
    random = Random(0)
    texts = [
        "",
        " ",
        "  w3   w4 ",
        "w3\tw4",
        "\u00e9\u00e9 zz w3",
        "\u2581w3",
        "W3 __fr__ w4",
        "<unk></s>",
    ]
    texts += ["".join(random.choices("w0123456789  \u2581\u00e9z", k=k % 20)) for k in range(400)]
    write_tokenizer(tokenizer, tmp_path / "tokenizer.json")
    texts += difficult_texts(tokenizer)
    TokenizerProbe(tokenizer, texts).check_file(tmp_path / "tokenizer.json")
    del tokenizer.encoder["▁w"]
    with raises(InputError, "vocabulary-lacks-pieces"):
        write_tokenizer(tokenizer, tmp_path / "tokenizer.json")
