"""Languages of multilingual translators, and prefixes: recorded once, followed everywhere."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
import transformers

from compressor.errors import InputError, UsageError
from compressor.model.checkpoint import open_checkpoint
from compressor.model.languages import source_prefix
from compressor.options.inputs import load
from compressor.options.sections import ModelSection
from compressor.runtime import Translator, collate
from compressor.storage.files import write_json
from compressor.tasks import TASKS, Rows
from compressor.tasks.opened import encode
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.tiny import tiny_model

pytestmark = pytest.mark.slow

TEXTS = toy.sentences(9)
_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
_PIECES = ["▁", "▁w", *map(str, range(10)), *(f"▁w{i}" for i in range(3, 60))]
BOTH_ENGINES = ("--engines", "onnxruntime,ctranslate2")


def unigram() -> list[tuple[str, float]]:
    return [(x, 0.0) for x in _SPECIAL] + [(x, -float(len(x))) for x in _PIECES]


def bpe() -> dict[str, Any]:
    """Words are put together from left to right."""
    letters = ["▁", "w", *map(str, range(10))]
    merges = [("▁", "w"), *(("▁w", str(i)) for i in range(10))]
    tokens = [*_SPECIAL, *letters, *("".join(pair) for pair in merges)]
    return {"vocab": {x: i for i, x in enumerate(tokens)}, "merges": merges}


# Architecture, tokenizer, and languages: those of the artifact, and others.
CASES: dict[str, tuple[str, Callable[[], Any], tuple[str, str], tuple[str, str]]] = {
    "mbart": ("mbart", lambda: transformers.MBartTokenizer(vocab=unigram()),
              ("en_XX", "de_DE"), ("ro_RO", "fr_XX")),
    "nllb": ("m2m_100", lambda: transformers.NllbTokenizer(**bpe()),
             ("eng_Latn", "deu_Latn"), ("ron_Latn", "fra_Latn")),
}  # fmt: skip


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def dense_model(name: str, directory: Path) -> Path:
    architecture, make, *_ = CASES[name]
    return save_model(architecture, make(), directory)


@torch.no_grad()
def save_model(architecture: str, tokenizer: Any, directory: Path) -> Path:
    """A tiny model of the architecture with this tokenizer."""
    model: Any = tiny_model(architecture)
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
def by_transformers(dense: Path, tokenizer: Any, **options: Any) -> list[list[int]]:
    """Token for token what transformers generates."""
    model: Any = open_checkpoint(str(dense)).model
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True, return_token_type_ids=False)
    settings = {"num_beams": 1, "do_sample": False, "max_length": 12}
    return model.generate(**batch, **settings, **options)[:, 1:].tolist()


def wanted(name: str, dense: Path, pair: tuple[str, str]) -> list[list[int]]:
    """Generated between two languages."""
    tokenizer = type(CASES[name][1]()).from_pretrained(dense, src_lang=pair[0], tgt_lang=pair[1])
    option = "decoder_start_token_id" if name == "mbart" else "forced_bos_token_id"
    token = tokenizer.convert_tokens_to_ids(pair[1])
    return by_transformers(dense, tokenizer, **{option: token})


def generates(translator: Translator, expected: list[list[int]]) -> bool:
    """Whether it generates the same; rows of transformers are padded."""
    artifact = translator.artifact
    batch = collate(translator.encode(TEXTS), artifact.pad_token_id, artifact.inputs)
    rows = translator.generate(batch, max_new_tokens=11)
    return [row[: len(x)] for x, row in zip(rows, expected, strict=True)] == rows


@pytest.mark.parametrize("name", CASES)
def test_languages_are_recorded_and_changed(name: str, tmp_path: Path, capsys):
    _, _, pair, others = CASES[name]
    dense, out = dense_model(name, tmp_path), tmp_path / "out"
    languages = ("--source-language", pair[0], "--target-language", pair[1])
    invoke("export", "-m", dense, "-o", out, *languages, *BOTH_ENGINES)
    invoke("verify", out)
    translator = Translator(out, threads=1)
    expected, changed = wanted(name, dense, pair), wanted(name, dense, others)
    assert expected != changed
    assert generates(translator, expected)
    assert generates(Translator(out, threads=1, engine="ctranslate2"), expected)
    source, target = others
    assert generates(translator.between(source).between(target=target), changed)
    again = Translator(out, threads=1, source_language=source, target_language=target)
    assert generates(again, changed)
    assert generates(translator, expected), "the first is as it was"
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(TEXTS), encoding="utf-8")
    capsys.readouterr()
    to = ("--source-language", source, "--target-language", target)
    invoke("translate", out, lines, "--threads", "1", *to)
    assert capsys.readouterr().out.splitlines() == again.translate(TEXTS)
    with pytest.raises(UsageError, match=f"did you mean '{target}'"):
        invoke("translate", out, lines, "--target-language", target[:-1])


@pytest.mark.parametrize("name", ["mbart", "nllb"])
def test_nothing_is_made_for_no_language(name: str, tmp_path: Path):
    """But for `inspect`, which makes nothing."""
    dense, pair = dense_model(name, tmp_path), CASES[name][2]
    export = ("export", "-m", dense, "-o", tmp_path / "out")
    with pytest.raises(InputError, match="--target-language"):
        invoke(*export)
    invoke("inspect", dense)
    settings = read_json(dense / "tokenizer_config.json")
    said = load(ModelSection(path=str(dense), target_language=pair[1]))
    # As in checkpoints with one target: generation settings alone say it.
    said.model.generation_config.save_pretrained(dense)  # type: ignore[operator,union-attr]
    assert load(ModelSection(path=str(dense))).tokenizer.tgt_lang == pair[1]
    write_json(dense / "tokenizer_config.json", settings | {"tgt_lang": CASES[name][3][1]})
    with pytest.raises(InputError, match="say which with"):
        invoke(*export)


def test_a_prefix_that_the_checkpoint_names_must_be_given(tmp_path: Path):
    dense = toy.translator(tmp_path / "marian")
    tasks = {"summarization": {"prefix": "w3: ", "num_beams": 4}, "translation": {"prefix": "w4: "}}
    config = read_json(dense / "config.json")
    write_json(dense / "config.json", config | {"task_specific_params": tasks})
    with pytest.raises(InputError, match="'w3: ', 'w4: '"):
        invoke("export", "-m", dense, "-o", tmp_path / "out")
    for prefix in ("w4: ", ""):
        opened = load(ModelSection(path=str(dense), prefix=prefix))
        # Recorded, also where there is none: what is made of it needs no option again.
        opened.tokenizer.save_pretrained(dense)
        assert source_prefix(load(ModelSection(path=str(dense))).tokenizer) == prefix


def test_the_text_may_name_the_language_of_a_marian_model(tmp_path: Path):
    """`>>fra<< The cat`, as transformers' tokenizer reads it."""
    dense = toy.first_layers(toy.marian_with_pieces(tmp_path / "whole"), tmp_path / "dense")
    numbers = {number: piece for piece, number in read_json(dense / "vocab.json").items()}
    numbers |= {57: ">>fra<<", 58: ">>deu<<"}
    write_json(dense / "vocab.json", {piece: number for number, piece in numbers.items()})
    export = ("export", "-m", dense, "-o", tmp_path / "out")
    with pytest.raises(InputError, match=">>deu<<, >>fra<<"):
        invoke(*export)
    invoke(*export, "--target-language", "fra")
    plain = transformers.MarianTokenizer.from_pretrained(dense)
    expected = plain([f">>fra<< {text}" for text in TEXTS])["input_ids"]
    assert [*map(list, Translator(tmp_path / "out", threads=1).encode(TEXTS))] == expected
    assert {row[0] for row in expected} == {57}
    load(ModelSection(path=str(dense), prefix=""))  # texts with codes of their own


