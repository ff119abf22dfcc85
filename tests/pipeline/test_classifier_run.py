"""A run of a classifier in two precisions: what is built, measured, chosen and published."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import ModelCard

from compressor.commands import invoke as status_of
from compressor.errors import UsageError
from compressor.model.checkpoint import open_checkpoint
from compressor.options.requests import BenchRequest, EvaluateRequest, make_request
from compressor.options.sections import Card
from compressor.pipeline.compare_artifacts import bench_artifacts, evaluate_artifacts
from compressor.pipeline.run import run
from compressor.report import facts
from compressor.report.defaults import choose_default
from compressor.report.schema import load_report
from compressor.runtime import Classifier
from tests.helpers.errors import raises
from tests.helpers.metrics import compare
from tests.helpers.report_samples import int8_report
from tests.helpers.runs import Progress, check_manifest, recipe, short

pytestmark = pytest.mark.slow

NAMES = ["dense-int8", "keep-0.5", "keep-0.5-int8"]
BOTH = {"precision": ["fp32,int8"]}


def test_every_model_comes_in_every_precision(finished):
    report = load_report(finished / "report.json")
    assert [v.name for v in report.variants] == NAMES
    half, quarter = report.variants[1:]
    assert [v.precision for v in report.variants] == ["int8", "fp32", "int8"]
    assert [v.base for v in report.variants] == ["dense", "", "keep-0.5"]
    assert (quarter.kept, quarter.directory) == (half.kept, half.directory)
    for variant, name in ((quarter, "model.int8.onnx"), (half, "model.onnx")):
        files = [finished / "onnx" / name, finished / "onnx" / f"{name}_data"]  # graph and weights
        assert variant.onnx_bytes == sum(file.stat().st_size for file in files)
    assert [c.name for c in quarter.checks] == ["int8 against PyTorch in float32"]
    assert yaml.safe_load((finished / "recipe.yaml").read_text())["precision"] == ["fp32", "int8"]
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["precisions"] == ["fp32", "int8"]
    check_manifest(finished)
    timed = {(row.variant, row.precision) for row in report.throughput.rows}
    assert timed == {("dense", "fp32"), *((v.name, v.precision) for v in report.variants)}
    chosen = choose_default(report.variants[1:], report.throughput)
    assert Classifier(finished).precision == chosen
    assert [v.default for v in report.variants] == [False, chosen == "fp32", chosen == "int8"]
    for name in ("report.md", "report.html", "README.md"):
        assert f"keep-0.5 runs in {chosen}." in (finished / name).read_text()


def test_each_is_compared_with_dense_and_with_its_own_float32(inputs, finished):
    """Comparisons and accuracy again, from answers of the runtime, and of PyTorch."""
    report = load_report(finished / "report.json")
    lines = Path(inputs["test"]).read_text("utf-8").splitlines()[1:]
    texts, gold = (list(column) for column in zip(*(x.split("\t") for x in lines), strict=True))
    dense = Classifier(finished / ".compress" / "dense", precision="fp32").classify(texts)
    half, quarter = (Classifier(finished, precision=p).classify(texts) for p in ("fp32", "int8"))
    by_name = {v.name: v for v in report.variants}
    options = {"resamples": 100, "seed": 0}
    expected = compare("classification", dense, quarter, gold, **options)
    assert by_name["keep-0.5-int8"].comparisons == expected
    expected = compare("classification", half, quarter, gold, **options)
    assert by_name["keep-0.5-int8"].base_comparisons == expected
    assert by_name["keep-0.5"].base_comparisons == []
    assert by_name["dense-int8"].base_comparisons == []  # `comparisons` are with dense already

    loaded = open_checkpoint(str(finished))
    batch = loaded.tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        best = loaded.model(**batch).logits.argmax(-1).numpy()
    right = np.mean([f"LABEL_{i}" == label for i, label in zip(best, gold, strict=True)])
    assert by_name["keep-0.5"].quality.metrics["accuracy"] == pytest.approx(100 * right)


def test_the_fastest_without_significant_loss_is_the_default():
    """Of made-up reports: the p-value of int8's loss, its speed, and its check."""
    report = int8_report(0.3)
    base, made = facts.builds(report, report.variants[1])
    timed = report.throughput.model_copy(update={"device": "cpu"})
    worse = int8_report(0.01)
    untested = made.model_copy(update={"base_comparisons": []})
    (check, *_) = made.checks
    exceeded = check.model_copy(update={"largest_difference": 2 * check.tolerance})
    broken = made.model_copy(update={"checks": [exceeded]})
    half = made.model_copy(update={"precision": "fp16"})
    on_gpu = timed.model_copy(update={"device": "cuda"})
    for builds, timings, expected in (
        ([base, made], timed, "int8"),
        (facts.builds(worse, worse.variants[1]), timed, "fp32"),
        ([base, made], None, "fp32"),
        ([base, untested], timed, "fp32"),
        ([base, broken], timed, "fp32"),
        ([base, half], timed, "fp32"),  # on a CPU its speed is luck
        ([base, half], on_gpu, "fp16"),
    ):
        assert choose_default(builds, timings) == expected


