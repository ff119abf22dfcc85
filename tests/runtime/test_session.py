"""What the runtime refuses: devices that are not there, and artifacts that are none."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
from onnxruntime.datasets import get_example

from compressor.errors import EnvironmentProblem, InputError, UsageError
from compressor.runtime import Translator
from compressor.runtime import session as sessions
from compressor.runtime.artifact import Generation, read_artifact
from compressor.runtime.session import PROVIDERS, choose_device, open_session, try_device
from tests.helpers.errors import raises

EXAMPLE = Path(get_example("mul_1.onnx"))  # X [3, 2] times a constant
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


def write(directory: Path, data: object) -> Path:
    (directory / "onnx").mkdir()
    text = data if isinstance(data, str) else json.dumps(data)
    (directory / "onnx" / "graphs.json").write_text(text, encoding="utf-8")
    return directory


def test_a_package_without_the_provider_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with raises(EnvironmentProblem, "onnxruntime-without-provider"):
        try_device("cuda")
    assert choose_device("auto") == "cpu"


def test_a_session_that_fell_back_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU package lists CUDA on every machine, and then uses the CPU without an error."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(sessions, "prepare_cuda", lambda: None)
    fallen_back = SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: fallen_back)
    with raises(EnvironmentProblem, "gpu-not-usable"):
        try_device("cuda")
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


def test_cuda_libraries_are_found_wherever_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The package in a folder of its own, CUDA's libraries with torch."""
    for folder in ("cu13/lib", "cudnn/lib", "cu13/include"):
        (tmp_path / "nvidia" / folder).mkdir(parents=True)
    asked: list[str | None] = []

    def preload(directory: str | None = None) -> None:
        asked.append(directory)
        print(f"not in {directory}")

    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "nvidia")])
    monkeypatch.setattr(sessions.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(onnxruntime, "preload_dlls", preload, raising=False)
    sessions.preload_cuda.cache_clear()
    sessions.preload_cuda()
    sessions.preload_cuda()
    sessions.preload_cuda.cache_clear()
    folders = [str(tmp_path / "nvidia" / folder) for folder in ("cu13/lib", "cudnn/lib")]
    assert asked == [*folders, None]
    assert capfd.readouterr() == ("", "not in None\n")


def test_int8_is_for_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(sessions, "try_device", lambda device: tried.append(device) or device)
    assert choose_device("auto", ["fp32", "fp16"]) == "cuda"
    assert choose_device("auto", ["fp32", "int8"]) == "cpu"
    assert tried == ["cuda", "cpu"]
    both = {name: {"encoder": "e", "decoder": "d"} for name in ("fp32", "int8")}
    write(tmp_path, TRANSLATION | {"precisions": both, "default_precision": "int8"})
    with raises(UsageError, "precision-not-on-device"):
        Translator(tmp_path, device="cuda")


def test_an_artifact_is_read(tmp_path: Path) -> None:
    artifact = read_artifact(write(tmp_path, TRANSLATION))
    assert artifact.task == "translation"
    assert artifact.cross_heads == [0, 1]
    assert artifact.generation == Generation(
        decoder_start_token_id=9, eos_token_id=[0], max_length=20
    )
    assert artifact.file("decoder", None) == "decoder.onnx"
    with raises(InputError, "graph-not-in-artifact"):
        artifact.file("model", "fp32")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"schema": 2}, "translation.schema"),
        ({"task": "speech"}, "the file"),
        ({"generation": {"eos_token_id": [0]}}, "decoder_start_token_id"),
        ({"precisions": {"fp32": {"encoder": "../encoder.onnx"}}}, "precisions.fp32.encoder"),
        ({"head_dim": 2.0}, "head_dim"),
        ([], "the file"),
    ],
    ids=str,
)
def test_malformed_artifacts(change: dict | list, field: str, tmp_path: Path) -> None:
    write(tmp_path, TRANSLATION | change if isinstance(change, dict) else json.dumps(change))
    with raises(InputError, "artifact-invalid") as caught:
        read_artifact(tmp_path)
    assert field in str(caught.value)


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
