"""A report beside that of an earlier run."""

from __future__ import annotations

import json
import math
import re

import pytest

from compressor.commands import invoke
from compressor.errors import InputError
from compressor.report.baseline import compare
from compressor.report.schema import Report, render_json
from tests.helpers.errors import raises
from tests.helpers.report_samples import changed, classifier_report, mixed_report, translator_report


def shifted(report: Report, by: float, number: int = 0) -> Report:
    """The report with one model's BLEU moved."""
    data = report.model_dump()
    found = data["variants"][number]["comparisons"][0]
    found |= {
        "pruned": found["pruned"] + by,
        "difference": found["difference"] + by,
        "interval": tuple(end + by for end in found["interval"]),
    }
    data["variants"][number]["quality"]["metrics"]["bleu"] += by
    return Report.model_validate(data)


@pytest.mark.parametrize(
    ("by", "judgment"), [(-0.2, "same"), (-0.3, "worse"), (0.2, "same"), (0.4, "better")]
)
def test_a_change_is_significant_when_its_interval_leaves_zero(by, judgment):
    # The interval reaches 0.1763 below and 0.1791 above the difference, in both reports.
    report = translator_report()
    (outcome, *_), (change, *_) = compare(shifted(report, by), report)
    assert (change.variant, change.what) == ("heads-75", "BLEU against dense")
    assert change.after - change.before == pytest.approx(by)
    reach = math.hypot(0.1763, 0.1791)
    assert change.interval == pytest.approx((by - reach, by + reach), abs=1e-4)
    assert change.judgment == judgment
    assert outcome.verdict == ("failed" if judgment == "worse" else "passed")


def signed(report: Report, signature: str) -> Report:
    """The report with another signature of BLEU."""
    data = report.model_dump()
    for model in (data["dense"], *data["variants"]):
        model["quality"]["signatures"] = {"bleu": signature}
    return Report.model_validate(data)


@pytest.mark.parametrize(
    ("signature", "note", "verdict"),
    [
        ("tok:zh|version:2.6.0", "measured with tok:zh, earlier tok:13a", "inconclusive"),
        ("tok:13a|version:2.7.0", "measured with version:2.7.0, earlier version:2.6.0", "passed"),
        ("tok:13a|version:2.6.0", "", "passed"),
    ],
)
def test_a_metric_that_was_computed_in_another_way_is_not_compared(signature, note, verdict):
    earlier = signed(translator_report(), "tok:13a|version:2.6.0")
    report = signed(shifted(translator_report(), 0.1), signature)
    (outcome, *_), (change, *_) = compare(report, earlier)
    assert change.note == note
    assert (change.interval is None) == (verdict == "inconclusive")
    assert (outcome.verdict, outcome.met) == (verdict, verdict == "passed")
    assert verdict == "passed" or note in outcome.message


@pytest.mark.parametrize("which", [0, 1])
def test_a_metric_at_its_floor_is_not_compared(which: int):
    """But a significant loss is one."""
    reports = [translator_report(), shifted(translator_report(), -0.1)]
    for name, value in (("floor", 34.0), ("at_floor", True)):
        reports[which] = changed(reports[which], "variants", 0, "comparisons", 0, name, to=value)
    earlier, report = reports
    outcome = compare(report, earlier)[0][0]
    assert (outcome.verdict, outcome.met) == ("inconclusive", False)
    assert "dense model's BLEU of 34.21 is at the metric's floor (34.00" in outcome.message
    assert compare(shifted(report, -3), earlier)[0][0].verdict == "failed"


def test_equal_reports_differ_in_nothing_and_every_number_is_compared():
    outcomes, changes = compare(mixed_report(), mixed_report())
    assert all(outcome.met for outcome in outcomes)
    assert {change.judgment for change in changes} == {"same"}
    assert {change.what for change in changes if change.variant == "heads-50"} == {
        "BLEU against dense", "chrF against dense", "ONNX MB", "parameters",
        "multiply-adds, share of dense", *(f"speed-up at batch {n}" for n in (1, 8, 32, 64)),
    }  # fmt: skip


def test_speed_is_compared_on_the_same_machine_and_quality_on_the_same_rows_alone():
    """And neither speed nor size fails a gate."""
    report = translator_report()
    data = report.model_dump()
    for row in data["throughput"]["rows"]:
        if row["variant"] == "heads-75":
            row["speedup"] *= 0.9
            row["speedup_interval"] = tuple(0.9 * end for end in row["speedup_interval"])
    slower = Report.model_validate(data)
    for now, what, expected in (
        (slower, "speed-up", ("worse", "")),
        (changed(slower, "hardware", "cpu", to="Another CPU"), "speed-up",
         ("unknown", "on another machine")),
        (changed(report, "variants", 0, "onnx_bytes", to=183_330_112), "ONNX MB", ("worse", "")),
        (changed(report, "test", "sha256", to="ef" * 32), "BLEU", ("same", "on other test rows")),
        (changed(report, "variants", 0, "comparisons", 0, "dense", to=30.0), "BLEU",
         ("same", "the dense models differ")),
    ):  # fmt: skip
        outcomes, changes = compare(now, report)
        found = [x for x in changes if x.what.startswith(what) and x.variant == "heads-75"]
        assert {(x.judgment, x.note) for x in found} == {expected}
        assert all(x.met for x in outcomes)


def test_reports_that_have_nothing_in_common_are_refused():
    report = translator_report()
    renamed = [v.model_copy(update={"name": f"other {v.name}"}) for v in report.variants]
    for now, earlier, id in (
        (report, classifier_report(), "baseline-of-another-task"),
        (report, report.model_copy(update={"variants": renamed}), "baseline-without-counterpart"),
        (classifier_report(), classifier_report(), "baseline-not-measured"),
    ):
        with raises(InputError, id):
            compare(now, earlier)


def test_the_command_compares_and_fails_on_a_significant_loss(tmp_path, capsys):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(render_json(translator_report()), "utf-8")
    new.write_text(render_json(shifted(translator_report(), -0.5, 1)), "utf-8")
    assert invoke(["gate", str(old), "--baseline", str(old)]) == 0
    capsys.readouterr()
    words = ["gate", str(new), "--baseline", str(old)]
    assert invoke([*words, "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [x["verdict"] for x in data["outcomes"]] == ["passed", "failed", "passed"]
    assert {x["judgment"] for x in data["changes"]} == {"worse", "same"}
    assert invoke(words) == 1
    assert re.search("heads-50 .* significantly worse\n", capsys.readouterr().out)
