"""The graphs that take rows of a decoder's caches are valid, and an artifact without them works."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from compressor.export.cache_rows import export_cache_rows
from compressor.export.fp16 import to_fp16
from compressor.runtime import Translator, collate
from compressor.runtime.artifact import read_artifact
from compressor.runtime.decoder import ROWS, SELECT_CACHES, SELECT_PAST, selected
from compressor.runtime.session import open_session
from tests.helpers import runtime_artifacts, toy

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


@pytest.mark.parametrize("beams", [1, 3])
def test_an_artifact_without_these_graphs_translates_the_same(tmp_path: Path, beams: int) -> None:
    made = runtime_artifacts.translator().directory
    bare = tmp_path / "bare"
    shutil.copytree(made, bare)
    graphs = bare / "onnx"
    data = json.loads((graphs / "graphs.json").read_text(encoding="utf-8"))
    for role in (SELECT_PAST, SELECT_CACHES):
        (graphs / data["precisions"]["fp32"].pop(role)).unlink()
    (graphs / "graphs.json").write_text(json.dumps(data), encoding="utf-8")
    runtime_artifacts.write_hashes(bare)
    assert set(read_artifact(bare).precisions["fp32"]) == {"encoder", "decoder"}

    texts = toy.sentences(12)
    answers = []
    for directory in (made, bare):
        translator = Translator(directory, threads=1)
        batch = collate(translator.encode(texts), translator.artifact.pad_token_id,
                        translator.artifact.inputs)  # fmt: skip
        answers.append(translator.generate(batch, num_beams=beams))
    assert answers[0] == answers[1]
    assert len({len(row) for row in answers[0]}) > 1  # some sentences leave the batch bare
