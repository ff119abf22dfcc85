"""What the runtime refuses, each with the id of its error."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from compressor.errors import CompressError, EnvironmentProblem, InputError, UsageError
from compressor.pipeline.engines import require_engines
from compressor.runtime import Classifier, Translator
from compressor.runtime.artifact import Generation, read_artifact
from compressor.runtime.engines import engine_for
from compressor.runtime.engines.pytorch import PyTorch
from compressor.runtime.vocabulary import count_output_tokens
from compressor.tasks import TASKS
from tests.helpers.errors import raises
from tests.helpers.runtime_artifacts import Exported
from tests.runtime.test_translator import batch_of

OF_OPENING: list[tuple[type, dict, type[CompressError], str]] = [
    (Translator, {}, InputError, "artifact-of-another-task"),
    (Classifier, {"precision": "fp8"}, UsageError, "precision-not-in-artifact"),
    (Classifier, {"workers": 0}, UsageError, "number-below-one"),
    (Classifier, {"engine": "openvnio"}, UsageError, "engine-unknown"),
    (Classifier, {"engine": "ctranslate2"}, UsageError, "engine-not-for-task"),
    (Classifier, {"engine": "pytorch"}, UsageError, "engine-not-in-artifact"),
    (
        Classifier,
        {"engine": "openvino", "precision": "int8"},
        UsageError,
        "precision-not-of-engine",
    ),
    (Classifier, {"engine": "openvino", "device": "cuda"}, UsageError, "device-not-of-engine"),
    (Classifier, {"engine": "openvino", "device": "tpu"}, UsageError, "device-unknown"),
    (Classifier, {"cache": "elsewhere"}, UsageError, "option-without-use"),
]


@pytest.mark.parametrize(("runtime", "options", "error", "id"), OF_OPENING)
def test_opening(bert: Path, runtime, options, error, id) -> None:
    with raises(error, id):
        runtime(bert, **options)


def test_where_compiled_models_cannot_be_kept(bert: Path, tmp_path: Path) -> None:
    with raises(UsageError, "cache-in-artifact"):
        Classifier(bert, engine="openvino", cache=bert / "onnx" / "cache")
    (tmp_path / "file").touch()
    with raises(InputError, "cache-not-writable"):
        Classifier(bert, engine="openvino", cache=tmp_path / "file")


@pytest.mark.slow
def test_texts(bert: Path, pieces: Exported) -> None:
    """Those of streams before anything is read, not when the first answer is asked for."""
    classifier = Classifier(bert, threads=1)
    translator = Translator(pieces.directory, threads=1)
    for answer in (
        classifier.classify, classifier.probabilities, classifier.classify_stream,
        translator.translate, translator.translate_stream,
    ):  # fmt: skip
        with raises(UsageError, "text-not-in-a-list") as caught:
            answer("w5 w6")
        assert "['w5 w6']" in str(caught.value)
    with raises(UsageError, "pairs-do-not-match-texts"):
        classifier.logits(["w5", "w6"], ["w7"])
    for answer, options in (
        (classifier.classify, {"batch_tokens": 0}),
        (classifier.classify_stream, {"chunk_rows": 0}),
        (translator.translate, {"max_new_tokens": 0}),
        (translator.translate_stream, {"batch_tokens": 0}),
        (translator.translate_stream, {"chunk_rows": -1}),
        (translator.translate_stream, {"num_beams": 0}),
    ):
        with raises(UsageError, "number-below-one"):
            answer(["w5"], **options)


@pytest.mark.slow
def test_generating(pieces: Exported) -> None:
    translator = Translator(pieces.directory, threads=1)
    batch = batch_of(translator, ["w5"])
    most = pieces.model.config.max_position_embeddings
    for options, id in (
        ({"num_beams": 0}, "number-below-one"),
        ({"max_new_tokens": most + 1}, "length-beyond-positions"),
        ({"forced_length": most + 1}, "length-beyond-positions"),
        ({"num_beams": 2, "forced_length": 4}, "forced-length-with-other-limits"),
    ):
        with raises(UsageError, id):
            translator.generate(batch, **options)
    assert len(translator.generate(batch, forced_length=most)[0]) == most


def test_pytorch_as_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(UsageError, "engine-not-for-task"):
        require_engines(["onnxruntime", "pytorch"], TASKS["embedding"])
    with raises(UsageError, "engine-not-for-task"):
        engine_for("pytorch-compiled", "encoder-decoder")
    monkeypatch.setattr("compressor.runtime.engines.pytorch.choose_device", lambda *_: "cuda")
    monkeypatch.setattr(PyTorch.library().cuda, "is_available", lambda: False)
    with raises(EnvironmentProblem, "pytorch-without-cuda"):
        PyTorch.choose_device("cuda")
    assert PyTorch.choose_device("auto") == "cpu"


@pytest.mark.parametrize(
    ("name", "kind"), [("openvino", "encoder"), ("ctranslate2", "encoder-decoder")]
)
def test_a_package_that_is_missing_or_too_old_is_named(name, kind, monkeypatch) -> None:
    engine = engine_for(name, kind)
    for old in ("2025.1.0-1234-releases", "4.7.9", "5.0.1", "2027.0.0"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__version__=old))
        with raises(EnvironmentProblem, "engine-version"):
            engine.library()
    monkeypatch.setitem(sys.modules, name, None)
    with raises(EnvironmentProblem, f"{name}-not-installed") as caught:
        engine.library()
    assert f"pip install '{name}>=" in str(caught.value)
    assert caught.value.exit_code == 3


TRANSLATION = {
    "schema": 1,
    "task": "translation",
    "precisions": {"fp32": {"encoder": "encoder.onnx", "decoder": "decoder.onnx"}},
    "default_precision": "fp32",
    "tokenizer": "tokenizer.json",
    "max_source_tokens": 32,
    "pad_token_id": 9,
    "inputs": ["input_ids", "attention_mask"],
    "decoder_self_heads": [2, 0],
    "cross_heads": [0, 1],
    "head_dim": 8,
    "vocab_size": 10,
    "generation": {"decoder_start_token_id": 9, "eos_token_id": [0], "max_length": 20},
}
LANGUAGES = {"codes": {"de": 5}, "source": "de"}
SEARCH = TRANSLATION["generation"]


def write(directory: Path, data: object) -> Path:
    (directory / "onnx").mkdir()
    (directory / "onnx" / "graphs.json").write_text(json.dumps(data), encoding="utf-8")
    return directory


def test_an_artifact_is_read(tmp_path: Path) -> None:
    search = SEARCH | {
        "forced_eos_token_id": [1, 2],
        "early_stopping": "never",
        "length_penalty": 2,
    }
    data = TRANSLATION | {"generation": search, "languages": LANGUAGES, "source_prefix": "de: "}
    artifact = read_artifact(write(tmp_path, data))
    assert artifact.task == "translation"
    assert (artifact.cross_heads, artifact.made_for) == ([0, 1], None)
    assert artifact.languages.codes == {"de": 5}
    assert artifact.generation == Generation(
        decoder_start_token_id=9, eos_token_id=[0], max_length=20, length_penalty=2.0,
        forced_eos_token_id=[1, 2], early_stopping="never",
    )  # fmt: skip
    assert artifact.file("decoder", None) == "decoder.onnx"
    with raises(InputError, "graph-not-in-artifact"):
        artifact.file("model", "fp32")


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"schema": 2}, "translation.schema: 2 is not 1"),
        ({"schema": True}, "translation.schema: True is not 1"),
        ({"task": "speech"}, "the file"),
        ({"generation": {"eos_token_id": [0]}}, "generation.decoder_start_token_id: it is missing"),
        ({"generation": SEARCH | {"beams": 2}}, "generation.beams: it is not a known setting"),
        ({"generation": SEARCH | {"max_length": None}}, "either max_length or max_new_tokens"),
        ({"generation": SEARCH | {"max_length": 1}}, "1 is not a number from 2 to 2147483647"),
        ({"generation": SEARCH | {"length_penalty": float("nan")}}, "nan is not a finite number"),
        ({"generation": SEARCH | {"length_penalty": 10**400}}, "is not a finite number"),
        ({"generation": SEARCH | {"eos_token_id": 0}}, "0 is not a list of 0 or more"),
        ({"generation": SEARCH | {"forced_eos_token_id": [-1]}}, "[-1] is not a number"),
        ({"generation": SEARCH | {"early_stopping": 1}}, "1 is not True or False or 'never'"),
        ({"precisions": {"fp32": {"encoder": "../encoder.onnx"}}}, "precisions.fp32.encoder"),
        ({"precisions": {}}, "{} is not an object with 1 or more keys"),
        ({"tokenizer": 3}, "translation.tokenizer"),
        ({"head_dim": 2.0}, "translation.head_dim: 2.0 is not a number"),
        ({"source_prefix": None}, "None is not a text"),
        ({"languages": LANGUAGES | {"source": "en"}}, "language 'en' is none"),
        ({"made_for": {"fp16": "tpu"}}, "made_for.fp16: 'tpu' is not 'cuda'"),
        ([], "the file"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_malformed_artifacts(change: dict | list, wrong: str, tmp_path: Path) -> None:
    write(tmp_path, TRANSLATION | change if isinstance(change, dict) else change)
    with raises(InputError, "artifact-invalid") as caught:
        read_artifact(tmp_path)
    assert wrong in str(caught.value)


@pytest.mark.parametrize("ids", [[], [5, 3], [3, 3], [-1, 3], [1, 10], [1.5], [None], [[1]], {}, 3])
def test_malformed_output_tokens(ids: object, tmp_path: Path) -> None:
    write(tmp_path, TRANSLATION | {"output_tokens": "output_tokens.json"})
    file = tmp_path / "onnx" / "output_tokens.json"
    file.write_text("[0, 3, 9]", encoding="utf-8")
    assert count_output_tokens(tmp_path) == 3
    file.write_text(json.dumps(ids), encoding="utf-8")
    with raises(InputError, "output-tokens-unreadable"):
        count_output_tokens(tmp_path)


def test_int8_is_for_the_cpu(tmp_path: Path) -> None:
    both = {name: {"encoder": "e", "decoder": "d"} for name in ("fp32", "int8")}
    write(tmp_path, TRANSLATION | {"precisions": both, "default_precision": "int8"})
    with raises(UsageError, "precision-not-on-device"):
        Translator(tmp_path, device="cuda", verify=False)
