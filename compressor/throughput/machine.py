"""This machine's upper limits, measured through onnxruntime in about a second.

Three numbers bound the time of any operation from below: how fast large matrices are multiplied,
how fast memory is read and written, and how long the smallest operation takes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from compressor.errors import UsageError, did_you_mean
from compressor.runtime.session import open_session

if TYPE_CHECKING:
    import onnx

# device -> side of the square matrices that are multiplied, and MiB that are copied: large enough
# for the full rate, and far larger than the caches.
SIZES = {"cpu": (1024, 64), "cuda": (4096, 256)}
EXTRA_NODES = 4  # on a GPU, so that the time of a node can be told from that of starting a run
_CHAIN = 200  # tiny products in a row, to time the launch of one
SECONDS = 0.3  # per measurement


@dataclass(frozen=True)
class Machine:
    """Measured upper limits of one device, for one precision and number of threads."""

    stored_rate: float  # multiply-adds per second with stored weights, in their precision
    value_rate: float  # multiply-adds per second of one computed matrix with another
    bandwidth: float  # bytes per second, reading and writing together
    launch: float  # seconds the smallest matrix product takes
    weight_bytes: float = 4
    value_bytes: float = 4
    runs_ahead: bool = False  # whether nodes are launched while earlier ones still compute


# precision -> (weight bytes, value bytes, element type of values)
_PRECISIONS: dict[str, tuple[int, int, type[np.generic]]] = {
    "fp32": (4, 4, np.float32),
    "fp16": (2, 2, np.float16),
    "int8": (1, 4, np.float32),
}


@cache
def measure_machine(device: str = "cpu", threads: int = 1, precision: str = "fp32") -> Machine:
    """Measure once per process, device, thread count and precision; takes one to two seconds.

    Args:
        device: `cpu` or `cuda`.
        threads: threads of one operation on the CPU.
        precision: `fp32`, `fp16` or `int8` (weights only).

    Raises:
        UsageError: unknown precision.
        EnvironmentProblem: the device is not usable.
    """
    if precision not in _PRECISIONS:
        raise UsageError(
            f"precision {precision!r} cannot be measured; choose one of {', '.join(_PRECISIONS)}"
            f"{did_you_mean(precision, _PRECISIONS)}",
            id="precision-unknown",
        )
    weight_bytes, value_bytes, element = _PRECISIONS[precision]
    side, copied_mib = SIZES[device]
    square = np.random.default_rng(0).standard_normal((side, side), np.float32)
    # Products of several such matrices neither overflow nor vanish.
    square = (square / np.sqrt(side)).astype(element)
    macs = float(side**3)
    value_rate = macs / _node_seconds("MatMul", [square, square], device, threads)
    stored_rate = value_rate
    if precision == "int8":
        integers = [np.full((side, side), 3, dtype=kind) for kind in (np.uint8, np.int8)]
        stored_rate = macs / best_seconds("MatMulInteger", integers, 1, device, threads)
    large = np.ones(copied_mib * 2**20 // 4, dtype=np.float32)
    copy_seconds = _node_seconds("Abs", [large], device, threads)
    small = np.eye(4, dtype=np.float32)
    chain_seconds = best_seconds("MatMul", [small, small], _CHAIN, device, threads)
    return Machine(
        stored_rate=stored_rate,
        value_rate=value_rate,
        bandwidth=2 * large.nbytes / copy_seconds,
        launch=chain_seconds / _CHAIN,
        weight_bytes=weight_bytes,
        value_bytes=value_bytes,
        runs_ahead=device == "cuda",
    )


def _node_seconds(operator: str, inputs: list[np.ndarray], device: str, threads: int) -> float:
    """Seconds of one node, without the time of starting a run.

    On a GPU a run takes longer to start and to wait for than a large product takes to compute; so
    there it is the time that further nodes add to a run.
    """
    once = best_seconds(operator, inputs, 1, device, threads)
    if device == "cpu":
        return once
    several = best_seconds(operator, inputs, 1 + EXTRA_NODES, device, threads)
    added = (several - once) / EXTRA_NODES
    return added if added > 0 else several / (1 + EXTRA_NODES)


def best_seconds(
    operator: str, inputs: list[np.ndarray], chain: int, device: str, threads: int
) -> float:
    """Shortest time of a graph of `chain` equal nodes, inputs and output staying on the device."""
    import onnx

    with TemporaryDirectory() as folder:
        path = Path(folder) / "operator.onnx"
        onnx.save(_graph(operator, inputs, chain), path)
        session = open_session(path, device, threads)
    binding = _bind(session, inputs, device)
    session.run_with_iobinding(binding)
    best, end = float("inf"), time.perf_counter() + SECONDS
    while best == float("inf") or time.perf_counter() < end:
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        best = min(best, time.perf_counter() - start)
    return best


def _graph(operator: str, inputs: list[np.ndarray], chain: int) -> onnx.ModelProto:
    import onnx
    from onnx import helper

    kinds = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in inputs]
    names = [f"input.{number}" for number in range(len(inputs))]
    nodes, current = [], names[0]
    for number in range(chain):
        nodes.append(helper.make_node(operator, [current, *names[1:]], [f"value.{number}"]))
        current = f"value.{number}"
    result = onnx.TensorProto.INT32 if operator == "MatMulInteger" else kinds[0]
    graph = helper.make_graph(
        nodes,
        "measure",
        [
            helper.make_tensor_value_info(name, kind, array.shape)
            for name, kind, array in zip(names, kinds, inputs, strict=True)
        ],
        [helper.make_tensor_value_info(current, result, inputs[0].shape)],
    )
    opset = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


def _bind(session: Any, inputs: list[np.ndarray], device: str) -> Any:
    import onnxruntime

    binding = session.io_binding()
    for info, array in zip(session.get_inputs(), inputs, strict=True):
        value = onnxruntime.OrtValue.ortvalue_from_numpy(array, device, 0)
        binding.bind_ortvalue_input(info.name, value)
    binding.bind_output(session.get_outputs()[0].name, device, 0)
    return binding
