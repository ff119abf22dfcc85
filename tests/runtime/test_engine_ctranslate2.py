"""`Translator` with CTranslate2: PyTorch's tokens, forced lengths, checked files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import ctranslate2
import pytest
import torch

from compressor.errors import InputError, UsageError
from compressor.export.ctranslate2 import write_translator
from compressor.export.task_graphs import Network
from compressor.export.vocabulary import output_tokens
from compressor.model.checkpoint import open_checkpoint
from compressor.runtime import Translator
from compressor.throughput.hardware import describe
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.runtime_artifacts import Exported, export, vary
from tests.helpers.tiny import uneven_mask
from tests.runtime.test_translator import batch_of, generated, with_settings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    directory = tmp_path_factory.mktemp("bart")
    dense = toy.first_layers(toy.translator(directory / "all", "bart"), directory / "dense", 2)
    return export(dense, uneven_mask, directory / "out", vary, engine="ctranslate2")


@pytest.fixture(scope="module")
def two_languages(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Its decoder scores some of the tokens alone."""
    directory = tmp_path_factory.mktemp("two")
    dense = toy.marian_with_pieces(directory / "dense", own_target=True)
    options = {"engine": "ctranslate2", "tokens": output_tokens(open_checkpoint(str(dense)))}
    return export(dense, uneven_mask, directory / "out", vary, **options)


def opened(exported: Exported, **options) -> Translator:
    return Translator(exported.directory, threads=1, engine="ctranslate2", **options)


@pytest.mark.parametrize("name", ["two_languages", "bart"])
def test_greedy_tokens_are_pytorchs(name: str, request: pytest.FixtureRequest) -> None:
    exported, texts = request.getfixturevalue(name), toy.sentences(25)
    translator = opened(exported)
    only = Translator(exported.directory, threads=1).tokens.ids.tolist()
    for options in ({"max_new_tokens": 5}, {}):
        expected = generated(exported, texts, only, num_beams=1, **options)
        assert translator.generate(batch_of(translator, texts), num_beams=1, **options) == expected
    assert (translator.engine, translator.precision) == ("ctranslate2", "fp32")
    assert len({len(row) for row in expected}) > 1, "the test needs outputs of several lengths"


def test_beams_stop_as_with_early_stopping(bart: Exported) -> None:
    texts, translator = toy.sentences(30, seed=7), opened(bart)
    for beams in (2, 4):
        expected = generated(bart, texts, num_beams=beams, early_stopping=True)
        assert translator.generate(batch_of(translator, texts), num_beams=beams) == expected


def test_settings_of_the_artifact_are_followed(bart: Exported, tmp_path: Path) -> None:
    options = {
        "min_length": 4, "no_repeat_ngram_size": 2, "max_length": 7, "forced_bos_token_id": 9,
        "forced_eos_token_id": 2,
    }  # fmt: skip
    directory = with_settings(bart.directory, tmp_path / "copy", **options)
    texts = toy.sentences(20, seed=2)
    translator = Translator(directory, threads=1, engine="ctranslate2")
    expected = generated(bart, texts, num_beams=1, **options)
    assert translator.generate(batch_of(translator, texts), num_beams=1) == expected
    assert any(len(row) == 6 for row in expected), "the test needs a row up to the limit"
    assert {row[0] for row in expected} == {9}


def test_texts_are_treated_as_with_onnxruntime(bart: Exported) -> None:
    texts = [*toy.sentences(12, seed=4), "", " \t", "w5 " * 70]
    ours, other = opened(bart), Translator(bart.directory, threads=1)
    with pytest.warns(UserWarning, match="1 of 15 texts were cut"):
        answers = ours.translate(texts, batch_tokens=40)
    with pytest.warns(UserWarning, match="1 of 15 texts were cut"):
        assert other.translate(texts) == answers


def test_int8_is_computed_where_it_is_asked_for(bart: Exported) -> None:
    texts = toy.sentences(40, seed=5)
    plain, rounded = opened(bart), opened(bart, precision="int8")
    answers = [model.translate(texts) for model in (plain, rounded)]
    same = sum(a == b for a, b in zip(*answers, strict=True))
    assert rounded.precision == "int8"
    assert same < len(texts)
    if "vnni" not in describe().get("instructions", ""):
        pytest.skip(
            "without VNNI the products of bytes are added in pairs in 16 bits, which saturate: 8 "
            "of 40 answers are float32's; 37 if the same bytes are multiplied in float32, and 31 "
            "with weights of 7 bits, whose pairs fit"
        )
    assert 0.2 * len(texts) < same


def test_bytes_as_weights_change_few_answers(bart: Exported, tmp_path: Path) -> None:
    """Multiplied in float32, which every processor does alike; the model stays as it was."""
    opened_again = open_checkpoint(str(bart.directory.parent / "dense"))
    mask = uneven_mask(opened_again.layers)
    network = Network(opened_again, bart.model, mask)
    before = {name: value.clone() for name, value in bart.model.state_dict().items()}
    write_translator(network, tmp_path / "int8", "int8")
    for name, value in bart.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    texts = toy.sentences(40, seed=5)
    tokens = [bart.tokenizer.convert_ids_to_tokens(x) for x in bart.tokenizer(texts)["input_ids"]]

    def translated(directory: Path) -> list[list[str]]:
        translator = ctranslate2.Translator(str(directory), compute_type="float32")
        found = translator.translate_batch(tokens, beam_size=1, max_decoding_length=23)
        return [x.hypotheses[0] for x in found]

    plain, rounded = map(translated, (bart.directory / "ctranslate2", tmp_path / "int8"))
    assert 0.8 * len(texts) < sum(a == b for a, b in zip(plain, rounded, strict=True))
    assert plain != rounded


def test_its_files_are_checked(bart: Exported, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(bart.directory, out)
    path = out / "ctranslate2" / "shared_vocabulary.json"
    names = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(names[:-1]), encoding="utf-8")
    with raises(InputError, "file-changed"):
        Translator(out, engine="ctranslate2")
    Translator(out, threads=1)  # which does not open it
    for name in ("shared_vocabulary.json", "model.bin"):
        (out / "ctranslate2" / name).write_bytes(b"no such file")
        with raises(InputError, "artifact-invalid"):
            Translator(out, engine="ctranslate2", verify=False)
    shutil.rmtree(out / "ctranslate2")
    with raises(UsageError, "engine-not-in-artifact"):
        Translator(out, engine="ctranslate2")
