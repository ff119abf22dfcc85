"""Opening ONNX sessions on the requested device; there is no fallback to another one."""

from __future__ import annotations

import contextlib
import ctypes
import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from compressor.errors import EnvironmentProblem, InputError, UsageError
from compressor.runtime.artifact import CPU_ONLY
from compressor.runtime.gpu_thread import in_turn
from compressor.runtime.opening import unusable
from compressor.storage.names import ONNXRUNTIME

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, IOBinding, OrtValue

Device = Literal["cpu", "cuda"]
PROVIDERS: dict[str, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def open_session(
    graph: Path,
    device: str = "cpu",
    threads: int | None = None,
    *,
    without: Sequence[str] = (),
    captures: bool = False,
    plans: bool = True,
) -> InferenceSession:
    """Open a graph on a device with all of onnxruntime's optimizations but those that are named.

    Args:
        graph: an ONNX file.
        device: `cpu` or `cuda`.
        threads: within an operation; None leaves the choice to onnxruntime.
        without: onnxruntime's names of the optimizations to leave out.
        captures: whether runs can be captured as CUDA graphs.
        plans: whether attention may be cuDNN's on a GPU, which is planned for each new shape.

    Raises:
        UsageError: an unknown device.
        EnvironmentProblem: onnxruntime is not installed, or the device is not usable.
        InputError: no such file, or not an ONNX graph that this onnxruntime can run.
    """
    ort = import_onnxruntime()
    require_device(device)
    provider, available = PROVIDERS[device], ort.get_available_providers()
    if provider not in available:
        raise EnvironmentProblem(
            f"device {device!r} was requested, but this onnxruntime {ort.__version__} has only "
            f"{', '.join(available)}; uninstall it and install "
            "`onnxruntime-gpu`, or use device 'cpu'",
            id="onnxruntime-without-provider",
        )
    if device == "cuda":
        prepare_cuda()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    # Errors only: it would warn that shape arithmetic stays on the CPU, where it belongs.
    options.log_severity_level = 3
    # Idle workers otherwise spin for tens of milliseconds after a run, on the cores that the next
    # session needs: a translator has three, and a benchmark runs several models in turn.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    settings = {"enable_cuda_graph": "1"} if captures else {}
    if not plans:  # Flash Attention, CUTLASS's kernel, products with a softmax
        settings["sdpa_kernel"] = str(1 | 2 | 16)
    create = partial(in_turn, _create) if device == "cuda" else _create
    session = create(ort, graph, options, device, without, settings)
    # The package for GPUs may use the CPU without an error.
    if session.get_providers()[0] != provider:
        raise _not_started(ort, f"and chose {session.get_providers()[0]}")
    return session


def _create(
    ort: Any, graph: Path, options: Any, device: str, without: Sequence[str], more: dict[str, str]
) -> Any:
    providers: list[Any] = [PROVIDERS["cpu"]]  # on CUDA too, for shape arithmetic
    if device == "cuda":
        # Without TF32, which would round the factors of float32 products to 10 bits.
        settings = {"use_tf32": "0"} | more
        providers.insert(0, (PROVIDERS["cuda"], settings))
    failures: tuple[type[Exception], ...] = (RuntimeError, *run_failures())
    try:
        return ort.InferenceSession(
            str(graph),
            options,
            providers=providers,
            disabled_optimizers=list(without),
            # Or it would print to stdout and continue on the CPU, here and in the middle of a run.
            enable_fallback=0,
        )
    except failures as error:
        if device == "cuda" and not isinstance(error, _graph_errors()):
            raise _not_started(ort, f"({str(error).splitlines()[0]:.200})") from error
        reason = " ".join(str(error).split())
        raise InputError(
            f"onnxruntime {ort.__version__} cannot open {graph}: {reason:.300}; export it again",
            id="graph-invalid",
        ) from error


def _graph_errors() -> tuple[type[Exception], ...]:
    """The classes that onnxruntime raises because of a graph; they are in no public module."""
    state = import_onnxruntime().capi.onnxruntime_pybind11_state
    return (
        state.Fail, state.InvalidProtobuf, state.InvalidGraph, state.NotImplemented,
        state.InvalidArgument, state.NoSuchFile, state.NoModel,
        UnicodeDecodeError,  # its message quotes a name from the graph that is no text
    )  # fmt: skip


def _not_started(ort: Any, instead: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"device 'cuda' was requested, but onnxruntime {ort.__version__} could not start "
        f"{PROVIDERS['cuda']} {instead}; check the GPU driver and the CUDA and cuDNN versions "
        "with `compress doctor`, or use device 'cpu'",
        id="gpu-not-usable",
    )


def try_device(device: str) -> str:
    """Run a small graph on a device.

    Args:
        device: `cpu` or `cuda`.

    Returns:
        The provider that ran it.

    Raises:
        UsageError: an unknown device.
        EnvironmentProblem: onnxruntime is not installed, or the device is not usable.
    """
    import_onnxruntime()
    from onnxruntime.datasets import get_example

    # That onnxruntime lists a provider does not mean that it starts: drivers may be missing.
    session = open_session(Path(get_example("mul_1.onnx")), device)
    session.run(None, {"X": np.zeros((3, 2), np.float32)})
    return str(session.get_providers()[0])


def choose_device(device: str, precisions: Sequence[str] = ()) -> Device:
    """Choose the device to run on.

    Args:
        device: `cpu` or `cuda`; `auto` is `cuda` where that works, and `cpu` elsewhere.
        precisions: of the graphs to run; with one that only the CPU has kernels for, `auto` is
            `cpu`.

    Raises:
        UsageError: an unknown device.
        EnvironmentProblem: a device was named that is not usable.
    """
    if device == "auto":
        device = "cpu"
        if not set(precisions) & set(CPU_ONLY):
            with contextlib.suppress(EnvironmentProblem):
                try_device("cuda")
                return "cuda"
    try_device(device)
    return "cuda" if device == "cuda" else "cpu"


def import_package(name: str, advice: str) -> Any:
    """The package; EnvironmentProblem with the advice where it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise EnvironmentProblem(
            f"the package {name} is not installed; {advice}", id=f"{name}-not-installed"
        ) from error


def import_onnxruntime() -> Any:
    """The module; EnvironmentProblem where neither of its two packages is installed."""
    advice = "`onnxruntime-gpu` for NVIDIA GPUs and CPUs, or `onnxruntime` for CPUs only"
    return import_package(ONNXRUNTIME, f"install {advice}, and not both")


def require_device(device: str) -> None:
    """Raise `UsageError` for the name of no device."""
    if device not in PROVIDERS:
        raise UsageError(
            f"device {device!r} is unknown; use one of {', '.join(PROVIDERS)}", id="device-unknown"
        )


@cache
def prepare_cuda() -> None:
    """Load the libraries of CUDA, once per process.

    onnxruntime looks for those of Python packages beside itself, but its folder may be another.

    Raises:
        EnvironmentProblem: there is no NVIDIA driver.
    """
    # Without a driver onnxruntime would list missing libraries on stderr, and use the CPU.
    driver = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(driver)
    except OSError as error:
        raise EnvironmentProblem(
            f"device 'cuda' was requested, but this machine has no NVIDIA driver ({driver}); "
            "use device 'cpu'",
            id="gpu-driver-missing",
        ) from error
    ort = import_onnxruntime()
    beside = Path(ort.__file__).parent.parent / "nvidia"
    spec = find_spec("nvidia")
    roots = [Path(root) for root in (spec and spec.submodule_search_locations) or []]
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what each folder lacks
        for root in roots:
            if root.resolve() == beside.resolve():
                continue
            for pattern in ("*/lib", "*/bin", "*/bin/*"):
                for folder in filter(Path.is_dir, sorted(root.glob(pattern))):
                    ort.preload_dlls(directory=str(folder))
    with contextlib.redirect_stdout(sys.stderr):
        ort.preload_dlls()  # prints the libraries that are nowhere


def run_failures() -> tuple[type[Exception], ...]:
    """The classes that a session may raise in a run: because of its graph or its device."""
    state = import_onnxruntime().capi.onnxruntime_pybind11_state
    # Runs with bound buffers raise Python's own RuntimeError for any of them.
    return (*_graph_errors(), state.RuntimeException, state.EPFail, RuntimeError)


@contextlib.contextmanager
def run_errors(directory: Path) -> Iterator[None]:
    """Turn what a graph refuses while it runs into an error of the artifact.

    Args:
        directory: of the artifact.

    Raises:
        InputError: the graph does not take what the tokenizer and `graphs.json` make.
    """
    try:
        yield
    except run_failures() as error:
        text, kind = str(error), type(error)
        # The device ("CUDA failure 2: … ; GPU=0"), or memory ("Failed to allocate", "bad_alloc…").
        if kind.__name__ == "EPFail" or "; GPU=" in text or "llocat" in text:
            raise
        if kind is RuntimeError and not text.startswith("Error in execution"):
            raise  # not onnxruntime's
        raise unusable(directory, error) from error


def bind(
    session: InferenceSession,
    inputs: Mapping[str, OrtValue | NDArray[Any]],
    outputs: Mapping[str, OrtValue | str],
) -> IOBinding:
    """Bind values to a session, so that runs copy nothing from or to Python.

    Args:
        session: the graph.
        inputs: name -> the value to read; of a CPU's memory also as a contiguous array.
        outputs: name -> the value to write to, or the name of a device to make one on in a run.
    """
    binding = session.io_binding()
    bind_inputs(binding, inputs)
    for name, target in outputs.items():
        if isinstance(target, str):
            binding.bind_output(name, target)
        else:
            binding.bind_ortvalue_output(name, target)
    return binding


def bind_inputs(binding: IOBinding, inputs: Mapping[str, OrtValue | NDArray[Any]]) -> None:
    """Bind values to read, as `bind`; what was bound to their names before no longer is."""
    for name, value in inputs.items():
        if isinstance(value, np.ndarray):
            binding.bind_cpu_input(name, value)
        else:
            binding.bind_ortvalue_input(name, value)


def to_device(array: Any, device: str) -> OrtValue:
    """The array on a device; on a CPU both share their memory."""
    from onnxruntime import OrtValue

    return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), device, 0)


def size_of(buffers: Iterable[OrtValue]) -> int:
    """Bytes of buffers."""
    return sum(buffer.tensor_size_in_bytes() for buffer in buffers)
