"""Passed, failed, inconclusive: what decides, what it counts as, and what would settle it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scipy.stats import norm

from compressor.commands import invoke
from compressor.errors import UsageError
from compressor.evaluation import rows_to_settle
from compressor.report import gate_text, numbers
from compressor.report.rule_kinds import MaxDropRule
from compressor.report.rules import check
from compressor.report.schema import Report, render_json
from compressor.report.speedup_rules import MinSpeedupRule
from tests.evaluation.test_bounds import ALPHA, classified, score_statistic
from tests.helpers.command_line import invoke as invoked
from tests.helpers.errors import raises
from tests.helpers.metrics import compare
from tests.helpers.report_samples import classifier_report, mixed_report, rules, translator_report


def accuracy_report(lost: int, won: int, rows: int) -> Report:
    """A classifier whose smaller model has these rows wrong, and right, where the dense has not."""
    (found,) = (
        x for x in compare("classification", *classified(lost, won, rows)) if x.metric == "accuracy"
    )
    data = classifier_report().model_dump()
    for model, value in ((data["dense"], found.dense), (data["variants"][0], found.pruned)):
        model["quality"] = {"metrics": {"accuracy": value}, "signatures": {}, "rows": rows}
    data["variants"][0]["comparisons"] = [found.model_dump()]
    return Report.model_validate(data)


def only(report: Report, rule: str, **options: Any):
    (outcome,) = check(report, rules([rule]), **options)
    return outcome


@pytest.mark.parametrize(
    ("lost", "won", "rows", "verdict"),
    [
        (0, 0, 1000, "passed"),  # Wilson: at most 0.38 points
        (0, 0, 150, "inconclusive"),  # at most 2.5, though no answer changed
        (60, 10, 1000, "failed"),
        (10, 0, 1000, "inconclusive"),
        (5, 40, 1000, "passed"),
    ],
)
def test_accuracy_is_judged_by_the_score_test(lost, won, rows, verdict):
    outcome = only(accuracy_report(lost, won, rows), "accuracy=1")
    assert outcome.verdict == verdict
    low, high = outcome.interval
    assert -high <= (won - lost) / rows * 100 <= -low
    # Both ends are where Tango's statistic, its nuisance share found numerically, is the quantile.
    for end, sign in ((high, -1), (-low, 1)):
        counts = (lost, won) if sign < 0 else (won, lost)
        statistic = score_statistic(*counts, rows, end / 100)
        assert statistic == pytest.approx(-norm.isf(ALPHA), abs=2e-3)


@pytest.mark.parametrize(("lost", "won", "rows"), [(20, 12, 500), (45, 8, 500), (30, 9, 400)])
def test_as_many_rows_as_it_says_settle_it(lost, won, rows):
    """The same shares of changed rows on that many rows end in a verdict, on half as many not."""
    found = accuracy_report(lost, won, rows).variants[0].comparisons[0]
    scale = rows_to_settle(found, rows, 3.0) * 1.1 / rows
    many = [round(count * scale) for count in (lost, won, rows)]
    assert only(accuracy_report(*many), "accuracy=3").verdict != "inconclusive"
    few = [round(count * scale / 2) for count in (lost, won, rows)]
    assert only(accuracy_report(*few), "accuracy=3").verdict == "inconclusive"


def test_the_message_says_how_many_rows_would_settle_it():
    outcome = only(accuracy_report(10, 0, 1000), "accuracy=2")
    assert outcome.verdict == "passed"
    open_one = only(accuracy_report(10, 0, 300), "accuracy=4")
    assert open_one.verdict == "inconclusive"
    assert f"about {open_one.enough:,} test rows instead of 300 would settle it" in open_one.message
    assert open_one.enough == numbers.two_digits_up(open_one.enough)
    at_the_limit = only(accuracy_report(10, 0, 1000), "accuracy=1")
    assert at_the_limit.enough is None
    assert "no number would settle it" in at_the_limit.message


def test_timed_batches_that_would_settle_a_speedup():
    """Widths shrink with the root of the batches: 0.02 to 0.01 takes four times as many."""
    data = translator_report().model_dump()
    row = next(x for x in data["throughput"]["rows"] if x["variant"] == "heads-75")
    row |= {"speedup": 1.1, "speedup_interval": (1.08, 1.12), "runs": 100}
    report = Report.model_validate(data)
    first = check(report, [MinSpeedupRule(1.09, row["batch_size"])])[0]
    assert (first.verdict, first.enough) == ("inconclusive", 400)
    assert "about 400 timed batches instead of 100 (--bench-seconds) would" in first.message
    assert check(report, [MinSpeedupRule(1.11, row["batch_size"])])[0].enough == 400


@pytest.mark.parametrize(
    ("inconclusive", "met"), [("fail", [0, 0, 0]), ("pass", [1, 1, 0]), ("measured", [1, 0, 0])]
)
def test_what_inconclusive_counts_as(inconclusive, met):
    # Measured drops 0.08, 0.31, 3.01; the intervals of the first two contain 0.2.
    outcomes = check(translator_report(), [MaxDropRule("bleu", 0.2)], inconclusive)
    assert [x.verdict for x in outcomes] == ["inconclusive", "inconclusive", "failed"]
    assert [x.met for x in outcomes] == list(map(bool, met))
    lines = list(map(gate_text.outcome_line, outcomes))
    for line, is_met in zip(lines[:2], met[:2], strict=True):
        assert line.startswith(f"inconclusive, counts as {'passed' if is_met else 'FAILED'}  ")
    assert lines[2].startswith("FAILED  heads-25: ")


def test_without_an_interval_nothing_is_shown():
    data = translator_report().model_dump()
    data["variants"][0]["quality"] = data["test"] = None  # on no row that is known
    data["throughput"]["rows"][4]["speedup_interval"] = None
    report = Report.model_validate(data)
    for rule in (MaxDropRule("bleu", 100.0), MinSpeedupRule(0.1, 1)):
        outcome = check(report, [rule])[0]
        assert outcome.verdict == "inconclusive"
        assert "no confidence interval" in outcome.message
        assert check(report, [rule], "measured")[0].met


def test_sizes_and_counts_are_exact():
    # heads-50 of the sample: 140.5 MB of ONNX, 34.7 of 44.1 M parameters, 0.521 of multiply-adds.
    report = mixed_report()
    size = report.variants[1].onnx_bytes / 1e6
    share = report.variants[1].parameters / report.dense.parameters
    for option, value in (
        ("max_size_mb", size), ("max_macs", 0.521), ("max_parameters", share)
    ):  # fmt: skip
        for limit, verdict in ((value, "passed"), (value * 0.999, "failed")):
            outcome = check(report, rules(**{option: limit}))[1]
            assert outcome.verdict == verdict
            assert outcome.measured == pytest.approx(value)
            assert outcome.interval is None
    assert outcome.message.endswith(" of dense allowed")


@pytest.mark.parametrize("flags", [{"max_size_mb": 5}, {"min_speedup": ["1.1@9999"]}])
def test_rules_from_a_recipe(flags, tmp_path, capsys):
    """Other options of the recipe are not looked at; what the command line says wins."""
    report, recipe = tmp_path / "report.json", tmp_path / "recipe.yaml"
    report.write_text(render_json(translator_report()), "utf-8")
    recipe.write_text("max_metric_drop: bleu=99\nmacs: none of its business\n", "utf-8")
    assert invoke(["gate", str(report), "-c", str(recipe)]) == 0
    assert capsys.readouterr().out.count("passed  ") == 3
    assert invoke(["gate", str(report), "-c", str(recipe), "--max-metric-drop", "bleu=0.001"]) == 1
    recipe.write_text("max_metric_drops: bleu=99\n", "utf-8")
    with raises(UsageError, "option-unknown"):
        invoked("gate", report, "-c", recipe)


def test_an_option_for_rules_that_are_not_there_is_refused():
    with raises(UsageError, "option-without-use"):
        invoked("gate", "none.json", "--max-size-mb", 5, "--inconclusive", "pass")


def test_the_command_and_its_json(tmp_path, capsys):
    report = tmp_path / "report.json"
    report.write_text(render_json(translator_report()), "utf-8")
    words = ["gate", str(report), "--max-metric-drop", "bleu=4", "--max-size-mb"]
    assert invoke([*words, "1000"]) == 0
    assert invoke([*words, "1"]) == 1
    capsys.readouterr()
    assert invoke(["gate", str(report), "--max-metric-drop", "bleu=0.3", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["met"], data["verdict"]) == (False, "failed")
    assert [x["verdict"] for x in data["outcomes"]] == ["passed", "inconclusive", "failed"]
    assert data["outcomes"][1]["enough"] > 1000
    assert data["changes"] == []
