"""Peers give the same answers, and the tables show the measured values."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from benchmarks.speed import models
from benchmarks.speed.__main__ import compare_peers, quality
from benchmarks.speed.settings import Setting
from benchmarks.speed.tables import document, summary
from compressor.model.pruning_record import read_pruning_record
from compressor.options.requests import make_recipe
from compressor.pipeline.run import run
from compressor.progress import SILENT
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
        device="cpu", threads=1, batches=[1, 2], lengths=[6, 9], programs=["eager"],
        seconds=0.001, no_fresh=False, unsorted=True,
    )  # fmt: skip
    *_, result = compare_peers(setting, args, SILENT)
    names = [peer["name"] for peer in result["peers"]]
    assert names == [
        "transformers, eager", "compress, dense, fp32", "compress, dense, int8",
        "compress, pruned, fp32", "compress, pruned, int8",
    ]  # fmt: skip
    assert result["kept"] == read_pruning_record(setting.output).mask.counts()
    text = document(result)
    assert all(x in text for x in ("`--macs 0.5`: 50% of the mult", "in the order of the data"))
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
    # Low precision is compared with its own float32: three of twelve answers are wrong.
    right = setting.rows.targets
    wrong = ["LABEL_1" if t == "LABEL_0" else "LABEL_0" for t in right[:3]] + right[3:]
    found = quality(setting, {"compress, dense, fp32": right, "compress, dense, int8": wrong})
    assert found["compress, dense, fp32"]["value"] == 100
    assert found["compress, dense, int8"]["value"] == pytest.approx(75)
    assert found["compress, dense, int8"]["against_fp32"][0] == pytest.approx(-25)
    for row in result["timings"]:
        if row["reference"] == "transformers, eager" and row["speedup"] is not None:
            assert f"{row['sentences_per_second']:.1f} ({row['speedup']:.2f}x)" in text
    assert text.count("Sentences per second") == 2  # a table for each length
    one = summary([result]).splitlines()
    assert len(one) == 2 + 5
    assert one[-1].startswith("| tiny | compress, pruned, int8 | ")
