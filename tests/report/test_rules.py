"""Gate rules: what passes, fails or stays open, what would decide it, and how it is refused."""

from __future__ import annotations

import json
import math
from functools import partial

import pytest
from scipy.stats import norm

from compressor.commands import invoke
from compressor.errors import InputError, UsageError
from compressor.evaluation import rows_to_settle
from compressor.report import numbers, sentences
from compressor.report.rules import MaxDropRule, MinSpeedupRule, check
from compressor.report.schema import Report, render_json
from tests.evaluation.test_significance import ALPHA, score_statistic
from tests.helpers.command_line import invoke as invoked
from tests.helpers.errors import raises
from tests.helpers.report_samples import (
    accuracy_report,
    changed,
    classifier_report,
    mixed_report,
    rules,
    translator_report,
    with_timing,
)

of_translator = partial(changed, translator_report())


@pytest.mark.parametrize(
    ("drops", "speedups", "id"),
    [
        *(([text], [], "rule-malformed") for text in ("", "bleu", "bleu=-1", "bleu=nan", "a=1 b")),
        *(([], [text], "rule-malformed") for text in ("0@1", "1.1@", "1.1@2.5", "inf@4", "1@16@8")),
        (["blue=0.5"], [], "metric-unknown"),
        (["bleu=0.5", "BLEU=1"], [], "rule-twice"),
        ([], ["1.1@8", "1.2@8"], "rule-twice"),
    ],
)  # fmt: skip
def test_malformed_rules_are_refused(drops, speedups, id):
    with raises(UsageError, id):
        rules(drops, speedups)


@pytest.mark.parametrize(
    ("report", "rule", "id", "words"),
    [
        (translator_report(), "accuracy=1", "rule-not-measured", "bleu, chrf;"),
        (translator_report(), "1@16", "rule-not-measured", "1, 8, 32, 64;"),
        (classifier_report(), "1", "rule-not-measured", "none;"),
        (of_translator("throughput", "rows", 15, "speedup", to=None), "1", "rule-not-measured",
         "1, 8, 32;"),
        (classifier_report().model_copy(update={"variants": []}), "bleu=1",
         "report-without-variants", "no pruned variant"),
    ],
)  # fmt: skip
def test_what_was_not_measured_is_an_error_and_never_passes(report, rule, id, words):
    with raises(InputError, id) as caught:
        check(report, rules(*([rule], []) if "=" in rule else ([], [rule])))
    assert words in str(caught.value)


@pytest.mark.parametrize(("low", "met"), [(-0.6000000000000014, True), (-0.6001, False)])
def test_exactly_the_allowed_drop_is_met_in_spite_of_binary_rounding(low, met):
    report = changed(
        translator_report(), "variants", 0, "comparisons", 0, "interval", to=(low, 0.1)
    )
    assert check(report, [MaxDropRule("bleu", 0.6)])[0].met is met


def test_speedup_at_one_batch_size_and_at_all():
    # Speed-ups in the sample at batch 8, all -0.02 +0.0194: 1.021, 1.04, 1.112.
    report = translator_report()
    at_eight = check(report, [MinSpeedupRule(1.04, 8)])
    assert [x.verdict for x in at_eight] == ["inconclusive", "inconclusive", "passed"]
    faster = check(report, [MinSpeedupRule(1.09, 8)])
    assert [x.verdict for x in faster] == ["failed", "failed", "passed"]
    everywhere = check(report, [MinSpeedupRule(1.0)])  # heads-25 is above 1 at every size
    assert [outcome.verdict for outcome in everywhere] == ["inconclusive"] * 2 + ["passed"]
    assert everywhere[1].message.startswith("speed-up 0.99 [0.97, 1.01] at batch 1, at least 1 ")


def test_not_a_number_never_passes():
    for path, rule in (
        (("variants", 0, "comparisons", 0, "difference"), MaxDropRule("bleu", 100.0)),
        (("throughput", "rows", 5, "speedup"), MinSpeedupRule(0.1)),
    ):
        assert check(translator_report(), [rule])[0].met
        outcome = check(of_translator(*path, to=math.nan), [rule], "pass")[0]
        assert (outcome.verdict, outcome.met) == ("failed", False)


def outcome_of(report: Report, rule: str):
    (outcome,) = check(report, rules([rule]))
    return outcome


