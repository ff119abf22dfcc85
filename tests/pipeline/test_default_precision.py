"""Which precision an artifact runs when none is named."""

from __future__ import annotations

from collections.abc import Sequence

from compressor.pipeline.evaluate import choose_default
from compressor.report import facts
from compressor.report.schema import Report
from compressor.results import Variant
from tests.helpers.report_samples import int8_report


def family(report: Report) -> Sequence[Variant]:
    return facts.builds(report, report.variants[1])


def test_the_fastest_without_significant_loss_is_the_default():
    fine, worse = int8_report(0.3), int8_report(0.01)
    assert [v.name for v in family(fine)] == ["heads-50", "heads-50-int8"]
    timed = fine.throughput.model_copy(update={"device": "cpu"})
    assert choose_default(family(fine), timed) == "int8"
    assert choose_default(family(worse), timed) == "fp32"
    assert choose_default(family(fine), None) == "fp32"  # no timings
    base, made = family(fine)
    untested = made.model_copy(update={"base_comparisons": []})
    assert choose_default([base, untested], timed) == "fp32"
    slow = timed.model_copy(
        update={"rows": [r for r in timed.rows if r.variant == "heads-50"]
                + [r.model_copy(update={"variant": made.name, "sentences_per_second": 0.1})
                   for r in timed.rows if r.variant == "heads-50"]}
    )  # fmt: skip
    assert choose_default([base, made], slow) == "fp32"
    half = made.model_copy(update={"precision": "fp16"})
    assert choose_default([base, half], timed) == "fp32"  # on a CPU its speed is luck
    assert choose_default([base, half], timed.model_copy(update={"device": "cuda"})) == "fp16"
