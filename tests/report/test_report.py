"""The report's data, how its numbers are written, JUnit, and files."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from compressor.commands import invoke
from compressor.errors import InputError, UsageError
from compressor.report import FORMATS, facts, numbers, render, write_reports
from compressor.report.page import render_markdown
from compressor.report.schema import ReportFormat, load_report
from tests.helpers.errors import raises
from tests.helpers.report_samples import (
    MAKERS,
    changed,
    translator_report,
    with_timing,
)

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("make", MAKERS)
def test_report_survives_the_way_to_a_file_and_back_exactly(make, tmp_path):
    report, path = make(), tmp_path / "report.json"
    report.save(path)
    assert load_report(path) == report
    if report.throughput is not None:
        report = with_timing(report, "heads-75", 8, speedup=math.nan, macs_ratio=math.inf)
        report.save(path)
        json.loads(path.read_text(), parse_constant=pytest.fail)
        row = facts.timings(load_report(path), "heads-75")[1]
        assert math.isnan(row.speedup)
        assert row.macs_ratio == math.inf


def test_sublayers_that_are_not_the_dense_models_are_refused():
    report = translator_report()
    for field in ("heads", "kept", "neurons", "kept_neurons"):
        fewer = dict(list(getattr(report.variants[0], field).items())[1:])
        with pytest.raises(ValidationError, match="'heads-75' has other sublayers"):
            changed(report, "variants", 0, field, to=fewer)


@pytest.mark.parametrize(
    ("text", "id", "words"),
    [
        (None, "report-unreadable", "cannot read report"),
        ("{", "report-not-json", "is not JSON"),
        ("[]", "report-version", "schema none"),
        ('{"schema_version": "2.0"}', "report-version", "schema 2.0"),
        (render(translator_report(), "json").replace('"budget"', '"bugdet"', 2), "report-invalid",
         "report.json is not a valid report: dense.budget"),
    ],
)  # fmt: skip
def test_files_that_are_no_reports_are_refused(text, id, words, tmp_path):
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    with raises(InputError, id) as caught:
        load_report(tmp_path / "report.json")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (numbers.fixed(-0.004, 2, sign=True), "0.00"),
        (numbers.fixed(0.005001, 2, sign=True), "+0.01"),
        (numbers.fixed(1234.5, 1), "1,234.5"),
        (numbers.fixed(math.nan, 2, sign=True), "NaN"),
        (numbers.adaptive(0.01234), "0.012"),
        (numbers.adaptive(1234.6), "1,235"),
        (numbers.p_value(0.0004999), "< 0.001"),
        (numbers.p_value(0.000999), "0.001"),
        (numbers.change(75, 100), "-25.0%"),
        (numbers.compact(44_121_600), "44.1 M"),
        (numbers.megabytes(178_330_112), "178.3"),
        (numbers.printable("a\x1b[31m\nb\u2028c"), "a [31m b c"),
    ],
)
def test_how_numbers_are_written(text, expected):
    assert text == expected


def test_write_reports_writes_the_three_usual_files(tmp_path):
    report = translator_report()
    paths = write_reports(report, tmp_path / "new" / "out")
    assert [path.name for path in paths] == ["report.json", "report.md", "report.html"]
    assert paths[1].read_bytes().decode("utf-8") == render_markdown(report)
    assert load_report(paths[0]) == report
    with raises(UsageError, "report-format-unknown"):
        write_reports(report, tmp_path / "none", ["json", "pdf"])
    assert not (tmp_path / "none").exists()


def test_templates_are_in_the_wheel():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    package = ROOT / "compressor"
    found = {x for pattern in patterns["package-data"]["compressor"] for x in package.glob(pattern)}
    templates = {x for x in (package / "report").iterdir() if x.suffix in (".j2", ".css")}
    assert len(templates) == 5
    assert templates <= found


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
