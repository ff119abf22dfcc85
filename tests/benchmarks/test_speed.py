"""Peers give the same answers, and the tables show the measured values."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from benchmarks.scale import draw
from benchmarks.scale import table as scale_table
from benchmarks.speed import models
from benchmarks.speed.__main__ import answers, compare_peers, quality
from benchmarks.speed.peers import Peer, open_peer
from benchmarks.speed.settings import Setting
from benchmarks.speed.tables import document, summary
from compressor.model.checkpoint import open_checkpoint
from compressor.model.pruning_record import read_pruning_record
from compressor.pipeline.run import export_checkpoint, run
from compressor.progress import SILENT
from compressor.request import example
from compressor.request.recipe import ExportRequest, make_recipe, make_request
from compressor.runtime import Classifier
from compressor.tasks import TASKS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    folder = tmp_path_factory.mktemp("speed")
    checkpoint = models.encoder(folder / "checkpoint", layers=1, width=128, pieces=400)
    rows = str(models.labelled_sentences(folder / "rows.tsv"))
    recipe = make_recipe(
        model=str(checkpoint), macs="0.5", precision=["fp32", "int8"], bench=False,
        calibration=rows, calibration_rows=8, method="magnitude", recover="none",
    )  # fmt: skip
    run(recipe, folder / "out")
    return Setting(
        name="tiny", title="a tiny encoder", checkpoint=checkpoint, output=folder / "out",
        rows=TASKS["classification"].read_rows(rows, limit=12), trained=True, target_length=None,
        batches=2, warmup=1, budget={"macs": "0.5"}, macs_share=0.5,
    )  # fmt: skip


@pytest.mark.attack
def test_every_peer_is_timed_at_every_batch_size_and_length(setting: Setting):
    args = argparse.Namespace(
        device="cpu", threads=1, batches=[1, 2], lengths=[6, 9], programs=["eager"], seconds=0.001
    )
    result = compare_peers(setting, args, SILENT)
    names = [peer["name"] for peer in result["peers"]]
    assert names == [
        "transformers, eager", "compress, dense, fp32", "compress, dense, int8",
        "compress, pruned, fp32", "compress, pruned, int8",
    ]  # fmt: skip
    assert result["kept"] == read_pruning_record(setting.output).mask.counts()
    assert "pruned with `--macs 0.5`: 50% of the multiply-adds" in document(result)
    fresh = [peer["fresh"] for peer in result["peers"]]
    assert all(f["peak_mib"] > 50 and f["load_seconds"] > 0 for f in fresh)
    # Two references, five peers, two batch sizes, two lengths.
    assert len(result["timings"]) == 2 * 5 * 2 * 2
    assert {row["source_tokens"] for row in result["timings"]} == {6, 9}
    limited = [row for row in result["timings"] if row["macs_ratio"] is not None]
    assert {(r["variant"], r["reference"]) for r in limited} == {
        ("compress, pruned, fp32", "compress, dense, fp32")
    }
    accuracy = {p["name"]: p["quality"]["value"] for p in result["peers"]}
    # Dense in float32: both programs give the same accuracy, counted here from the labels.
    labels = Classifier(setting.dense).classify(setting.rows.sources)
    share = 100 * np.mean([a == b for a, b in zip(labels, setting.rows.targets, strict=True)])
    assert accuracy["transformers, eager"] == pytest.approx(share)
    assert accuracy["compress, dense, fp32"] == pytest.approx(share)
    text = document(result)
    for row in result["timings"]:
        if row["reference"] == "transformers, eager" and row["speedup"] is not None:
            assert f"{row['sentences_per_second']:.1f} ({row['speedup']:.2f}x)" in text
    assert text.count("Sentences per second") == 2  # a table for each length
    one = summary([result]).splitlines()
    assert len(one) == 2 + 5
    assert one[-1].startswith("| tiny | compress, pruned, int8 | ")


def test_peers_give_the_same_labels(setting: Setting):
    stored = str(setting.checkpoint)
    runtime = Classifier(setting.dense)
    plain = Peer("t", "eager", stored, "classification", "fp32", 0)
    ours = Peer("c", "compress", str(setting.dense), "classification", "fp32", 0)
    batch = {
        "input_ids": np.array([[2, 30, 31, 3], [2, 40, 3, 0]]),
        "attention_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]]),
        "token_type_ids": np.zeros((2, 4), np.int64),
    }
    logits = [open_peer(peer, "cpu", 1)(batch, None) for peer in (plain, ours)]
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-4)
    found = answers(setting, open_peer(ours, "cpu", 1), runtime)
    assert found == runtime.classify(setting.rows.sources)


def test_low_precision_is_compared_with_its_own_float32(setting: Setting):
    right = setting.rows.targets
    wrong = ["LABEL_1" if t == "LABEL_0" else "LABEL_0" for t in right]
    found = quality(
        setting, {"compress, dense, fp32": right, "compress, dense, int8": [*wrong[:3], *right[3:]]}
    )
    assert found["compress, dense, fp32"]["value"] == 100
    assert found["compress, dense, int8"]["value"] == pytest.approx(75)
    assert found["compress, dense, int8"]["against_fp32"][0] == pytest.approx(-25)


@pytest.mark.attack
def test_ctranslate2_translates_as_transformers(tmp_path: Path):
    """Greedy tokens of the bundled translator in float32, by themselves and at a forced length."""
    checkpoint, converted = Path(example.model()), tmp_path / "converted"
    wanted = make_request(ExportRequest, model=str(checkpoint), layout="ctranslate2")
    export_checkpoint(wanted, converted)
    tokenizer = open_checkpoint(str(checkpoint)).tokenizer
    texts = ["The kettle is still warm.", "I do not know where he lives.", "Good night."]
    batch = {k: v.numpy() for k, v in tokenizer(texts, padding=True, return_tensors="pt").items()}
    batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
    peers = (
        Peer("t", "eager", str(checkpoint), "translation", "fp32", 0),
        Peer("c", "ctranslate2", str(converted), "translation", "float32", 0),
        Peer("w", "ctranslate2-workers", str(converted), "translation", "float32", 0),
    )
    runs = [open_peer(peer, "cpu", 2) for peer in peers]
    for length in (None, 5):
        plain, *others = (run(batch, length) for run in runs)
        ended = [[t for t in row if t != 0] for row in plain]  # CTranslate2 leaves the end out
        for other in others:
            assert [[t for t in row if t != 0] for row in other] == ended
        if length:
            assert {len(row) for row in plain} == {length}


def point(variant: str, x: float, speed: float, **more: object) -> dict:
    return {
        "variant": variant, "x": x, "sentences_per_second": speed, "latency_ms": {"p50": 8.0},
        "peak_memory_mib": None, "speedup": None, "speedup_interval": None, "macs_ratio": None,
        **more,
    }  # fmt: skip


def test_the_scale_table_and_plots_show_every_point(tmp_path: Path):
    gain = {"speedup": 1.2, "speedup_interval": (1.1, 1.3), "macs_ratio": 1.25}
    result = {
        "encoder: rows per batch": [
            point("dense", 1, 100.0), point("dense", 2, 150.0),
            point("half", 1, 120.0, **gain), point("half", 2, 180.0, **gain),
        ]
    }  # fmt: skip
    text = scale_table(result, "The machine.")
    assert "| 1 | 100.0 | 120.0 | 1.20 [1.10, 1.30] | 1.25 | 8.0 | 8.0 | – | – |" in text
    assert "| 2 | 150.0 | 180.0 |" in text
    draw(result, tmp_path / "scale.png")
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
