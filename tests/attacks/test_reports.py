"""Reports that are damaged or made up: status 4 with the place, and no gate that passes by them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from compressor.commands import invoke
from compressor.errors import InputError
from compressor.report.rules import check
from compressor.report.schema import load_report, render_json
from tests.helpers.errors import raises
from tests.helpers.report_samples import rules, translator_report
from tests.helpers.runtime_artifacts import write_hashes

REPORT: dict[str, Any] = json.loads(render_json(translator_report()))
RULES = rules(["bleu=1"], ["0.5", "0.5@8"])


def changed(place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    report = copy.deepcopy(REPORT)
    part: Any = report
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    return report


def written(report: Any, path: Path) -> Path:
    path.write_text(json.dumps(report), "utf-8")
    return path


QUALITY = ("variants", 0, "comparisons", 0, "difference")
SPEED = ("throughput", "rows", 4, "speedup")


@pytest.mark.parametrize("place", [QUALITY, SPEED])
@pytest.mark.parametrize("value", [float("inf"), True, "30"])
def test_infinities_texts_and_truth_values_are_no_numbers(place, value, tmp_path):
    file = written(changed(place, value), tmp_path / "report.json")
    with raises(InputError, "report-invalid"):
        load_report(file)
    words = ["gate", str(file), "--max-metric-drop", "bleu=100", "--min-speedup", "0.1"]
    assert invoke(words) == 4


@pytest.mark.parametrize("place", [QUALITY, SPEED])
def test_what_is_not_a_number_meets_no_rule(place, tmp_path):
    file = written(changed(place, "NaN"), tmp_path / "report.json")
    assert invoke(["gate", str(file), "--max-metric-drop", "bleu=100"]) == (place == QUALITY)


def test_the_gate_skips_no_model(tmp_path):
    """A model of which no precision is the default would be shipped unseen."""
    report = copy.deepcopy(REPORT)
    report["variants"][0]["default"] = False
    file = written(report, tmp_path / "report.json")
    with raises(InputError, "report-without-default"):
        check(load_report(file), RULES)
    assert invoke(["gate", str(file), "--max-metric-drop", "bleu=100"]) == 4


def test_the_gate_holds_the_precision_that_is_shipped(tmp_path):
    report = copy.deepcopy(REPORT)
    worse = copy.deepcopy(report["variants"][0])
    worse |= {"name": "heads-75-int8", "base": "heads-75", "precision": "int8", "default": False}
    worse["quality"]["metrics"]["bleu"] = worse["comparisons"][0]["pruned"] = 1.0
    worse["comparisons"][0] |= {"difference": 1 - 34.2134, "interval": [-35, -31]}
    report["variants"].append(worse)
    words = ["gate", str(tmp_path / "report.json"), "--max-metric-drop", "bleu=10"]
    written(report, tmp_path / "report.json")
    assert invoke(words) == 0  # int8 is there, and is run only where it is asked for
    report["variants"][0]["default"], worse["default"] = False, True
    written(report, tmp_path / "report.json")
    assert invoke(words) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b"null",
        b'{"schema_version": {"a": [1]}}',
        b'{"schema_version": "99.0"}',
        b'{"schema_version": "2.0"}',
    ],
)
def test_a_file_that_is_no_report_is_told(data, tmp_path, capsys):
    file = tmp_path / "report.json"
    file.write_bytes(data)
    assert invoke(["gate", str(file), "--max-metric-drop", "bleu=1"]) == 4
    assert str(file) in capsys.readouterr().err
    assert invoke(["report", str(file), "-o", str(tmp_path / "out")]) == 4


def test_a_report_that_is_not_the_listed_one_is_refused(tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    written(REPORT, out / "report.json")
    write_hashes(out)
    command = ["report", str(out / "report.json"), "-o", str(tmp_path / "again")]
    assert invoke(command) == 0
    changed = copy.deepcopy(REPORT)
    changed["created"] = "2001-01-01T00:00:00Z"
    written(changed, out / "report.json")
    assert invoke(command) == 4
    assert "manifest.json says" in capsys.readouterr().err
    assert invoke([*command, "--no-verify"]) == 0
