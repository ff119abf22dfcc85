"""Small graphs that take rows of a decoder's caches.

In beam search hypotheses change places, and finished sentences leave the batch: a row of the batch
is a row of every cache. The caches stay on the device where the decoder runs, so a graph takes the
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from compressor.runtime.decoder import ROWS, SELECT_CACHES, SELECT_PAST, selected

OPSET, IR_VERSION = 13, 8  # of small graphs; Gather has not changed since opset 13


def export_cache_rows(cross: Sequence[str], past: Sequence[str], directory: Path) -> dict[str, str]:
    """Write a graph for the past alone, and one for all caches; none for a decoder without.

    Args:
        cross, past: names of the decoder's inputs with float32 caches.

    Returns:
        Role of each graph -> file name.
    """
    caches = {SELECT_PAST: list(past), SELECT_CACHES: [*cross, *past]}
    files = {role: f"{role}.onnx" for role, names in caches.items() if names}
    for role, file in files.items():
        _write(caches[role], directory / file)
    return files


def _write(names: Sequence[str], path: Path) -> None:
    """For every input `x` an output `selected(x)`, whose row i is row `rows[i]` of `x`."""

    def cache(name: str) -> onnx.ValueInfoProto:
        # [batch, heads, length, head_dim]
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4)

    rows = helper.make_tensor_value_info(ROWS, TensorProto.INT64, [None])
    graph = helper.make_graph(
        [helper.make_node("Gather", [name, ROWS], [selected(name)], axis=0) for name in names],
        path.stem,
        [rows, *map(cache, names)],
        [cache(selected(name)) for name in names],
    )
    # Both versions are named: by default they are the newest, which older runtimes cannot read.
    opsets = [helper.make_opsetid("", OPSET)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION), path)
