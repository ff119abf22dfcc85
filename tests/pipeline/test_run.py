"""Whole runs on toy checkpoints: artifacts, numbers, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import compressor
from compressor.evaluation.bounds import score_bound
from compressor.model.checkpoint import open_checkpoint
from compressor.pipeline.run import run, score_checkpoint
from compressor.report.schema import load_report
from compressor.request.recipe import ScoreRequest
from compressor.runtime import Classifier, Translator
from tests.helpers import toy
from tests.helpers.recipes import request
from tests.helpers.runs import Progress, check_manifest, recipe_for, short

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> Path:
    return toy.marian_with_pieces(tmp_path_factory.mktemp("marian") / "dense")


def test_a_translator_from_checkpoint_to_artifact(translator, tmp_path):
    # Some models of the hub hold their weights a second time, for another library.
    copied = shutil.copy(translator / "model.safetensors", translator / "consolidated.safetensors")
    out = tmp_path / "out"
    report = run(recipe_for(translator, tmp_path, floor="0"), out)
    assert report.dense.checkpoint_bytes == copied.stat().st_size
    (variant,) = report.variants
    assert sum(map(len, variant.kept.values())) == 16  # half of 2 x 4 + 2 x 3 x 4
    assert {c.name for c in variant.checks} >= {
        "pruned equals masked", "reloaded equals saved", "ONNX equals PyTorch",
        "ONNX generates as PyTorch",
    }  # fmt: skip
    assert variant.parameters == sum(p.numel() for p in _stored(out).values())
    assert {row.batch_size for row in report.throughput.rows} == {2, 4}
    assert {c.metric for c in variant.comparisons} == {"bleu", "chrf"}
    assert load_report(out / "report.json").variants[0].kept == variant.kept
    check_manifest(out)
    # What is served equals what PyTorch generates from the reloaded checkpoint.
    loaded = open_checkpoint(str(out))
    texts = ["w5 und w7.", "w9 w9 w3"]
    batch = loaded.tokenizer(texts, return_tensors="pt", padding=True)
    ids = loaded.model.generate(**batch, num_beams=1)
    expected = loaded.tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert Translator(out).translate(texts, num_beams=1) == expected


def _stored(out: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {k: v for k, v in load_file(out / "model.safetensors").items() if "logits_bias" not in k}


def test_several_budgets_give_several_artifacts(inputs, tmp_path):
    out = tmp_path / "out"
    report = run(short(**inputs, keep=["1.0", "encoder_self=0.5"], bench=False), out)
    kept = {v.name: sum(map(len, v.kept.values())) for v in report.variants}
    assert kept == {"keep-1.0": 12, "keep-encoder_self-0.5": 6}
    same = report.variants[0]
    assert all(c.difference == 0 and c.p_value == 1 for c in same.comparisons)
    for name in kept:
        check_manifest(out / name)
        own = load_report(out / name / "report.json")
        assert [v.name for v in own.variants] == [name]
        assert compressor.load(out / name) is not None
        assert Classifier(out / name).labels == [f"LABEL_{i}" for i in range(5)]
    assert len(load_report(out / "report.json").variants) == 2


@pytest.mark.usefixtures("no_graphs")
def test_steps_score_again_before_each(classifier, tmp_path):
    options = {"keep": ["0.5", "0.75"], "steps": 3, "bench": False, "recover": "reconstruct"}
    options["test"] = None
    wanted = recipe_for(classifier, tmp_path, **options)
    report = run(wanted, tmp_path / "out")
    assert sum(map(len, report.variants[0].kept.values())) == 6
    scoring = request(ScoreRequest, model=str(classifier), calibration=wanted.data.calibration)
    once = score_checkpoint(scoring)
    for variant in report.variants:
        assert variant.scoring.cost["forward_passes"] == 3 * once.cost["forward_passes"]
        directory = tmp_path / "out" / variant.directory
        scores = json.loads((directory / "units.json").read_text(encoding="utf-8"))["scores"]
        assert variant.scoring.values == scores
        assert load_report(directory / "report.json").scoring == variant.scoring
    first, second = (variant.scoring.values for variant in report.variants)
    assert first != second
    assert "re-solved" in report.variants[0].recovery


def test_calibrating_on_test_rows_is_warned_of(inputs, tmp_path):
    def warnings(name: str, **options: object) -> list[str]:
        progress = Progress("exporting the dense model")
        with pytest.raises(KeyboardInterrupt):
            run(short(**inputs | options), tmp_path / name, progress=progress)
        return [message for message in progress.messages if message.startswith("warning: ")]

    (warning,) = warnings("both", calibration=inputs["test"], calibration_rows=20)
    assert "20 of 24 test rows are calibration rows too" in warning
    assert warnings("apart") == []


def test_the_gate_is_judged_on_the_runs_own_numbers(inputs, finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "out")
    report = run(short(**inputs, max_metric_drop=["accuracy=0"], min_speedup=["100@2"]), out)
    drop = report.variants[0].comparisons[0]
    assert drop.metric == "accuracy"
    lost, won = drop.discordant
    assert won - lost == round(drop.difference / 100 * report.test.rows)
    low, high = (sign * score_bound(*pair, report.test.rows, 0.025)
                 for sign, pair in ((-1, (lost, won)), (1, (won, lost))))  # fmt: skip
    verdict = "passed" if low >= 0 else "failed" if high < 0 else "inconclusive"
    assert {outcome.rule: outcome.verdict for outcome in report.gate} == {
        "max-metric-drop accuracy=0": verdict,
        "min-speedup 100@2": "failed",
    }


def test_quality_is_what_an_independent_count_says(inputs, finished):
    report = load_report(finished / "report.json")
    rows = Path(inputs["test"]).read_text(encoding="utf-8").splitlines()[1:]
    texts, gold = zip(*(row.split("\t") for row in rows), strict=True)
    loaded = open_checkpoint(str(finished))
    batch = loaded.tokenizer(list(texts), return_tensors="pt", padding=True)
    with torch.no_grad():
        best = loaded.model(**batch).logits.argmax(-1).numpy()
    right = np.mean([f"LABEL_{i}" == label for i, label in zip(best, gold, strict=True)])
    assert report.variants[0].quality.metrics["accuracy"] == pytest.approx(100 * right)
