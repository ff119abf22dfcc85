"""Gate rules: what they accept, and that nothing unmeasured ever passes."""

from __future__ import annotations

import math

import pytest

from compressor.errors import InputError, UsageError
from compressor.report.rule_kinds import MaxDropRule
from compressor.report.rules import check, exit_status
from compressor.report.schema import Report
from compressor.report.speedup_rules import MinSpeedupRule
from compressor.tasks import TASKS
from tests.helpers.errors import raises
from tests.helpers.report_samples import changed, classifier_report, rules, translator_report


def of_translator(*path: str | int, to: object) -> Report:
    return changed(translator_report(), *path, to=to)


def test_rules_are_parsed():
    parsed = rules(["bleu=0.5", " Macro_F1 = 1 ", "mcc=.02"], ["1.1@16", "1", " 1.05 @ 8"])
    assert parsed == [
        MaxDropRule("bleu", 0.5),
        MaxDropRule("macro_f1", 1.0),
        MaxDropRule("mcc", 0.02),
        MinSpeedupRule(1.1, 16),
        MinSpeedupRule(1.0),
        MinSpeedupRule(1.05, 8),
    ]
    assert rules([rule.text for rule in parsed[:3]], [rule.text for rule in parsed[3:]]) == parsed
    assert [parsed[0].name, parsed[3].name] == ["max-metric-drop bleu=0.5", "min-speedup 1.1@16"]
    assert rules() == []


@pytest.mark.parametrize(
    "text",
    ["", "bleu", "bleu=", "=0.5", "bleu=-0.5", "bleu=nan", "bleu=inf", "bleu=0,5", "bleu=0.5%",
     "bleu=1_0", "bleu=0.5 chrf=1", "bleu=\u0665", "bleu:0.5"],
)  # fmt: skip
def test_a_malformed_drop_is_a_usage_error_with_an_example(text):
    with raises(UsageError, "max-drop-malformed") as caught:
        rules([text])
    assert repr(text) in str(caught.value)
    example = str(caught.value).rpartition("--max-metric-drop ")[2]
    assert rules([example]) == [MaxDropRule("bleu", 0.5)]


@pytest.mark.parametrize(
    "text",
    ["", "fast", "1.1@", "@16", "1.1@0", "1.1@-4", "1.1@2.5", "0", "0.0@4", "-1.1", "nan", "inf@4",
     "1,1@16", "1.1@16@8", "1.1x"],
)  # fmt: skip
def test_a_malformed_speedup_is_a_usage_error_with_an_example(text):
    with raises(UsageError, "min-speedup-malformed") as caught:
        rules([], [text])
    assert repr(text) in str(caught.value)
    example = str(caught.value).rpartition("--min-speedup ")[2]
    assert rules([], [example]) == [MinSpeedupRule(1.1, 16)]


def test_an_unknown_metric_is_a_usage_error_that_suggests_a_known_one():
    with raises(UsageError, "metric-unknown") as caught:
        rules(["blue=0.5"])
    assert "'blue'" in str(caught.value)
    assert str(caught.value).endswith("did you mean 'bleu'?")


@pytest.mark.parametrize(
    ("max_metric_drop", "min_speedup"),
    [(["bleu=0.5", "BLEU=1"], []), ([], ["1.1@8", "1.2@8"]), ([], ["1.1", "1.2"])],
)
def test_two_limits_for_the_same_number_are_a_usage_error(max_metric_drop, min_speedup):
    with raises(UsageError, "rule-twice"):
        rules(max_metric_drop, min_speedup)


@pytest.mark.parametrize(
    ("task", "good", "bad"),
    [("translation", "chrf", "accuracy"), ("classification", "macro_f1", "bleu")],
)
def test_a_metric_of_another_task_is_a_usage_error(task, good, bad):
    for rule in (MaxDropRule(good, 1.0), MinSpeedupRule(1.1)):
        rule.require_task(TASKS[task])
    with raises(UsageError, "metric-of-another-task") as caught:
        MaxDropRule(bad, 1.0).require_task(TASKS[task])
    assert bad in str(caught.value)
    assert good in str(caught.value)


