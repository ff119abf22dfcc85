"""The last sentence: how much faster and smaller, for what difference; dense int8 beside it."""

from __future__ import annotations

import math

import pytest

from compressor.report import facts, sentences, step_summary
from compressor.report.in_short import in_short
from compressor.report.schema import Report
from tests.helpers.report_samples import MAKERS, mixed_report, translator_report, with_timing


def said(report: Report, name: str = "heads-50") -> str:
    (variant,) = (variant for variant in report.variants if variant.name == name)
    return in_short(report, variant)


def with_dense_int8(report: Report) -> Report:
    """The report with the dense model in int8: 2.2 to 2.5 times as fast, a quarter as large."""
    timed = [
        row.model_copy(
            update={"variant": "dense-int8", "speedup": 2.3, "speedup_interval": (2.21, 2.48)}
        )
        for row in facts.timings(report, "heads-50")
    ]
    found = (
        report.variants[0]
        .comparisons[0]
        .model_copy(update={"pruned": 34.1434, "difference": -0.07, "interval": (-0.284, 0.13)})
    )
    dense = report.dense.model_copy(
        update={
            "name": "dense-int8", "base": "dense", "precision": "int8", "comparisons": [found],
            "onnx_bytes": report.dense.onnx_bytes // 4, "default": False,
        }
    )  # fmt: skip
    rows = [*report.throughput.rows, *timed]
    update = {"throughput": report.throughput.model_copy(update={"rows": rows})}
    return report.model_copy(update=update | {"variants": [*report.variants, dense]})


def test_speed_size_and_quality_are_told_with_what_the_intervals_allow():
    report = translator_report()
    for batch in (1, 8, 32):
        gain = {"speedup": 2.6, "speedup_interval": (2.51, 2.94)}
        report = with_timing(report, "heads-50", batch, **gain)
    report = with_timing(report, "heads-50", 64, speedup=3.1, speedup_interval=(3.06, 3.58))
    dense, pruned = report.dense.onnx_bytes, report.variants[1].onnx_bytes
    start = f"In short: 2.5 to 3.6 times as fast and {dense / pruned:.1f} times smaller for -0.31"
    assert said(report) == f"{start} BLEU [-0.62, +0.01]; dense int8 alone was not measured."
    assert said(with_dense_int8(report)) == (
        f"{start} BLEU [-0.62, +0.01]; dense int8 alone is 2.2 to 2.5 times as fast and 4.0 times "
        "smaller for -0.07 BLEU [-0.28, +0.13]."
    )


def test_an_interval_that_reaches_below_one_is_no_gain():
    report = translator_report()
    wide = {"speedup": 8.2, "speedup_interval": (0.94, 17.3)}
    for batch in (1, 8, 32, 64):
        report = with_timing(report, "heads-50", batch, **wide)
    assert said(report).startswith(
        "In short: with no measurable gain in speed at batch 1 (8.20 [0.94, 17.30]), 8 (8.20"
    )
    assert "times as fast" not in said(report)
    report = with_timing(report, "heads-50", 8, speedup=1.5, speedup_interval=(1.5, 1.5))
    report = with_timing(report, "heads-50", 64, speedup=0.9, speedup_interval=(0.8, 0.95))
    assert said(report).startswith(
        "In short: 1.5 times as fast at batch 8, with no measurable gain in speed at batch 1 (8.20 "
        "[0.94, 17.30]) and 32 (8.20 [0.94, 17.30]), slower at batch 64 (0.90 [0.80, 0.95]) and"
    )


@pytest.mark.parametrize("make", MAKERS)
def test_no_text_calls_a_loss_insignificant_without_its_interval(make):
    report = make()
    texts = [sentences.verdict(report), *sentences.quality_sentences(report)]
    texts.append(step_summary.render_summary(report))
    assert not any("without significant" in text for text in texts)


def test_what_was_not_timed_or_compared_has_no_summary():
    report = mixed_report()
    variant = facts.headline(report)
    assert in_short(report, variant) in sentences.verdict(report)
    assert in_short(report.model_copy(update={"throughput": None}), variant) is None
    unknown = variant.comparisons[0].model_copy(update={"p_value": math.nan})
    assert in_short(report, variant.model_copy(update={"comparisons": [unknown]})) is None
