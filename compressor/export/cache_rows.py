"""Small graphs that select rows of a decoder's caches.

In beam search hypotheses are reordered, and finished sentences leave the batch: a row of the batch
is a row of every cache. The caches stay on the decoder's device, so a graph selects the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from compressor.runtime.decoder import ROWS, SELECT_CACHES, SELECT_PAST, selected

OPSET, IR_VERSION = 13, 8  # of small graphs; Gather has not changed since opset 13


def export_cache_rows(cross: Sequence[str], past: Sequence[str], directory: Path) -> dict[str, str]:
    """Write a graph for the past alone, and one for all caches; none for a decoder without caches.

    Returns:
        Role of each graph -> file name.
    """
    files = {}
    for role, names in ((SELECT_PAST, past), (SELECT_CACHES, [*cross, *past])):
        if names:
            files[role] = f"{role}.onnx"
            inputs = dict.fromkeys(names, TensorProto.FLOAT)
            graph = gather_graph(role, inputs, ROWS, selected, axis=0)
            write_small_graph(graph, directory / files[role])
    return files


def gather_graph(
    name: str, caches: Mapping[str, int], indices: str, rename: Callable[[str], str], axis: int
) -> onnx.GraphProto:
    """A graph that gathers entries of caches along an axis, by an input of indices.

    Args:
        caches: name of each [batch, heads, length, head_dim] -> its type.
    """
    inputs = [helper.make_tensor_value_info(x, kind, [None] * 4) for x, kind in caches.items()]
    return helper.make_graph(
        [helper.make_node("Gather", [x, indices], [rename(x)], axis=axis) for x in caches],
        name,
        [helper.make_tensor_value_info(indices, TensorProto.INT64, [None]), *inputs],
        [helper.make_tensor_value_info(rename(x), kind, [None] * 4) for x, kind in caches.items()],
    )


def write_small_graph(graph: onnx.GraphProto, path: Path) -> None:
    # With explicit versions: the defaults are the newest, which older runtimes cannot read.
    opsets = [helper.make_opsetid("", OPSET)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION), path)
