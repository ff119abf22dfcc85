"""Devices: those that cannot be used are errors, and `auto` falls back to the CPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
from onnxruntime.datasets import get_example

from compressor.errors import EnvironmentProblem
from compressor.runtime import session as sessions
from compressor.runtime.session import PROVIDERS, choose_device, open_session, try_device
from tests.helpers.errors import raises

EXAMPLE = Path(get_example("mul_1.onnx"))  # X [3, 2] times a constant


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


def test_cuda_libraries_are_looked_for_wherever_they_are_installed(
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
    monkeypatch.setattr(onnxruntime, "preload_dlls", preload)
    sessions.preload_cuda.cache_clear()
    sessions.preload_cuda()
    sessions.preload_cuda()
    sessions.preload_cuda.cache_clear()
    folders = [str(tmp_path / "nvidia" / folder) for folder in ("cu13/lib", "cudnn/lib")]
    assert asked == [*folders, None]
    assert capfd.readouterr() == ("", "not in None\n")


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
