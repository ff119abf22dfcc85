"""Graphs that no single protobuf message holds: above 2 GiB, whose weights lie in other files."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest

from benchmarks import stages
from benchmarks.speed import models
from compressor.pipeline.verification import verify_directory
from compressor.runtime import Classifier

LARGEST_MESSAGE = 2**31 - 1  # bytes, of protobuf
LAYERS, WIDTH, PIECES = 2, 2048, 240_000


def graph_bytes(path: Path) -> int:
    return sum(found.stat().st_size for found in path.parent.glob(f"{path.name}*"))


@pytest.mark.attack
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures memory by way of /proc")
def test_a_model_above_two_gibibytes_is_exported(tmp_path):
    """596 million parameters: read, exported in float32 and int8, verified, opened."""
    out = models.encoder(tmp_path / "out", layers=LAYERS, width=WIDTH, pieces=PIECES)
    stored = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    assert stored > 1.1 * LARGEST_MESSAGE
    words = ["export", "-m", str(out), "-o", str(out), "--precision", "fp32,int8"]
    found = stages.measure([*words, "--device", "cpu"])
    path = out / "onnx" / "model.onnx"
    assert graph_bytes(path) > LARGEST_MESSAGE
    assert path.stat().st_size < 64 << 20  # what is not weights
    assert 0.2 < graph_bytes(path.with_name("model.int8.onnx")) / graph_bytes(path) < 0.3
    graph = onnx.load(path, load_external_data=False)
    assert {x.data_location for x in graph.graph.initializer if len(x.dims) == 2} == {
        onnx.TensorProto.EXTERNAL
    }
    assert verify_directory(out).opened == [f"{out} fp32", f"{out} int8"]
    texts = ["The train is late again.", "Where is the station?"]
    answers = {name: Classifier(out, precision=name).classify(texts) for name in ("fp32", "int8")}
    assert answers["fp32"] == answers["int8"]
    # 2.7 checkpoints were measured for a whole run, Python with its libraries among them.
    peaks = [round(stage.peak_mib * 2**20 / stored, 2) for stage in found]
    print(peaks)
    assert max(peaks) < 3