def test_nothing_but_the_recipe_tells_where_files_lie(inputs, finished):
    """What is published: all that is not the run's own state."""
    model = Path(inputs["model"])
    files = [path for path in finished.rglob("*") if path.is_file()]
    telling = {path.name for path in files if str(model.parent).encode() in path.read_bytes()}
    assert telling - {path.name for path in (finished / ".compress").iterdir()} == {"recipe.yaml"}
    report = load_report(finished / "report.json")
    assert (report.model, report.test.files) == (model.name, ["test.tsv"])
    assert [v.directory for v in report.variants] == [".compress/dense", ".", "."]
    assert json.loads((finished / "units.json").read_text())["model"] == report.model


def test_the_card_says_what_the_checkpoints_card_or_the_user_says(inputs, finished):
    """And what is said of a finished run changes the card alone."""
    recipe = short(**inputs | BOTH)
    unknown = (finished / "README.md").read_text()
    assert "does not say license, language and base model" in unknown
    progress = Progress()
    said = Card(card_license="mit", card_language="en,de", card_base_model="acme/dense")
    run(recipe.model_copy(update={"card": said}), finished, progress=progress)
    assert all("done before" in x or "rows; text 'text'" in x for x in progress.messages)
    fields = ModelCard.load(finished / "README.md").data.to_dict()
    shown = fields["license"], fields["language"], fields["base_model"]
    assert shown == ("mit", ["en", "de"], "acme/dense")
    run(recipe, finished)
    assert (finished / "README.md").read_text() == unknown


def test_artifacts_are_evaluated_and_timed_in_named_precisions(inputs, finished, capsys):
    shared = {"test": inputs["test"], "device": "cpu"}
    asked = make_request(EvaluateRequest, **shared, **BOTH, resamples=100)
    evaluated = evaluate_artifacts([finished], asked)
    assert [x.precision for x in evaluated] == ["fp32", "int8"]
    report = load_report(finished / "report.json")
    assert evaluated[1].quality == report.variants[2].quality
    assert evaluated[1].comparisons == report.variants[2].base_comparisons
    timing = make_request(
        BenchRequest, **shared, **BOTH, threads=1, bench_seconds=0.05, batch_size="8"
    )
    timed = bench_artifacts([finished], timing, memory=False)
    assert [row.precision for row in timed.rows] == ["fp32", "int8"]
    with raises(UsageError, "precision-not-in-artifact"):
        evaluate_artifacts([finished], make_request(EvaluateRequest, **shared, precision=["fp16"]))

    words = ["--test", inputs["test"], "--device", "cpu", "--precision", "fp32,int8"]
    assert status_of(["evaluate", str(finished), *words]) == 0
    shown = capsys.readouterr().out
    assert f"{finished} (int8): accuracy" in shown
    # A correlation from -1 to 1 has four decimals, accuracy in percent has two.
    assert re.search(r"accuracy \d+\.\d\d, macro_f1 \d+\.\d\d, mcc -?\d\.\d{4} \(", shown)


def test_several_budgets_give_several_artifacts(inputs, tmp_path):
    """Each with a recipe and a report of its own."""
    out = tmp_path / "out"
    report = run(short(**inputs, keep=["1.0", "encoder_self=0.5"], bench=False), out)
    kept = {v.name: sum(map(len, v.kept.values())) for v in report.variants}
    assert kept == {"keep-1.0": 4, "keep-encoder_self-0.5": 2}
    same = report.variants[0]
    assert all(c.difference == 0 and c.p_value == 1 for c in same.comparisons)
    for name, budget in zip(kept, (["1.0"], ["encoder_self=0.5"]), strict=True):
        check_manifest(out / name)
        assert [v.name for v in load_report(out / name / "report.json").variants] == [name]
        assert recipe(out / name / "recipe.yaml").budget.keep == budget
        assert Classifier(out / name).labels == [f"LABEL_{i}" for i in range(5)]
    assert len(load_report(out / "report.json").variants) == 2


def test_calibrating_on_test_rows_is_warned_of(inputs, tmp_path):
    both, progress = {"calibration": inputs["test"], "calibration_rows": 20}, Progress("exporting")
    with pytest.raises(KeyboardInterrupt):
        run(short(**inputs | both), tmp_path / "out", progress=progress)
    (warning,) = (message for message in progress.messages if message.startswith("warning: "))
    assert "20 of 24 test rows are calibration rows too" in warning