def test_a_prefix_is_recorded_and_added_once(checkpoints, tmp_path: Path):
    """In rows to score and train on, and in the artifact's texts."""
    dense, prefix = checkpoints["short-marian"], "w7 w8: "
    out, smaller, scores = tmp_path / "out", tmp_path / "smaller", tmp_path / "scores.json"
    given = ("-m", dense, "--prefix", prefix)
    invoke("export", *given, "-o", out)
    invoke("score", *given, "--method", "magnitude", "-o", scores)
    invoke("prune", *given, "--keep", "heads=0.5", "--scores", scores, "-o", smaller)
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
    assert list(translator.translate_stream(iter(TEXTS))) == translator.translate(TEXTS)
    with raises(UsageError, "option-without-use"):
        Translator(out, threads=1, target_language="de")


def m2m100(directory: Path, change: Callable[[Any], object] = lambda tokenizer: None) -> Path:
    """With the tokenizer of the hub's checkpoints: SentencePiece, and `vocab.json`."""
    whole = directory / "whole"
    whole.mkdir(parents=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*toy.sentences(300), string.ascii_lowercase + "_<>/"]),
        model_prefix=str(whole / "pieces"), vocab_size=70, model_type="bpe", minloglevel=2,
        hard_vocab_limit=False, character_coverage=1.0,
    )  # fmt: skip
    model = (whole / "pieces.model").rename(whole / "sentencepiece.bpe.model")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    tokens = [*_SPECIAL, *(pieces.id_to_piece(i) for i in range(3, len(pieces)))]
    write_json(whole / "vocab.json", {token: i for i, token in enumerate(tokens)})
    tokenizer = transformers.M2M100Tokenizer(
        str(whole / "vocab.json"), str(model), model_max_length=32
    )
    change(tokenizer)
    network: Any = tiny_model("m2m_100")
    network.resize_token_embeddings(len(tokens) + 100 + 8, mean_resizing=False)
    network.generation_config.suppress_tokens = [1]
    network.save_pretrained(whole)
    tokenizer.save_pretrained(whole)
    return toy.first_layers(whole, directory / "dense")


def test_m2m100_is_exported_with_its_languages(tmp_path: Path):
    """Its tokenizer is Python alone, and cuts as SentencePiece; its language is a first token."""
    dense, out = m2m100(tmp_path), tmp_path / "out"
    invoke("export", "-m", dense, "-o", out, "--target-language", "de", *BOTH_ENGINES)
    names = read_json(out / "ctranslate2/shared_vocabulary.json")
    tokenizer = open_checkpoint(str(dense)).tokenizer
    ids = tokenizer.lang_code_to_id
    assert (names[ids["de"]], names[ids["en"]]) == ("__de__", "__en__")

    def wanted(source: str, target: str) -> list[list[int]]:
        tokenizer.src_lang = source
        return by_transformers(dense, tokenizer, forced_bos_token_id=ids[target])

    translator = Translator(out, threads=1)
    assert wanted("fr", "ro") != wanted("en", "de")
    assert generates(translator, wanted("en", "de"))
    assert generates(Translator(out, threads=1, engine="ctranslate2"), wanted("en", "de"))
    assert generates(translator.between("fr", "ro"), wanted("fr", "ro"))
