"""Reports that are damaged or made up: status 4 with the place, and no gate that passes by them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from compressor.commands import invoke
from compressor.errors import InputError
from compressor.report import FORMATS, render
from compressor.report.rules import check
from compressor.report.schema import load_report, render_json
from compressor.report.summary import short_table, summary
from tests.attacks import fuzz_changes
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


QUALITY = ("variants", 0, "quality", "metrics", "bleu")
SPEED = ("throughput", "rows", 4, "speedup")


@pytest.mark.parametrize("place", [QUALITY, SPEED, ("dense", "quality", "metrics", "bleu")])
@pytest.mark.parametrize(
    "value", [float("inf"), float("-inf"), True, False, "Infinity", "30", 1e999, 10**400]
)
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


@pytest.mark.parametrize("hidden", [[0], [0, 1, 2]])
def test_the_gate_skips_no_model(hidden, tmp_path):
    """A model of which no precision is the default would be shipped unseen."""
    report = copy.deepcopy(REPORT)
    for number in hidden:
        report["variants"][number]["default"] = False
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
    report["variants"][0]["default"] = True
    written(report, tmp_path / "report.json")
    assert invoke(words) == 4


@given(fuzz_changes.changed_json(REPORT))
@settings(max_examples=200)
def test_values_of_other_types_end_as_input_errors_or_are_rendered(tmp_path, drawn):
    file = written(drawn[1], tmp_path / "report.json")
    try:
        report = load_report(file)
        check(report, RULES)
    except InputError:
        return
    for name in FORMATS:
        if name != "html":  # the same sentences and tables, and slow plots
            render(report, name)
    short_table(report)
    json.dumps(summary(report), allow_nan=False)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b"9" * 5000,
        b"null",
        b'{"schema_version": 5}',
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


MODEL = ("variants", 0)
BLEU = (*MODEL, "comparisons", 0)
IMPOSSIBLE = {
    "a negative size": ((*MODEL, "onnx_bytes"), -1),
    "a negative number of parameters": ((*MODEL, "parameters"), -5),
    "a negative share": ((*MODEL, "macs_share"), -0.5),
    "a share of more than all": ((*MODEL, "macs_share"), 1.5),
    "a negative speed-up": (SPEED, -2.0),
    "a negative ratio": (("throughput", "rows", 4, "macs_ratio"), -2.0),
    "a reversed interval": ((*BLEU, "interval"), [0.2, -0.2]),
    "a reversed interval of a speed-up": (("throughput", "rows", 4, "speedup_interval"), [2, 1]),
    "a reversed interval of an outcome": (("gate", 0, "interval"), [2, 1]),
    "a difference of other numbers": ((*BLEU, "difference"), -49.0),
    "another dense model in a comparison": ((*BLEU, "dense"), 50.0),
    "another quality": (QUALITY, 34.2),
    "a difference far outside its interval": ((*BLEU, "interval"), [5.0, 5.1]),
    "a speed-up far outside its interval": (
        ("throughput", "rows", 4, "speedup_interval"), [3.1, 3.2]
    ),
    "a speed-up of other timings": (("throughput", "rows", 4, "sentences_per_second"), 90.0),
    "a probability above 1": ((*BLEU, "p_value"), 1.5),
    "other rows": ((*MODEL, "quality", "rows"), 10**6),
    "rows won and lost that make another difference": ((*BLEU, "discordant"), [9, 0]),
    "a second comparison": (
        (*MODEL, "comparisons"), [REPORT["variants"][0]["comparisons"][0]] * 2
    ),
    "a second timing": (("throughput", "rows", 5), REPORT["throughput"]["rows"][4]),
    "a precision of itself": ((*MODEL, "base"), "heads-75"),
}  # fmt: skip


@pytest.mark.parametrize(("place", "value"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_numbers_are_refused(place, value, tmp_path):
    file, whole = (
        written(changed(place, value), tmp_path / "report.json"),
        written(REPORT, tmp_path / "whole"),
    )
    with raises(InputError, "report-invalid"):
        load_report(file)
    assert invoke(["gate", str(file), "--max-macs", "1"]) == 4
    assert invoke(["gate", str(whole), "--baseline", str(file)]) == 4


def test_a_difference_beside_its_interval_is_possible(tmp_path):
    """The percentiles of few rows' bootstrap, and of one draw, need not contain it."""
    near = changed((*BLEU, "interval"), [-0.05, 0.1])
    assert load_report(written(near, tmp_path / "report.json"))
    near["variants"][0]["comparisons"][0] |= {"interval": [3.0, 3.0], "resamples": 1}
    assert load_report(written(near, tmp_path / "report.json"))


def renamed(sizes: dict[str, Any], new: str) -> dict[str, Any]:
    return {new if name == "encoder_self.0" else name: size for name, size in sizes.items()}


def with_layers(name: str | None, *fields: str, models: slice = slice(None)) -> dict[str, Any]:
    """The report with the first layer's name changed, or with no layers."""
    report = copy.deepcopy(REPORT)
    for model in [report["dense"], *report["variants"]][models]:
        for field in fields:
            model[field] = {} if name is None else renamed(model[field], name)
    return report


def with_heads(count: int) -> dict[str, Any]:
    report = copy.deepcopy(REPORT)
    for model in (report["dense"], *report["variants"]):
        model["heads"]["encoder_self.0"] = count
    return report


def with_dropped(layer: str) -> dict[str, Any]:
    """The report with a dropped layer that has units, or that is not there."""
    report = copy.deepcopy(REPORT)
    report["variants"][0]["dropped_layers"] = [layer]
    return report


@pytest.mark.parametrize(
    "report",
    [
        *(
            with_layers(name, "kept", "heads")
            for name in ("encoder_self.x", "encoder_self.\u0663", "encoder_self", "x.0",
                         "encoder_ffn.0", "encoder_self." + "9" * 5000, "encoder_self.01", None)
        ),
        with_layers("encoder_self.9", "kept", "heads", models=slice(1)),
        with_layers(None, "kept", "heads", models=slice(1)),
        with_layers(None, "neurons", "kept_neurons", models=slice(1, 2)),
        with_heads(10**12),
        with_heads(-1),
        changed(("variants", 0, "heads", "encoder_self.0"), 10**12),
        with_dropped("encoder.0"),
        with_dropped("decoder.99"),
    ],
)  # fmt: skip
def test_layers_that_no_model_has_are_refused(report, tmp_path):
    file = str(written(report, tmp_path / "report.json"))
    with raises(InputError, "report-invalid"):
        load_report(Path(file))
    assert invoke(["report", file, "-o", str(tmp_path / "out")]) == 4
    assert invoke(["gate", file, "--max-macs", "1", "--ci", str(tmp_path / "ci")]) == 4


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
