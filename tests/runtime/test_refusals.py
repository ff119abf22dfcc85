"""What the runtime refuses, and devices that cannot be used: each with the id of its error."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import onnxruntime
import pytest

from compressor.errors import CompressError, EnvironmentProblem, InputError, UsageError
from compressor.runtime import Classifier, Translator
from compressor.runtime import session as sessions
from compressor.runtime.engines import engine_for
from compressor.runtime.engines.pytorch import PyTorch
from compressor.runtime.opening import read_artifact
from compressor.runtime.session import PROVIDERS, choose_device, try_device
from compressor.storage.input_files import read_json
from tests.helpers.errors import raises
from tests.helpers.runtime_artifacts import Exported
from tests.runtime.test_translator import batch_of

VINO = {"engine": "openvino"}
OF_OPENING: list[tuple[type, dict, type[CompressError], str]] = [
    (Translator, {}, InputError, "artifact-of-another-task"),
    (Classifier, {"workers": 0}, UsageError, "number-below-one"),
    (Classifier, {"engine": "openvnio"}, UsageError, "engine-unknown"),
    (Classifier, {"engine": "ctranslate2"}, UsageError, "engine-not-for-task"),
    (Translator, {"engine": "pytorch-compiled"}, UsageError, "engine-not-for-task"),
    (Classifier, {"engine": "pytorch"}, UsageError, "engine-not-in-artifact"),
    (Classifier, {"device": "tpu"}, UsageError, "device-unknown"),
    (Classifier, {"device": "cuda", "precision": "int8"}, UsageError, "precision-not-on-device"),
    (Classifier, VINO | {"precision": "int8"}, UsageError, "precision-not-of-engine"),
    (Classifier, VINO | {"device": "cuda"}, UsageError, "device-not-of-engine"),
    (Classifier, VINO | {"cache": __file__}, InputError, "cache-not-writable"),
]


@pytest.mark.parametrize(("runtime", "options", "error", "id"), OF_OPENING)
def test_opening(bert: Path, runtime, options, error, id) -> None:
    with raises(error, id):
        runtime(bert, **options)


@pytest.mark.slow
def test_texts_and_limits(bert: Path, pieces: Exported) -> None:
    """Those of streams before anything is read, not when the first answer is asked for."""
    classifier, translator = Classifier(bert, threads=1), Translator(pieces.directory, threads=1)
    for answer in (classifier.classify, classifier.classify_stream, translator.translate):
        with raises(UsageError, "text-not-in-a-list"):
            answer("w5 w6")
    with raises(UsageError, "pairs-do-not-match-texts"):
        classifier.logits(["w5", "w6"], ["w7"])
    for answer, options in (
        (classifier.classify_stream, {"chunk_rows": 0}),
        (translator.translate_stream, {"batch_tokens": 0}),
        (translator.translate, {"num_beams": 0}),
    ):
        with raises(UsageError, "number-below-one"):
            answer(["w5"], **options)
    batch, most = batch_of(translator, ["w5"]), pieces.model.config.max_position_embeddings
    for option in ("max_new_tokens", "forced_length"):
        with raises(UsageError, "length-beyond-positions"):
            translator.generate(batch, **{option: most + 1})
    assert len(translator.generate(batch, forced_length=most)[0]) == most


def test_pytorch_as_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compressor.runtime.engines.pytorch.choose_device", lambda *_: "cuda")
    monkeypatch.setattr(PyTorch.library().cuda, "is_available", lambda: False)
    with raises(EnvironmentProblem, "pytorch-without-cuda"):
        PyTorch.choose_device("cuda")
    assert PyTorch.choose_device("auto") == "cpu"


def test_a_package_that_is_missing_or_of_another_version(monkeypatch) -> None:
    engine = engine_for("openvino", "encoder")
    for other in ("2025.1.0-1234-releases", "2027.0.1"):
        monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(__version__=other))
        with raises(EnvironmentProblem, "engine-version"):
            engine.library()
    monkeypatch.setitem(sys.modules, "openvino", None)
    with raises(EnvironmentProblem, "openvino-not-installed") as caught:
        engine.library()
    assert "pip install 'openvino>=" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("schema", 2), ("task", "speech"), ("task", []), ("beams", 2), ("head_dim", 2.0),
        ("generation", {"eos_token_id": [0]}),
        ("precisions", {"fp32": {"encoder": "../encoder.onnx"}}),
        ("languages", {"codes": {"de": "x"}, "source": "de"}),
    ],
)  # fmt: skip
def test_descriptions_of_artifacts(name, value, pieces: Exported, tmp_path: Path) -> None:
    data = read_json(pieces.directory / "onnx" / "graphs.json") | {name: value}
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "graphs.json").write_text(json.dumps(data), encoding="utf-8")
    with raises(InputError, "artifact-invalid"):
        read_artifact(tmp_path)


def test_a_device_that_is_not_used_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU package lists CUDA on every machine, and then uses the CPU without an error."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with raises(EnvironmentProblem, "onnxruntime-without-provider"):
        try_device("cuda")
    assert choose_device("auto") == "cpu"
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(sessions, "prepare_cuda", lambda: None)
    fallen_back = SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: fallen_back)
    with raises(EnvironmentProblem, "gpu-not-usable"):
        choose_device("cuda")


def test_what_cuda_cannot_start_is_an_error_and_auto_takes_the_cpu(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A driver without a usable GPU: onnxruntime by itself would print that and use the CPU."""
    real = onnxruntime.InferenceSession

    def start(graph: object, options: object, providers: list, **more: object) -> object:
        if providers[0] == "CPUExecutionProvider":
            return real(graph, options, providers=providers, **more)
        (name, settings), behind = providers
        assert (name, behind) == ("CUDAExecutionProvider", "CPUExecutionProvider")
        # Sums of products are float32's.
        assert settings == {"use_tf32": "0"}
        assert more["enable_fallback"] == 0
        raise RuntimeError("CUDA failure 100: no CUDA-capable device is detected\nsecond line")

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: list(PROVIDERS.values()))
    monkeypatch.setattr(sessions, "prepare_cuda", lambda: None)
    monkeypatch.setattr(onnxruntime, "InferenceSession", start)
    with raises(EnvironmentProblem, "gpu-not-usable"):
        try_device("cuda")
    assert choose_device("auto") == "cpu"
    assert capfd.readouterr() == ("", "")


def test_auto_with_int8_graphs_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "try_device", lambda device: device)
    assert choose_device("auto", ["fp32", "fp16"]) == "cuda"
    assert choose_device("auto", ["fp32", "int8"]) == "cpu"
