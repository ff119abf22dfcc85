"""What the report's sentences and its verdict say, and when."""

from __future__ import annotations

import math

import pytest

from compressor.report import facts, render, sentences
from compressor.report.model_card import render_card
from compressor.report.schema import Report
from compressor.results import Outcome
from tests.helpers.report_samples import classifier_report, translator_report, with_timing


def test_pruning_that_does_not_pay_is_said_for_every_such_batch_size():
    data = translator_report().model_dump()
    data["variants"] = [v for v in data["variants"] if v["name"] == "heads-50"]
    rows = data["throughput"]["rows"]
    data["throughput"]["rows"] = [r for r in rows if r["variant"] in ("dense", "heads-50")]
    report = Report.model_validate(data)
    report = with_timing(report, "heads-50", 8, speedup=0.95, speedup_interval=(0.93, 0.97))
    report = with_timing(report, "heads-50", 64, speedup=math.nan, speedup_interval=None)
    assert sentences.speed_sentences(report) == [
        "heads-50 does not pay at batch 1.",
        "heads-50 is slower than dense at batch 8.",
        "heads-50 pays at batch 32.",
        "heads-50 has no usable speed-up at batch 64.",
    ]


def test_models_of_which_the_same_is_true_share_a_sentence():
    report = translator_report()
    assert sentences.quality_sentences(report) == [
        "Significantly worse than dense in BLEU and chrF: heads-25.",
        "Not shown to differ from dense (the intervals say how much may be lost) in BLEU and chrF: "
        "heads-75 and heads-50.",
    ]
    assert sentences.speed_sentences(report) == [
        "heads-75 does not pay at batch 1 and 8.",
        "heads-75 pays at batch 32 and 64.",
        "heads-50 does not pay at batch 1.",
        "heads-50 pays at batch 8, 32 and 64.",
        "heads-25 pays at batch 1, 8, 32 and 64.",
    ]


@pytest.mark.parametrize(
    ("speedup", "interval", "pays"),
    [
        (1.05, (1.01, 1.09), True),
        (1.05, (1.0, 1.1), False),
        (1.05, (1.0049, 1.1), False),  # is written [1.00, 1.10]
        (1.05, None, True),
        (0.99, None, False),
        (None, None, False),
        (math.nan, (math.nan, math.nan), False),
    ],
)
def test_pays_only_if_the_written_interval_is_above_one(speedup, interval, pays):
    found = {"speedup": speedup, "speedup_interval": interval}
    report = with_timing(translator_report(), "heads-50", 1, **found)
    assert facts.pays(facts.timings(report, "heads-50")[0]) is pays


def test_judgment_follows_p_value_interval_and_sign():
    report = translator_report()
    found = {v.name: facts.judge(facts.comparison(v, "bleu")) for v in report.variants}
    assert found == {"heads-75": "same", "heads-50": "same", "heads-25": "worse"}
    comparison = report.variants[2].comparisons[0]
    better = comparison.model_copy(update={"difference": 0.5, "interval": (0.1, 0.9)})
    touching = comparison.model_copy(update={"interval": (-0.9, 0.0)})
    unknown = comparison.model_copy(update={"p_value": math.nan})
    assert facts.judge(better) == "better"
    assert facts.judge(touching) == "same"
    assert facts.judge(unknown) == "unknown"
    assert facts.judge(None) == "unknown"


def test_headline_is_the_smallest_without_loss_that_meets_the_gate():
    report = translator_report().model_copy(update={"gate": []})
    assert facts.headline(report).name == "heads-50"
    verdict = sentences.verdict(report)
    assert (
        "heads-50, the smallest that is not significantly worse than dense, keeps 72 of" in verdict
    )
    rule = "min-speedup 2"
    failed = Outcome(rule=rule, variant="heads-50", met=False, message="", verdict="failed")
    gated = report.model_copy(update={"gate": [failed]})
    assert facts.headline(gated).name == "heads-75"
    assert "not significantly worse than dense and meets the gate" in sentences.verdict(gated)
    assert sentences.verdict(gated).endswith("The gate check is not met.")


def test_when_every_variant_is_worse_the_verdict_says_so_and_leads_with_the_mildest():
    data = translator_report().model_dump()
    for variant in data["variants"]:
        variant["comparisons"][0] |= {"p_value": 0.001, "interval": (-0.9, -0.1)}
    report = Report.model_validate(data)
    assert sentences.verdict(report).startswith(
        "All 3 variants are significantly worse than dense; the mildest, heads-75, keeps 108 of"
    )


def test_what_was_not_measured_is_said():
    report = classifier_report()
    (quality,) = sentences.quality_sentences(report)
    assert quality == "Quality was not measured: the run had no test rows."
    assert sentences.speed_sentences(report) == ["Throughput was not measured."]
    assert sentences.emptied_sentences(report) == [
        "In half layer encoder_self.1 has no heads left: only its output bias is still applied."
    ]
    assert sentences.verdict(report) == (
        "half keeps 8 of 16 heads (50%); quality not measured; speed not measured."
    )
    empty = report.model_copy(update={"variants": []})
    assert sentences.verdict(empty) == "The report holds no pruned variant."


def test_rows_both_calibrated_and_tested_on_are_said_wherever_the_result_is():
    report = translator_report()
    assert "calibration rows too" not in render_card(report, "heads-50")
    report = report.model_copy(update={"shared_rows": 30})
    texts = [render(report, "markdown"), render(report, "html"), render_card(report, "heads-50")]
    assert all("30 of 1,000 test rows are calibration rows too" in text for text in texts)
    one = sentences.verdict(report.model_copy(update={"shared_rows": 1}))
    assert "1 of 1,000 test rows is a calibration row too" in one