def test_a_drop_is_judged_by_its_confidence_bounds():
    # Differences of BLEU in the sample, with their intervals: -0.08 [-0.25, +0.10],
    # -0.31 [-0.62, +0.01] and -3.01 [-3.60, -2.41].
    outcomes = check(translator_report(), rules(["bleu=0.3"]))
    assert [(o.variant, o.verdict, o.met) for o in outcomes] == [
        ("heads-75", "passed", True),
        ("heads-50", "inconclusive", False),
        ("heads-25", "failed", False),
    ]
    assert outcomes[2].rule == "max-metric-drop bleu=0.3"
    assert outcomes[2].message == (
        "BLEU 31.20 against 34.21 dense: a drop of 3.01 [2.41, 3.60], at most 0.3 allowed"
    )


def test_a_gain_meets_a_drop_of_nothing():
    found = translator_report().variants[0].comparisons[0]
    better = {"pruned": 35.0, "difference": 0.79, "interval": (0.61, 0.97)}
    report = of_translator("variants", 0, "comparisons", 0, to=found.model_dump() | better)
    first = check(report, [MaxDropRule("bleu", 0.0)])[0]
    assert first.met
    assert "a drop of -0.79 [-0.97, -0.61]" in first.message


def test_exactly_the_allowed_drop_is_met_in_spite_of_binary_rounding():
    path = ("variants", 0, "comparisons", 0, "interval")
    report = of_translator(*path, to=(-0.6000000000000014, 0.1))
    assert check(report, [MaxDropRule("bleu", 0.6)])[0].met
    report = of_translator(*path, to=(-0.6001, 0.1))
    assert not check(report, [MaxDropRule("bleu", 0.6)])[0].met


def test_speedup_at_one_batch_size_and_at_all():
    # Speed-ups in the sample at batch 8, all -0.02 +0.0194: 1.021, 1.04, 1.112.
    report = translator_report()
    at_eight = check(report, [MinSpeedupRule(1.04, 8)])
    assert [x.verdict for x in at_eight] == ["inconclusive", "inconclusive", "passed"]
    faster = check(report, [MinSpeedupRule(1.09, 8)])
    assert [x.verdict for x in faster] == ["failed", "failed", "passed"]
    everywhere = check(report, [MinSpeedupRule(1.0)])  # heads-25 is above 1 at every size
    assert [outcome.verdict for outcome in everywhere] == ["inconclusive"] * 2 + ["passed"]
    assert everywhere[1].message.startswith(
        "speed-up 0.99 [0.97, 1.01] at batch 1, at least 1 required; about "
    )
    assert everywhere[2].message.count("at batch") == 4


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        (("variants", 0, "comparisons", 0, "difference"), MaxDropRule("bleu", 100.0)),
        (("throughput", "rows", 5, "speedup"), MinSpeedupRule(0.1, 8)),
        (("throughput", "rows", 5, "speedup"), MinSpeedupRule(0.1)),
    ],
)
def test_not_a_number_never_passes(path, rule):
    assert check(translator_report(), [rule])[0].met
    outcome = check(of_translator(*path, to=math.nan), [rule], "pass")[0]
    assert (outcome.verdict, outcome.met) == ("failed", False)
    assert "NaN" in outcome.message


@pytest.mark.parametrize(
    ("report", "rule", "measured"),
    [
        (translator_report(), MaxDropRule("accuracy", 1.0), "bleu, chrf;"),
        (classifier_report(), MaxDropRule("accuracy", 1.0), "none;"),
        (translator_report(), MinSpeedupRule(1.0, 16), "1, 8, 32, 64;"),
        (classifier_report(), MinSpeedupRule(1.0), "none;"),
        (
            of_translator("throughput", "rows", 15, "speedup", to=None),
            MinSpeedupRule(1.0),
            "1, 8, 32;",
        ),
    ],
)
def test_a_rule_about_what_was_not_measured_is_an_error_that_lists_what_was(report, rule, measured):
    with raises(InputError, "rule-not-measured") as caught:
        check(report, [rule])
    assert measured in str(caught.value)


def test_a_report_without_variants_meets_no_rule():
    with raises(InputError, "report-without-variants"):
        check(classifier_report().model_copy(update={"variants": []}), [MaxDropRule("bleu", 1.0)])


def test_exit_status_is_one_exactly_when_a_rule_is_not_met():
    report = translator_report()
    assert exit_status(check(report, [MaxDropRule("bleu", 5.0)])) == 0
    assert exit_status(check(report, [MaxDropRule("bleu", 5.0), MaxDropRule("chrf", 0.1)])) == 1
