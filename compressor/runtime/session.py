"""Opening ONNX sessions on the device that was asked for, and on no other."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from compressor.errors import EnvironmentProblem, InputError, UsageError
from compressor.runtime.gather import gather_graph

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Device = Literal["cpu", "cuda"]
PROVIDERS: dict[str, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_ERRORS_ONLY = 3


def open_session(
    graph: Path | bytes, device: str = "cpu", threads: int | None = None
) -> InferenceSession:
    """Open a graph on `device` with all graph optimisations.

    Args:
        graph: an ONNX file, or a serialised model.
        device: `cpu` or `cuda`.
        threads: threads within an operation; None leaves the choice to onnxruntime.

    Raises:
        UsageError: an unknown device, or less than one thread.
        EnvironmentProblem: onnxruntime is not installed, or the device is not usable.
        InputError: no such file, or not an ONNX graph that this onnxruntime can run.
    """
    ort = _onnxruntime()
    provider = _provider(device, ort)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = _ERRORS_ONLY  # shape arithmetic stays on the CPU on purpose
    # Idle workers otherwise spin for tens of milliseconds after a run, on the cores that the next
    # session needs: a translator has three, and a benchmark runs several models in turn.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if threads is not None:
        if threads < 1:
            raise UsageError(f"threads is {threads}, but must be at least 1")
        options.intra_op_num_threads = threads
    fallback = PROVIDERS["cpu"]  # a session on CUDA needs it for shape arithmetic
    wanted = [provider] if provider == fallback else [provider, fallback]
    session = _create(ort, graph, options, wanted)
    if session.get_providers()[0] != provider:
        raise EnvironmentProblem(
            f"device {device!r} was requested, but onnxruntime {ort.__version__} could not start "
            f"{provider} and chose {session.get_providers()[0]}; check the GPU driver and the "
            "CUDA and cuDNN versions with `compress doctor`, or use device 'cpu'"
        )
    return session


def try_device(device: str) -> str:
    """Run a small graph on `device`.

    Returns:
        The provider that ran it.

    Raises:
        UsageError, EnvironmentProblem: as `open_session`.
    """
    import numpy as np

    session = open_session(gather_graph({"x": "tensor(float)"}), device)
    feeds = {"x": np.zeros((2, 1, 1, 1), np.float32), "rows": np.array([1, 0])}
    session.run(None, feeds)
    return str(session.get_providers()[0])


def choose_device(device: str) -> Device:
    """Turn `auto` into `cuda` where that works and `cpu` elsewhere; make sure of the others.

    Raises:
        UsageError: an unknown device.
        EnvironmentProblem: a device was named that is not usable.
    """
    if device != "auto":
        try_device(device)
        return "cuda" if device == "cuda" else "cpu"
    try:
        try_device("cuda")
    except EnvironmentProblem:
        try_device("cpu")
        return "cpu"
    return "cuda"


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise EnvironmentProblem(
            "the package onnxruntime is not installed; install `onnxruntime-gpu` for NVIDIA GPUs "
            "and CPUs, or `onnxruntime` for CPUs only, and not both"
        ) from error
    return onnxruntime


def _provider(device: str, ort: Any) -> str:
    if device not in PROVIDERS:
        raise UsageError(f"device {device!r} is unknown; use one of {', '.join(PROVIDERS)}")
    provider = PROVIDERS[device]
    if provider not in ort.get_available_providers():
        raise EnvironmentProblem(
            f"device {device!r} was requested, but this onnxruntime {ort.__version__} has only "
            f"{', '.join(ort.get_available_providers())}; uninstall it and install "
            "`onnxruntime-gpu`, or use device 'cpu'"
        )
    if device == "cuda":
        _prepare_cuda(ort)
    return provider


def _prepare_cuda(ort: Any) -> None:
    # Without a driver onnxruntime would fill stderr with the libraries it misses, and go on.
    driver = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(driver)
    except OSError as error:
        raise EnvironmentProblem(
            f"device 'cuda' was requested, but this machine has no NVIDIA driver ({driver}); "
            "use device 'cpu'"
        ) from error
    if hasattr(ort, "preload_dlls"):
        # Finds the CUDA libraries that came as Python packages; prints what it does not find.
        with contextlib.redirect_stdout(sys.stderr):
            ort.preload_dlls()


def _create(ort: Any, graph: Path | bytes, options: Any, providers: list[str]) -> Any:
    if isinstance(graph, Path) and not graph.is_file():
        raise InputError(f"there is no graph {graph}; export the model again")
    state = ort.capi.onnxruntime_pybind11_state
    try:
        return ort.InferenceSession(
            graph if isinstance(graph, bytes) else str(graph), options, providers=providers
        )
    except (state.Fail, state.InvalidProtobuf, state.InvalidGraph, state.NotImplemented) as error:
        raise InputError(
            f"onnxruntime {ort.__version__} cannot open {graph!s:.200}: "
            f"{str(error).splitlines()[0]}; export the model again"
        ) from error
