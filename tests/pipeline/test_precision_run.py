"""Precisions through a whole run: what is built, measured, chosen and told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from compressor.errors import UsageError
from compressor.evaluation import compare
from compressor.export import int8
from compressor.export.precision_names import precisions_to_export, split_precisions
from compressor.pipeline.compare_artifacts import bench_artifacts, evaluate_artifacts
from compressor.pipeline.default_precision import choose_default
from compressor.pipeline.recipe import Recipe, build_recipe
from compressor.pipeline.run import run
from compressor.report import facts, sentences
from compressor.report.combine import combine, only
from compressor.report.markdown import render_markdown
from compressor.report.model_card import render_card
from compressor.report.page import render_html
from compressor.report.schema import Report, load_report
from compressor.report.summary import short_table, summary
from compressor.results import Comparison, Throughput, Variant
from compressor.runtime import Classifier
from tests.helpers import toy
from tests.helpers.report_samples import translator_report

pytestmark = pytest.mark.usefixtures("shared_exports")

NAMES = ["dense-int8", "keep-0.5", "keep-0.5-int8"]


class Progress:
    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def detail(self, message: str) -> None:
        pass

    def update(self, what: str, done: int, total: int) -> None:
        pass


@pytest.fixture(scope="module")
def recipe(once) -> Recipe:
    def make(directory: Path) -> None:
        toy.classifier(directory / "dense")
        toy.labels_file(directory / "calibration.tsv")
        toy.labels_file(directory / "test.tsv", seed=1)

    folder = once("precision-inputs", make)
    return Recipe(
        model=str(folder / "dense"),
        calibration=str(folder / "calibration.tsv"),
        test=str(folder / "test.tsv"),
        keep=["0.5"],
        precision="fp32,int8",
        batch_size=[2, 4],
        bench_seconds=0.05,
        resamples=100,
        device="cpu",
        threads=1,
    )


@pytest.fixture(scope="module")
def finished(recipe, once, tmp_path_factory) -> Path:
    own = tmp_path_factory.mktemp("finished") / "out"
    return shutil.copytree(once("precision-finished", lambda out: run(recipe, out)), own)


def test_every_model_comes_in_every_precision(recipe, finished):
    report = load_report(finished / "report.json")
    assert [v.name for v in report.variants] == NAMES
    half, quarter = report.variants[1:]
    assert [v.precision for v in report.variants] == ["int8", "fp32", "int8"]
    assert [v.base for v in report.variants] == ["dense", "", "keep-0.5"]
    assert (quarter.kept, quarter.directory) == (half.kept, half.directory)
    assert quarter.onnx_bytes == (finished / "onnx" / "model.int8.onnx").stat().st_size
    assert half.onnx_bytes == (finished / "onnx" / "model.onnx").stat().st_size
    assert [c.name for c in quarter.checks] == ["int8 against PyTorch in float32"]
    assert yaml.safe_load((finished / "recipe.yaml").read_text())["precision"] == ["fp32", "int8"]
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["precisions"] == ["fp32", "int8"]
    assert "onnx/model.int8.onnx" in manifest["files"]


def test_each_is_compared_with_dense_and_with_its_own_float32(recipe, finished):
    """Comparisons again, from answers given here through the runtime."""
    report = load_report(finished / "report.json")
    lines = Path(recipe.test).read_text().splitlines()[1:]
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
        # A limit between precisions would be wrong.
        assert (row.limit is None) == (name != "keep-0.5")


def test_the_default_is_what_the_rule_says(finished):
    report = load_report(finished / "report.json")
    chosen = choose_default(report.variants[1:], report.throughput)
    assert Classifier(finished).precision == chosen
    assert [v.default for v in report.variants] == [False, chosen == "fp32", chosen == "int8"]
    for text in ((finished / n).read_text() for n in ("report.md", "report.html", "README.md")):
        assert f"runs in {chosen} unless a precision" in text
        assert "keep-0.5-int8 against keep-0.5: accuracy" in text
    assert f"without one it is {chosen}" in (finished / "README.md").read_text()


def test_a_finished_run_repeats_nothing_and_keeps_the_default(recipe, finished):
    before = (finished / "onnx" / "graphs.json").read_bytes()
    progress = Progress()
    assert run(recipe, finished, progress=progress) == load_report(finished / "report.json")
    assert all("done before" in message for message in progress.messages)
    assert (finished / "onnx" / "graphs.json").read_bytes() == before


def test_lost_graphs_are_made_again_in_every_precision(recipe, finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "out")
    shutil.rmtree(out / "onnx")
    progress = Progress()
    report = run(recipe, out, progress=progress)
    for path in (finished / "onnx").glob("*.onnx"):
        assert (out / "onnx" / path.name).read_bytes() == path.read_bytes()
    assert Classifier(out, precision="int8").labels == Classifier(finished).labels
    assert Classifier(out).precision == next(v.precision for v in report.variants if v.default)
    # The dense model's graphs are there, and what was measured on them stays.
    kept = [m for m in progress.messages if m.startswith("evaluating dense-int8 ")]
    assert [m.endswith(": done before") for m in kept] == [True]


def test_a_precision_that_breaks_the_model_is_told_and_not_the_default(
    recipe, tmp_path, monkeypatch
):
    """Weights of one bit and a sign in all products."""
    monkeypatch.setattr(int8, "LEVELS", 1)
    report = run(recipe.model_copy(update={"batch_size": [2]}), tmp_path / "out")
    base, broken = report.variants[1:]
    assert broken.checks[0].largest_difference > broken.checks[0].tolerance
    assert (base.default, broken.default) == (True, False)
    assert Classifier(tmp_path / "out").precision == "fp32"
    complaint = "keep-0.5-int8 differs from PyTorch by"
    for name in ("report.md", "report.html", "README.md"):
        assert complaint in (tmp_path / "out" / name).read_text()
    assert complaint in " ".join(short_table(report).split())


def test_artifacts_are_evaluated_and_timed_in_named_precisions(recipe, finished):
    found = evaluate_artifacts(
        [finished], recipe.test, {}, precisions=["fp32", "int8"], device="cpu", resamples=100
    )
    assert [x.precision for x in found] == ["fp32", "int8"]
    report = load_report(finished / "report.json")
    assert found[1].quality == report.variants[2].quality
    assert found[1].comparisons == report.variants[2].base_comparisons
    timed = bench_artifacts(
        [finished], recipe.test, {}, precisions=["fp32", "int8"], device="cpu", threads=1,
        seconds=0.05, batch_sizes=[2], memory=False,
    )  # fmt: skip
    assert [row.precision for row in timed.rows] == ["fp32", "int8"]
    assert len({row.variant for row in timed.rows}) == 2
    with pytest.raises(UsageError, match="has no precision 'fp16', only fp32, int8"):
        evaluate_artifacts([finished], recipe.test, {}, precisions=["fp16"], device="cpu")


def lossy(name: str, base: Variant, p_value: float, **changes: object) -> Variant:
    """A precision of `base` that loses two points of BLEU against it."""
    found = Comparison(
        metric="bleu", dense=34, pruned=32, difference=-2, interval=(-3, -1),
        p_value=p_value, resamples=1000,
    )  # fmt: skip
    values = {"name": name, "base": base.name, "precision": "int8", "default": False}
    return base.model_copy(update=values | {"base_comparisons": [found]} | changes)


def with_int8(p_value: float) -> Report:
    """A made-up report whose second variant also comes in int8, twice as fast as in float32."""
    report = translator_report()
    base = report.variants[1]
    made = lossy("heads-50-int8", base, p_value)
    rows = [
        row.model_copy(
            update={"variant": made.name, "sentences_per_second": 2 * row.sentences_per_second,
                    "limit": None}
        )
        for row in facts.timings(report, base.name)
    ]  # fmt: skip
    timed = report.throughput.model_copy(update={"rows": [*report.throughput.rows, *rows]})
    variants = [*report.variants, made]
    return Report.model_validate(
        report.model_copy(update={"variants": variants, "throughput": timed}).model_dump()
    )


def family(report: Report) -> Sequence[Variant]:
    return facts.builds(report, report.variants[1])


def test_the_fastest_without_significant_loss_is_the_default():
    fine, worse = with_int8(0.3), with_int8(0.01)
    assert [v.name for v in family(fine)] == ["heads-50", "heads-50-int8"]
    timed = fine.throughput.model_copy(update={"device": "cpu"})
    assert choose_default(family(fine), timed) == "int8"
    assert choose_default(family(worse), timed) == "fp32"
    assert choose_default(family(fine), None) == "fp32"  # no timings
    base, made = family(fine)
    untested = made.model_copy(update={"base_comparisons": []})
    assert choose_default([base, untested], timed) == "fp32"
    slow = timed.model_copy(
        update={"rows": [r for r in timed.rows if r.variant == "heads-50"]
                + [r.model_copy(update={"variant": made.name, "sentences_per_second": 0.1})
                   for r in timed.rows if r.variant == "heads-50"]}
    )  # fmt: skip
    assert choose_default([base, made], slow) == "fp32"
    half = made.model_copy(update={"precision": "fp16"})
    assert choose_default([base, half], timed) == "fp32"  # on a CPU its speed is luck
    assert choose_default([base, half], timed.model_copy(update={"device": "cuda"})) == "fp16"


def test_a_significant_loss_is_told_everywhere():
    report = with_int8(0.01)
    told = "heads-50-int8 is significantly worse than heads-50 in BLEU, so it is not the default."
    assert told in sentences.precision_sentences(report)
    assert told in render_markdown(report)
    assert told in render_html(report)
    assert told in render_card(report, "heads-50")
    assert told in " ".join(short_table(report).split())
    found = {m["name"]: m for m in summary(report)["variants"]}["heads-50-int8"]
    assert found["base_comparisons"]["bleu"]["judgement"] == "significantly worse"
    assert (found["default"], found["base"], found["precision"]) == (False, "heads-50", "int8")


def test_heads_are_shown_once_and_only_defaults_lead_and_are_judged():
    from compressor.report.rules import check, parse_rules

    report = with_int8(0.3)
    assert [v.name for v in facts.pruned(report)] == [v.name for v in report.variants[:-1]]
    assert facts.headline(report).name != "heads-50-int8"
    assert render_html(report).count('data-variant="heads-50-int8"') == 0
    outcomes = check(report, parse_rules(["bleu=0.5"], []))
    assert {o.variant for o in outcomes} == {v.name for v in facts.delivered(report)}
    assert "heads-50-int8" not in {o.variant for o in outcomes}


def test_one_variants_report_holds_its_precisions_and_those_of_dense():
    report = with_int8(0.3)
    dense = lossy("dense-int8", report.dense, 0.5, base_comparisons=[])
    report = report.model_copy(update={"variants": [dense, *report.variants]})
    own = only(report, report.variants[2])
    assert [v.name for v in own.variants] == ["dense-int8", "heads-50", "heads-50-int8"]
    assert {row.variant for row in own.throughput.rows} == {"dense", "heads-50", "heads-50-int8"}
    assert [v.name for v in only(report, report.variants[1]).variants] == ["dense-int8", "heads-75"]


def test_combined_reports_keep_precisions_with_their_models():
    both = combine([with_int8(0.3), with_int8(0.3)])
    found = {v.name: v.base for v in both.variants if v.base}
    assert found == {"heads-50-int8": "heads-50", "heads-50-int8-2": "heads-50-2"}


def test_reports_refuse_precisions_of_unknown_models():
    report = with_int8(0.3)
    orphan = report.variants[-1].model_copy(update={"base": "nobody"})
    data = report.model_copy(update={"variants": [*report.variants[:-1], orphan]}).model_dump()
    with pytest.raises(ValueError, match="precisions of unknown models: \\['nobody'\\]"):
        Report.model_validate(data)


def test_a_timing_without_its_own_precision_shows_the_measurements():
    text = render_markdown(translator_report())
    timed: Throughput = translator_report().throughput
    assert f"| {timed.precision} | {timed.provider} |" in text


@pytest.mark.parametrize(
    ("names", "device", "expected"),
    [
        ("fp32", "cpu", ("fp32",)),
        (["int8,fp32"], "cpu", ("fp32", "int8")),
        (["fp32", "fp16", "int8"], "cpu", ("fp32", "fp16", "int8")),
        ("auto", "cpu", ("fp32", "int8")),
        ("auto", "cuda", ("fp32", "fp16")),
    ],
)
def test_names_to_precisions(names, device, expected):
    assert precisions_to_export(split_precisions(names), device) == expected


@pytest.mark.parametrize(
    ("names", "device", "problem"),
    [
        ("fp32,fp8", "cpu", "unknown-precision"),
        ("", "cpu", "unknown-precision"),
        ("fp32,fp32", "cpu", "precision-given-twice"),
        ("auto,int8", "cpu", "precision-auto-with-others"),
        ("int8", "cpu", "precision-without-fp32"),
        ("fp32,int8", "cuda", "precision-not-on-device"),
    ],
)
def test_precisions_that_make_no_sense_are_usage_errors(names, device, problem):
    with pytest.raises(UsageError) as caught:
        precisions_to_export(split_precisions(names), device)
    assert caught.value.id == problem


def test_a_recipe_takes_a_comma_list_or_several(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("model: a\nprecision: fp32,int8\n")
    assert build_recipe({}, file).precision == ["fp32", "int8"]
    assert build_recipe({"precision": ["fp32", "fp16"]}, file).precision == ["fp32", "fp16"]
    assert build_recipe({"model": "a"}).precision == ["fp32"]
    with pytest.raises(UsageError, match="'bf16' is unknown"):
        build_recipe({"model": "a", "precision": ["bf16"]})


def test_the_command_line_names_precisions(recipe, finished, capsys):
    from compressor.commands import run as command

    options = ["--test", recipe.test, "--device", "cpu", "--test-rows", "8"]
    assert command(["evaluate", str(finished), *options, "--precision", "fp32,int8"]) == 0
    told = capsys.readouterr().out
    assert f"{finished} (fp32): accuracy" in told
    assert f"{finished} (int8): accuracy" in told
    assert command(["bench", str(finished), *options, "--precision", "auto"]) == 2
    assert "name the precisions to run" in capsys.readouterr().err