@pytest.mark.parametrize(
    ("lost", "won", "rows", "verdict"),
    [
        (0, 0, 1000, "passed"),  # Wilson: at most 0.38 points
        (0, 0, 150, "inconclusive"),  # at most 2.5, though no answer changed
        (60, 10, 1000, "failed"),
        (5, 40, 1000, "passed"),
    ],
)
def test_accuracy_is_judged_by_the_score_test(lost, won, rows, verdict):
    outcome = outcome_of(accuracy_report(lost, won, rows), "accuracy=1")
    assert outcome.verdict == verdict
    low, high = outcome.interval
    # Both ends are where Tango's statistic, its nuisance share found numerically, is the quantile.
    for end, counts in ((high, (lost, won)), (-low, (won, lost))):
        statistic = score_statistic(*counts, rows, end / 100)
        assert statistic == pytest.approx(-norm.isf(ALPHA), abs=2e-3)


def test_as_many_rows_as_it_says_settle_it():
    """The same shares of changed rows on that many rows end in a verdict, on half as many not."""
    found = accuracy_report(20, 12, 500).variants[0].comparisons[0]
    scale = rows_to_settle(found, 500, 3.0) * 1.1 / 500
    for factor, settled in ((scale, True), (scale / 2, False)):
        counts = [round(count * factor) for count in (20, 12, 500)]
        verdict = outcome_of(accuracy_report(*counts), "accuracy=3").verdict
        assert (verdict != "inconclusive") is settled


def test_the_message_says_how_many_rows_or_timings_would_settle_it():
    """Widths shrink with the root of the batches: 0.02 to 0.01 takes four times as many."""
    outcome = outcome_of(accuracy_report(10, 0, 300), "accuracy=4")
    asked = f"about {outcome.enough:,} test rows instead of 300 are needed to decide, if the drop"
    assert asked in outcome.message
    assert outcome.enough == numbers.ceil_to_two_digits(outcome.enough)
    at_the_limit = outcome_of(accuracy_report(10, 0, 1000), "accuracy=1")
    assert at_the_limit.enough is None
    assert "more test rows will not decide this: the drop equals the limit" in at_the_limit.message
    measured = {"speedup": 1.1, "speedup_interval": (1.08, 1.12), "runs": 100}
    report = with_timing(translator_report(), "heads-75", 8, **measured)
    first = check(report, [MinSpeedupRule(1.09, 8)])[0]
    assert (first.verdict, first.enough) == ("inconclusive", 400)
    assert "about 400 timed batches instead of 100 (--bench-seconds) are needed" in first.message
    assert check(report, [MinSpeedupRule(1.11, 8)])[0].enough == 400


def test_what_inconclusive_counts_as():
    # Measured drops 0.08, 0.31, 3.01; the intervals of the first two contain 0.2.
    for inconclusive, met in (("fail", [0, 0]), ("pass", [1, 1]), ("measured", [1, 0])):
        outcomes = check(translator_report(), [MaxDropRule("bleu", 0.2)], inconclusive)
        assert [x.verdict for x in outcomes] == ["inconclusive", "inconclusive", "failed"]
        assert [x.met for x in outcomes] == [*map(bool, met), False]
        for line, is_met in zip(map(sentences.outcome_line, outcomes), met, strict=False):
            assert line.startswith(f"inconclusive, counts as {'passed' if is_met else 'FAILED'}  ")


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


def test_the_command_its_json_and_rules_from_a_recipe(tmp_path, capsys):
    """Other options of the recipe are not looked at; what the command line says wins."""
    report, recipe = tmp_path / "report.json", tmp_path / "recipe.yaml"
    report.write_text(render_json(translator_report()), "utf-8")
    recipe.write_text("max_metric_drop: bleu=99\nmacs: none of its business\n", "utf-8")
    assert invoke(["gate", str(report), "-c", str(recipe)]) == 0
    assert capsys.readouterr().out.count("passed  ") == 3
    words = ["gate", str(report), "-c", str(recipe), "--max-metric-drop", "bleu=0.3"]
    assert invoke([*words, "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["met"], data["verdict"], data["changes"]) == (False, "failed", [])
    assert [x["verdict"] for x in data["outcomes"]] == ["passed", "inconclusive", "failed"]
    assert data["outcomes"][2]["message"] == (
        "BLEU 31.20 against 34.21 dense: a drop of 3.01 [2.41, 3.60], at most 0.3 allowed"
    )
    recipe.write_text("max_metric_drops: bleu=99\n", "utf-8")
    with raises(UsageError, "option-unknown"):
        invoked("gate", report, "-c", recipe)
    with raises(UsageError, "option-without-use"):
        invoked("gate", "none.json", "--max-size-mb", 5, "--inconclusive", "pass")
