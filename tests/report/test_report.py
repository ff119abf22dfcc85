"""The report's data, how its numbers are written, JUnit, and files."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pydantic import ValidationError

from compressor.commands import invoke
from compressor.errors import InputError, UsageError
from compressor.report import FORMATS, facts, numbers, render, write_reports
from compressor.report.formats import ReportFormat
from compressor.report.schema import load_report
from compressor.report.templates import render_markdown
from tests.helpers.errors import raises
from tests.helpers.report_samples import (
    HOSTILE,
    MAKERS,
    changed,
    classifier_report,
    hostile_report,
    translator_report,
    with_timing,
)

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("make", MAKERS)
def test_report_survives_the_way_to_a_file_and_back_exactly(make, tmp_path):
    report = make()
    report.save(tmp_path / "report.json")
    assert load_report(tmp_path / "report.json") == report


def test_not_a_number_survives_the_way_to_a_file_and_back(tmp_path):
    report = with_timing(translator_report(), "heads-50", 8, speedup=math.nan, macs_ratio=math.inf)
    report.save(tmp_path / "report.json")
    json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    (row,) = [
        row
        for row in facts.timings(load_report(tmp_path / "report.json"), "heads-50")
        if row.batch_size == 8
    ]
    assert math.isnan(row.speedup)
    assert row.macs_ratio == math.inf


def test_sublayers_that_are_not_the_dense_models_are_refused():
    report = translator_report()
    for field in ("heads", "kept", "neurons", "kept_neurons"):
        fewer = dict(list(getattr(report.variants[0], field).items())[1:])
        with pytest.raises(ValidationError, match="'heads-75' has other sublayers"):
            changed(report, "variants", 0, field, to=fewer)


def test_a_mistyped_entry_is_an_error_that_names_the_place(tmp_path):
    data = json.loads(render(translator_report(), "json"))
    data["variants"][0]["nane"] = "x"
    file = tmp_path / "report.json"
    file.write_text(json.dumps(data))
    with raises(InputError, "report-invalid") as caught:
        load_report(file)
    assert str(file) in str(caught.value)
    assert "variants.0.nane" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "id"),
    [
        (None, "report-unreadable"),
        ("{", "report-not-json"),
        ("[]", "report-version"),
        ('{"schema_version": "2.0"}', "report-version"),
    ],
)
def test_files_that_are_no_reports_are_refused(text, id, tmp_path):
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    with raises(InputError, id):
        load_report(tmp_path / "report.json")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (numbers.fixed(-0.004, 2, sign=True), "0.00"),
        (numbers.fixed(0.005001, 2, sign=True), "+0.01"),
        (numbers.fixed(1234.5, 1), "1,234.5"),
        (numbers.fixed(None, 2), "n/a"),
        (numbers.fixed(math.nan, 2, sign=True), "NaN"),
        (numbers.adaptive(0.01234), "0.012"),
        (numbers.adaptive(1234.6), "1,235"),
        (numbers.p_value(0.0004999), "< 0.001"),
        (numbers.p_value(0.000999), "0.001"),
        (numbers.change(75, 100), "-25.0%"),
        (numbers.change(75, 0), "n/a"),
        (numbers.percent(0, 0), "n/a"),
        (numbers.compact(44_121_600), "44.1 M"),
        (numbers.compact(999), "999"),
        (numbers.megabytes(178_330_112), "178.3"),
        (numbers.printable("a\x1b[31m\nb\u2028c"), "a [31m b c"),
    ],
)
def test_how_numbers_are_written(text, expected):
    assert text == expected


def test_junit_has_a_failure_per_unmet_rule_and_escapes():
    for report in (translator_report(), hostile_report()):
        root = ElementTree.fromstring(render(report, "junit"))
        cases = root.findall("./testsuite/testcase")
        failed = [case.find("failure") is not None for case in cases]
        assert failed == [not outcome.met for outcome in report.gate]
        assert root.get("failures") == root.find("testsuite").get("failures") == "3"
    assert {case.get("name") for case in cases} == {HOSTILE}
    empty = ElementTree.fromstring(render(classifier_report(), "junit"))
    assert empty.get("tests") == "0"


def test_write_reports_writes_the_three_usual_files(tmp_path):
    report = translator_report()
    paths = write_reports(report, tmp_path / "new" / "out")
    assert [path.name for path in paths] == ["report.json", "report.md", "report.html"]
    assert paths[1].read_bytes().decode("utf-8") == render_markdown(report)
    assert load_report(paths[0]) == report


def test_templates_are_in_the_wheel():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    package = ROOT / "compressor"
    found = {x for pattern in patterns["package-data"]["compressor"] for x in package.glob(pattern)}
    templates = {x for x in (package / "report").iterdir() if x.suffix in (".j2", ".css")}
    assert len(templates) == 5
    assert templates <= found


def test_an_unknown_format_is_an_error_and_writes_nothing(tmp_path):
    with raises(UsageError, "report-format-unknown"):
        write_reports(translator_report(), tmp_path / "out", ["json", "pdf"])
    assert not (tmp_path / "out").exists()


def test_a_format_is_one_entry(tmp_path, monkeypatch, capsys):
    """Registered from outside: written, known again, and not written over other files."""
    monkeypatch.setattr(FORMATS, "_rows", dict(FORMATS._rows))
    titles = ReportFormat(
        "titles.txt",
        lambda report: f"titles of {report.model}\n",
        "titles of ",
        for_ci=True,
    )
    FORMATS.register("titles", titles)
    source, out, ci = tmp_path / "report.json", tmp_path / "out", tmp_path / "ci"
    translator_report().save(source)
    for _ in range(2):
        assert invoke(["report", str(source), "-o", str(out), "--format", "titles"]) == 0
        assert invoke(["gate", str(source), "--max-size-mb", "1000", "--ci", str(ci)]) == 0
        for directory in (out, ci):
            assert (directory / "titles.txt").read_text() == "titles of acme/opus-en-de\n"
    (out / "titles.txt").write_text("my own")
    assert invoke(["report", str(source), "-o", str(out), "--format", "titles"]) == 4
    capsys.readouterr()


@pytest.mark.parametrize("name", FORMATS)
def test_every_renderer_gives_the_same_text_twice(name):
    assert render(translator_report(), name) == render(translator_report(), name)
