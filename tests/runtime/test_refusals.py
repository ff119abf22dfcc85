"""What the runtime refuses, and devices that cannot be used: each with the id of its error."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
from onnxruntime.datasets import get_example

from compressor.errors import CompressError, EnvironmentProblem, InputError, UsageError
from compressor.pipeline.inputs import require_engines
from compressor.runtime import Classifier, Translator
from compressor.runtime import session as sessions
from compressor.runtime.artifact import read_artifact
from compressor.runtime.engines import engine_for
from compressor.runtime.engines.pytorch import PyTorch
from compressor.runtime.session import PROVIDERS, choose_device, open_session, try_device
from compressor.runtime.vocabulary import count_output_tokens
from compressor.tasks import TASKS
from tests.helpers.errors import raises
from tests.helpers.runtime_artifacts import Exported
from tests.runtime.test_translator import batch_of

VINO = {"engine": "openvino"}
OF_OPENING: list[tuple[type, dict, type[CompressError], str]] = [
    (Translator, {}, InputError, "artifact-of-another-task"),
    (Classifier, {"precision": "fp8"}, UsageError, "precision-not-in-artifact"),
    (Classifier, {"workers": 0}, UsageError, "number-below-one"),
    (Classifier, {"engine": "openvnio"}, UsageError, "engine-unknown"),
    (Classifier, {"engine": "ctranslate2"}, UsageError, "engine-not-for-task"),
    (Classifier, {"engine": "pytorch"}, UsageError, "engine-not-in-artifact"),
    (Classifier, VINO | {"precision": "int8"}, UsageError, "precision-not-of-engine"),
    (Classifier, VINO | {"device": "cuda"}, UsageError, "device-not-of-engine"),
    (Classifier, VINO | {"device": "tpu"}, UsageError, "device-unknown"),
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
        (classifier.classify_stream, {"chunk_rows": 0}),
        (translator.translate, {"max_new_tokens": 0}),
        (translator.translate_stream, {"batch_tokens": 0}),
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
    for old in ("2025.1.0-1234-releases", "4.7.9", "5.0.1"):
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
SEARCH = TRANSLATION["generation"]


def write(directory: Path, data: object) -> Path:
    (directory / "onnx").mkdir()
    (directory / "onnx" / "graphs.json").write_text(json.dumps(data), encoding="utf-8")
    return directory


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"schema": 2}, "translation.schema: 2 is not 1"),
        ({"task": "speech"}, "the file"),
        ({"generation": {"eos_token_id": [0]}}, "generation.decoder_start_token_id: it is missing"),
        ({"generation": SEARCH | {"beams": 2}}, "generation.beams: it is not a known setting"),
        ({"generation": SEARCH | {"max_length": 1}}, "1 is not a number from 2 to 2147483647"),
        ({"generation": SEARCH | {"length_penalty": float("nan")}}, "nan is not a finite number"),
        ({"generation": SEARCH | {"forced_eos_token_id": [-1]}}, "[-1] is not a number"),
        ({"generation": SEARCH | {"early_stopping": 1}}, "1 is not True or False or 'never'"),
        ({"precisions": {"fp32": {"encoder": "../encoder.onnx"}}}, "precisions.fp32.encoder"),
        ({"precisions": {}}, "{} is not an object with 1 or more keys"),
        ({"head_dim": 2.0}, "translation.head_dim: 2.0 is not a number"),
        ({"languages": {"codes": {"de": 5}, "source": "en"}}, "language 'en' is none"),
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


@pytest.mark.parametrize("ids", [[], [5, 3], [3, 3], [-1, 3], [1, 10], [1.5], {}])
def test_malformed_output_tokens(ids: object, tmp_path: Path) -> None:
    write(tmp_path, TRANSLATION | {"output_tokens": "output_tokens.json"})
    file = tmp_path / "onnx" / "output_tokens.json"
    file.write_text("[0, 3, 9]", encoding="utf-8")
    assert count_output_tokens(tmp_path) == 3
    file.write_text(json.dumps(ids), encoding="utf-8")
    with raises(InputError, "output-tokens-unreadable"):
        count_output_tokens(tmp_path)


def test_what_is_not_in_an_artifact_or_not_for_a_device(tmp_path: Path) -> None:
    both = {name: {"encoder": "e", "decoder": "d"} for name in ("fp32", "int8")}
    write(tmp_path, TRANSLATION | {"precisions": both, "default_precision": "int8"})
    with raises(UsageError, "precision-not-on-device"):
        Translator(tmp_path, device="cuda", verify=False)
    with raises(InputError, "graph-not-in-artifact"):
        read_artifact(tmp_path).file("model", "fp32")


EXAMPLE = Path(get_example("mul_1.onnx"))  # X [3, 2] times a constant


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
        # Sums of products and of normalizations are float32's.
        assert settings == {"use_tf32": "0", "enable_skip_layer_norm_strict_mode": "1"}
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


def test_a_failing_run_does_not_go_on_elsewhere() -> None:
    failure = onnxruntime.capi.onnxruntime_pybind11_state.EPFail

    class Failing:
        def __init__(self, session: object) -> None:
            self.session = session

        def __getattr__(self, name: str) -> object:
            return getattr(self.session, name)

        def run(self, *_: object) -> None:
            raise failure("CUDA failure 2: out of memory")

    session = open_session(EXAMPLE)
    session._sess = Failing(session._sess)
    with pytest.raises(failure):
        session.run(None, {"X": np.zeros((3, 2), np.float32)})
