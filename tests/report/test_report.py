"""The report's data, how its numbers are written, and its files."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from compressor.errors import InputError
from compressor.report import gains, render
from compressor.report.schema import load_report
from tests.helpers.errors import raises
from tests.helpers.report_samples import (
    MAKERS,
    changed,
    tokens_report,
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
        row = gains.timings(load_report(path), "heads-75")[1]
        assert math.isnan(row.speedup)
        assert row.macs_ratio == math.inf


def test_sublayers_that_are_not_the_dense_models_are_refused():
    report = translator_report()
    for field in ("heads", "kept", "neurons", "kept_neurons"):
        fewer = dict(list(getattr(report.variants[0], field).items())[1:])
        with pytest.raises(ValidationError, match="'heads-75' has other sublayers"):
            changed(report, "variants", 0, field, to=fewer)


def test_a_report_without_shares_of_tokens_opens_as_one_whose_models_hand_on_all(tmp_path):
    data = json.loads(render(tokens_report(), "json"))
    for model in (data["dense"], *data["variants"]):
        del model["handed_on"]
    (tmp_path / "report.json").write_text(json.dumps(data), encoding="utf-8")
    opened = load_report(tmp_path / "report.json")
    assert [model.handed_on for model in opened.variants] == [[], [], []]
    assert "tokens" not in render(opened, "markdown")


@pytest.mark.parametrize("tenths", [[10, 7], [10, 7, 3, 1], [10, 7, 11], [10, 7, -1]])
def test_shares_of_tokens_that_are_not_of_the_layers_are_refused(tenths):
    with pytest.raises(ValidationError, match="'fewer' does not say of 3 layers"):
        changed(tokens_report(), "variants", 1, "handed_on", to=tenths)


MISTYPED = render(translator_report(), "json").replace('"budget"', '"bugdet"', 2)


@pytest.mark.parametrize(
    ("text", "id", "words"),
    [
        (None, "file-missing", "there is no file"),
        ("[" * 100_000, "report-invalid", ""),
        ("[]", "report-version", "schema none"),
        ('{"schema_version": "2.0"}', "report-version", "schema 2.0"),
        (MISTYPED, "report-invalid", "report.json is not a valid report: dense.budget"),
    ],
)
def test_files_that_are_no_reports_are_refused(text, id, words, tmp_path):
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    with raises(InputError, id) as caught:
        load_report(tmp_path / "report.json")
    assert words in str(caught.value)


def test_templates_are_in_the_wheel():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    package = ROOT / "compressor"
    found = {x for pattern in patterns["package-data"]["compressor"] for x in package.glob(pattern)}
    templates = {x for x in (package / "report").iterdir() if x.suffix in (".j2", ".css")}
    assert len(templates) == 4
    assert templates <= found
