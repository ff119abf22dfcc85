"""The graphs that take rows of a decoder's caches are valid, and an artifact without them works."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from compressor.export.cache_rows import export_cache_rows
from compressor.export.fp16 import to_fp16
from compressor.runtime.decoder import ROWS, SELECT_CACHES, SELECT_PAST, selected
from compressor.runtime.session import open_session

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_graphs_take_rows_of_caches(tmp_path: Path, precision: str) -> None:
    cross, past = ["cross_key.0"], ["past_key.0", "past_value.0"]
    files = export_cache_rows(cross, past, tmp_path)
    rows, rng = np.array([3, 1, 1]), np.random.default_rng(0)
    element = np.float32 if precision == "fp32" else np.float16
    for role, names in ((SELECT_PAST, past), (SELECT_CACHES, cross + past)):
        path = tmp_path / files[role]
        if precision == "fp16":
            onnx.save(to_fp16(onnx.load(path)), path)
        onnx.checker.check_model(onnx.load(path), full_check=True)
        caches = {name: rng.random((4, 2, 3, 5)).astype(element) for name in names}
        caches[names[-1]] = np.zeros((4, 1, 0, 2), element)  # before the first token
        values = open_session(path, threads=1).run(
            [selected(name) for name in names], {**caches, ROWS: rows}
        )
        for name, value in zip(names, values, strict=True):
            np.testing.assert_array_equal(value, caches[name][rows])
            assert value.dtype == element


def test_a_decoder_without_caches_needs_no_graph(tmp_path: Path) -> None:
    assert export_cache_rows([], [], tmp_path) == {}
    assert set(export_cache_rows(["cross_key.0"], [], tmp_path)) == {SELECT_CACHES}
