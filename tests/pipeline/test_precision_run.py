"""Precisions through a whole run: what is built, measured, chosen and told."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

from compressor.commands import invoke as command
from compressor.errors import UsageError
from compressor.export import int8
from compressor.pipeline.compare_artifacts import bench_artifacts, evaluate_artifacts
from compressor.pipeline.evaluate import choose_default
from compressor.pipeline.run import run
from compressor.report.schema import load_report
from compressor.report.summary import short_table
from compressor.request.recipe import BenchRequest, EvaluateRequest, Recipe, make_request
from compressor.request.sections import Card
from compressor.results import Comparison
from compressor.runtime import Classifier
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.metrics import compare
from tests.helpers.recipes import recipe
from tests.helpers.runs import Progress, short

pytestmark = pytest.mark.slow

NAMES = ["dense-int8", "keep-0.5", "keep-0.5-int8"]


@pytest.fixture(scope="module")
def inputs(once) -> Recipe:
    def make(directory: Path) -> None:
        toy.classifier(directory / "dense")
        toy.labels_file(directory / "calibration.tsv")
        toy.labels_file(directory / "test.tsv", seed=1)

    folder = once("precision-inputs", make)
    return short(
        model=str(folder / "dense"),
        calibration=str(folder / "calibration.tsv"),
        test=str(folder / "test.tsv"),
        precision=["fp32,int8"],
    )


@pytest.fixture(scope="module")
def finished(inputs, once, tmp_path_factory) -> Path:
    own = tmp_path_factory.mktemp("finished") / "out"
    return shutil.copytree(once("precision-finished", lambda out: run(inputs, out)), own)


def test_every_model_comes_in_every_precision(inputs, finished):
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
    assert "onnx/model.int8.onnx" in manifest["files"]


def test_each_is_compared_with_dense_and_with_its_own_float32(inputs, finished):
    """Comparisons again, from answers given here through the runtime."""
    report = load_report(finished / "report.json")
    lines = Path(inputs.data.test).read_text().splitlines()[1:]
    texts, gold = (list(column) for column in zip(*(x.split("\t") for x in lines), strict=True))
    dense = Classifier(finished / ".compress" / "dense", precision="fp32").classify(texts)
    half, quarter = (Classifier(finished, precision=p).classify(texts) for p in ("fp32", "int8"))

    def expected(a: list[str], b: list[str]) -> list[Comparison]:
        return compare("classification", a, b, gold, resamples=100, seed=0)

    found = {v.name: v for v in report.variants}
    assert found["keep-0.5-int8"].comparisons == expected(dense, quarter)
    assert found["keep-0.5-int8"].base_comparisons == expected(half, quarter)
    assert found["keep-0.5"].base_comparisons == []
    assert found["dense-int8"].base_comparisons == []  # `comparisons` are with dense already


def test_all_are_timed_together_and_say_what_ran(finished):
    report = load_report(finished / "report.json")
    rows = {(row.variant, row.batch_size): row for row in report.throughput.rows}
    assert {name for name, _ in rows} == {"dense", *NAMES}
    assert {size for _, size in rows} == {2, 4}
    assert report.throughput.precision == "fp32, int8"
    for (name, _), row in rows.items():
        assert row.provider == "CPUExecutionProvider"
        assert row.precision == ("int8" if "int8" in name else "fp32")
        # Multiply-adds are those of the model, in whatever precision.
        same = rows[name.replace("-int8", ""), row.batch_size]
        assert row.macs_ratio == same.macs_ratio or name == "dense-int8"
    assert {rows["dense-int8", size].macs_ratio for size in (2, 4)} == {1}
    assert rows["keep-0.5", 4].macs_ratio > 1


def test_the_default_is_what_the_rule_says(finished):
    report = load_report(finished / "report.json")
    chosen = choose_default(report.variants[1:], report.throughput)
    assert Classifier(finished).precision == chosen
    assert [v.default for v in report.variants] == [False, chosen == "fp32", chosen == "int8"]
    for text in ((finished / n).read_text() for n in ("report.md", "report.html", "README.md")):
        assert f"Unless a precision is named, keep-0.5 runs in {chosen}." in text
    own = re.search(r"\| keep-0.5-int8 \| accuracy .* \| keep-0.5 \|", text)
    assert own, "int8 beside its own float32"
    assert f"without one it is {chosen}" in (finished / "README.md").read_text()


def test_nothing_but_the_recipe_tells_where_files_lie(inputs, finished):
    """What is published: all that is not the run's own state."""
    where = str(Path(inputs.model.path).parent).encode()
    files = [path for path in finished.rglob("*") if path.is_file()]
    telling = {path.name for path in files if where in path.read_bytes()}
    assert telling - {path.name for path in (finished / ".compress").iterdir()} == {"recipe.yaml"}
    report = json.loads((finished / "report.json").read_text())
    assert report["model"] == Path(inputs.model.path).name
    assert (report["test"]["files"], report["calibration"]["files"]) == (
        ["test.tsv"], ["calibration.tsv"]
    )  # fmt: skip
    assert [v["directory"] for v in report["variants"]] == [".compress/dense", ".", "."]
    assert json.loads((finished / "units.json").read_text())["model"] == report["model"]


