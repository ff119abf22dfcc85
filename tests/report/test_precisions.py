"""Reports of models in several precisions."""

from __future__ import annotations

from compressor.report import facts, sentences
from compressor.report.markdown import render_markdown
from compressor.report.model_card import render_card
from compressor.report.one_variant import only
from compressor.report.page import render_html
from compressor.report.rules import check
from compressor.report.summary import short_table, summary
from compressor.results import HALF_RANGE, Check, Throughput
from tests.helpers.report_samples import int8_report, lossy, rules, translator_report


def test_a_significant_loss_is_told_everywhere():
    report = int8_report(0.01)
    told = "heads-50-int8 is significantly worse than heads-50 in BLEU, so it is not the default."
    assert told in sentences.refusals(report)
    assert sentences.precision_sentences(report) == [
        "Unless a precision is named, heads-50 runs in fp32."
    ]
    assert told in render_markdown(report)
    assert told in render_html(report)
    assert told in render_card(report, "heads-50")
    assert told in " ".join(short_table(report).split())
    found = {m["name"]: m for m in summary(report)["variants"]}["heads-50-int8"]
    assert found["base_comparisons"]["bleu"]["judgement"] == "significantly worse"
    assert (found["default"], found["base"], found["precision"]) == (False, "heads-50", "int8")


def test_values_beyond_float16_are_the_reason_that_is_told():
    report = int8_report(0.3)
    beyond = Check(name=HALF_RANGE, largest_difference=1.6, tolerance=0.5, detail="")
    build = report.variants[-1].model_copy(update={"checks": [beyond]})
    report = report.model_copy(update={"variants": [*report.variants[:-1], build]})
    told = " ".join(sentences.refusals(report))
    assert "heads-50-int8 computes values of 1.6 times float16's range" in told


def test_heads_are_shown_once_and_only_defaults_lead_and_are_judged():
    report = int8_report(0.3)
    assert [v.name for v in facts.pruned(report)] == [v.name for v in report.variants[:-1]]
    assert facts.headline(report).name != "heads-50-int8"
    assert render_html(report).count('data-variant="heads-50-int8"') == 0
    outcomes = check(report, rules(["bleu=0.5"]))
    assert {o.variant for o in outcomes} == {v.name for v in facts.delivered(report)}
    assert "heads-50-int8" not in {o.variant for o in outcomes}


def test_one_variants_report_holds_its_precisions_and_those_of_dense():
    report = int8_report(0.3)
    dense = lossy("dense-int8", report.dense, 0.5, base_comparisons=[])
    report = report.model_copy(update={"variants": [dense, *report.variants]})
    own = only(report, report.variants[2])
    assert [v.name for v in own.variants] == ["dense-int8", "heads-50", "heads-50-int8"]
    assert {row.variant for row in own.throughput.rows} == {"dense", "heads-50", "heads-50-int8"}
    assert [v.name for v in only(report, report.variants[1]).variants] == ["dense-int8", "heads-75"]


def test_a_timing_without_its_own_precision_shows_the_measurements():
    text = render_markdown(translator_report())
    timed: Throughput = translator_report().throughput
    assert f"| {timed.precision} | {timed.provider} |" in text
