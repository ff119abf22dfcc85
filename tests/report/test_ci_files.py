"""What CI shows of a report: summary, comment, JUnit, badge, benchmarks, outputs."""

from __future__ import annotations

import json
import math
from xml.etree import ElementTree

import pytest
from lxml import html

from compressor.commands import invoke
from compressor.errors import InputError
from compressor.report import FORMATS, ci_formats, render
from compressor.report.baseline import compare
from compressor.report.rules import check
from compressor.report.schema import Report, render_json
from tests.helpers.command_line import invoke as invoked
from tests.helpers.errors import raises
from tests.helpers.report_samples import (
    HOSTILE,
    changed,
    classifier_report,
    hostile_report,
    mixed_report,
    rules,
    translator_report,
)


def judged(*drops: str, inconclusive: str = "fail") -> Report:
    report = translator_report()
    return report.model_copy(update={"gate": check(report, rules(drops, ["1.03@8"]), inconclusive)})


def test_the_verdict_is_first_then_one_table_then_folds():
    report = judged("bleu=0.3")
    text = render(report, "summary")
    assert "too long for this page" not in render(classifier_report(), "summary")
    title, lead, table, *folds = text.strip().split("\n\n")
    assert title == "## ❌ Failed: compress acme/opus-en-de"
    assert lead.startswith("Gate: 2 of 6 checks met (3 inconclusive). Of 3 variants ")
    assert len(table.splitlines()) == 2 + 6
    assert folds[0] == "<details><summary>Quality</summary>"
    passing = judged("bleu=9", inconclusive="pass")
    assert render(passing, "summary").startswith("## ⚠️ Inconclusive, counts as passed: ")
    report = report.model_copy(update={"changes": compare(report, translator_report())[1]})
    assert "<details><summary>Compared with the baseline</summary>" in render(report, "comment")


@pytest.mark.parametrize("name", ["summary", "comment"])
def test_texts_from_data_are_shown_and_do_nothing(name):
    text = render(hostile_report(), name)
    tags = {element.tag for element in html.fragment_fromstring(text, "div").iter("*")}
    assert tags <= {"div", "details", "summary"}
    assert text.count("<details>") == text.count("</details>") > 2
    rows = [line for line in text.splitlines() if line.startswith("| &#60;script")]
    assert len({line.count("|") for line in rows[:6]}) == 1
    mentions = "x/@octocat @acme #17 user@example.invalid 1.1@16 a#1 &#17"
    text = render(changed(translator_report(), "model", to=mentions), name)
    assert "@<!-- -->octocat @<!-- -->acme #<!-- -->17 user@example.invalid 1.1@16 a#1" in text


@pytest.mark.parametrize(
    ("name", "most"), [("summary", 1 << 20), ("comment", 1 << 16)], ids=["summary", "comment"]
)
def test_no_report_exceeds_the_limits_of_github(name, most):
    report = hostile_report()
    failed = next(outcome for outcome in report.gate if not outcome.met)
    outcome = failed.model_copy(update={"message": HOSTILE * 99, "rule": "語" * 9000})
    versions = {f"{n} {HOSTILE * 20}": HOSTILE * 20 for n in range(1500)}
    report = report.model_copy(update={"gate": [outcome] * 900, "versions": versions})
    text = render(report, name)
    assert len(text.encode("utf-8")) < most
    assert "more rows are in the report." in text
    if name == "comment":
        assert text.rstrip().endswith("it is too long for this page.")
    assert text.count("<details>") == text.count("</details>")
    assert "❌ Failed" in text


def test_the_marker_of_a_comment_is_the_models():
    first = render(judged("bleu=9"), "comment").splitlines()[0]
    assert first == render(judged("bleu=0.1"), "comment").splitlines()[0]
    assert first != render(classifier_report(), "comment").splitlines()[0]


def test_junit_tells_open_rules_from_failed_ones():
    report = hostile_report()
    root = ElementTree.fromstring(render(report, "junit"))
    cases = root.findall("./testsuite/testcase")
    failed = [case.find("failure") is not None for case in cases]
    assert failed == [not outcome.met for outcome in report.gate]
    assert {case.get("name") for case in cases} == {HOSTILE}
    assert ElementTree.fromstring(render(classifier_report(), "junit")).get("tests") == "0"
    root = ElementTree.fromstring(render(judged("bleu=0.3", inconclusive="pass"), "junit").encode())
    counts = [len(list(root.iter(tag))) for tag in ("testcase", "failure", "skipped")]
    assert counts == [6, 1, 3]
    assert (root.get("failures"), root.get("skipped")) == ("1", "3")


def test_the_badge_is_what_shields_asks_for():
    badge = json.loads(render(judged("bleu=9", inconclusive="pass"), "badge"))
    assert badge.keys() == {"schemaVersion", "label", "message", "color"}
    assert (badge["schemaVersion"], badge["color"]) == (1, "orange")
    assert badge["message"] == "inconclusive, 1.04x, BLEU -0.31 [-0.62, +0.01]"
    assert json.loads(render(classifier_report(), "badge"))["message"] == "no rules"


def test_benchmarks_are_what_github_action_benchmark_reads():
    formats = ("benchmark-bigger", "benchmark-smaller")
    entries = [x for name in formats for x in json.loads(render(mixed_report(), name))]
    values = {entry["name"]: entry["value"] for entry in entries}
    assert len(values) == len(entries)
    for entry in entries:
        assert {"name", "unit", "value"} <= entry.keys()
        assert entry.keys() <= {"name", "unit", "value", "range", "extra"}
        assert math.isfinite(entry["value"])
    assert values["heads-50: speed-up at batch 8"] == 1.04
    assert values["heads-50: BLEU"] == 33.9032
    assert values["heads-50: multiply-adds"] == 0.521


def test_outputs_are_words_and_numbers():
    lines = render(hostile_report(), "outputs").splitlines()
    assert len(lines) == 6
    for line in lines:
        name, _, value = line.partition("=")
        assert name.replace("-", "").isalpha()
        assert value in ("true", "false", "passed", "failed", "") or math.isfinite(float(value))
    assert "speedup=\n" in render(classifier_report(), "outputs")


def test_a_number_that_is_none_is_left_out():
    data = translator_report().model_dump()
    for variant in data["variants"]:
        variant["quality"]["metrics"]["bleu"] = variant["comparisons"][0]["difference"] = math.nan
    for row in data["throughput"]["rows"]:
        row["speedup"] = None if row["speedup"] is None else math.nan
    report = Report.model_validate(data)
    for name in ("badge", "benchmark-bigger", "benchmark-smaller"):
        json.loads(render(report, name), parse_constant=pytest.fail)
    assert "quality-delta=\n" in render(report, "outputs")


def test_the_directory_of_the_gate_is_written_again_but_nobody_elses(tmp_path, capsys):
    report, ci = tmp_path / "report.json", tmp_path / "ci"
    report.write_text(render_json(translator_report()), "utf-8")
    files = {name: (ci / FORMATS[name].file) for name in ci_formats()}
    for most, status, verdict in ((1, 1, "❌ Failed"), (1000, 0, "✅ Passed")):
        words = ["gate", report, "--max-size-mb", most, "--ci", ci]
        assert invoke(list(map(str, words))) == status
        assert files["summary"].read_text("utf-8").startswith(f"## {verdict}")
    assert {path.name for path in ci.iterdir()} == {path.name for path in files.values()}
    for path in files.values():
        text = path.read_text("utf-8")
        path.write_text("my own notes\n", "utf-8")
        with raises(InputError, "output-not-ours"):
            invoked(*words)
        path.write_text(text, "utf-8")