def test_the_card_says_what_the_checkpoints_card_or_the_user_says(inputs, finished):
    """And what is said of a finished run changes the card alone."""
    unknown = (finished / "README.md").read_text()
    assert "does not say license, language and base model" in unknown
    progress = Progress()
    said = Card(card_license="mit", card_language="en,de", card_base_model="acme/dense")
    run(inputs.model_copy(update={"card": said}), finished, progress=progress)
    assert all("done before" in message for message in progress.messages)
    fields = ModelCard.load(finished / "README.md").data.to_dict()
    found = fields["license"], fields["language"], fields["base_model"]
    assert found == ("mit", ["en", "de"], "acme/dense")
    run(inputs, finished)
    assert (finished / "README.md").read_text() == unknown


def test_lost_graphs_are_made_again_in_every_precision(inputs, finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "out")
    shutil.rmtree(out / "onnx")
    progress = Progress()
    report = run(inputs, out, progress=progress)
    for path in (finished / "onnx").glob("*.onnx"):
        assert (out / "onnx" / path.name).read_bytes() == path.read_bytes()
    assert Classifier(out, precision="int8").labels == Classifier(finished).labels
    assert Classifier(out).precision == next(v.precision for v in report.variants if v.default)
    # The dense model's graphs are there, and what was measured on them stays.
    kept = [m for m in progress.messages if m.startswith("evaluating dense-int8 ")]
    assert [m.endswith(": done before") for m in kept] == [True]


def test_a_precision_that_breaks_the_model_is_told_and_not_the_default(
    inputs, tmp_path, monkeypatch
):
    """Weights of one bit and a sign in all products."""
    monkeypatch.setattr(int8, "LEVELS", 1)
    once = inputs.throughput.model_copy(update={"batch_size": [2]})
    report = run(inputs.model_copy(update={"throughput": once}), tmp_path / "out")
    base, broken = report.variants[1:]
    assert broken.checks[0].largest_difference > broken.checks[0].tolerance
    assert (base.default, broken.default) == (True, False)
    assert Classifier(tmp_path / "out").precision == "fp32"
    complaint = "keep-0.5-int8 differs from PyTorch by"
    for name in ("report.md", "report.html", "README.md"):
        assert complaint in (tmp_path / "out" / name).read_text()
    assert complaint in " ".join(short_table(report).split())


def test_artifacts_are_evaluated_and_timed_in_named_precisions(inputs, finished):
    shared = {"test": inputs.data.test, "device": "cpu"}
    both = {"precision": ["fp32,int8"]}
    asked = make_request(EvaluateRequest, **shared, **both, resamples=100)
    found = evaluate_artifacts([finished], asked)
    assert [x.precision for x in found] == ["fp32", "int8"]
    report = load_report(finished / "report.json")
    assert found[1].quality == report.variants[2].quality
    assert found[1].comparisons == report.variants[2].base_comparisons
    timing = make_request(
        BenchRequest, **shared, **both, threads=1, bench_seconds=0.05, batch_size="2"
    )
    timed = bench_artifacts([finished], timing, memory=False)
    assert [row.precision for row in timed.rows] == ["fp32", "int8"]
    assert len({row.variant for row in timed.rows}) == 2
    with raises(UsageError, "precision-not-in-artifact"):
        evaluate_artifacts([finished], make_request(EvaluateRequest, **shared, precision=["fp16"]))


def test_a_recipe_takes_a_comma_list_or_several(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("model: a\nkeep: 1\nprecision: fp32,int8\n", encoding="utf-8")
    assert recipe(file).export.precision == ["fp32", "int8"]
    assert recipe(file, precision=["fp32", "fp16"]).export.precision == ["fp32", "fp16"]
    assert recipe(model="a", keep=["1"]).export.precision == ["fp32"]
    with raises(UsageError, "precision-unknown"):
        recipe(model="a", keep=["1"], precision=["bf16"])


def test_the_command_line_names_precisions(inputs, finished, capsys):
    options = ["--test", inputs.data.test, "--device", "cpu", "--test-rows", "8"]
    assert command(["evaluate", str(finished), *options, "--precision", "fp32,int8"]) == 0
    told = capsys.readouterr().out
    assert f"{finished} (fp32): accuracy" in told
    assert f"{finished} (int8): accuracy" in told
    # A correlation from -1 to 1 has four decimals, accuracy in percent has two.
    assert re.search(r"accuracy \d+\.\d\d, macro_f1 \d+\.\d\d, mcc -?\d\.\d{4} \(", told)
    assert re.search(r"^  mcc [+-]\d\.\d{4} \[", told, re.MULTILINE)
    assert command(["bench", str(finished), *options, "--precision", "auto", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["id"] == "precision-auto"
