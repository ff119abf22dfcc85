"""The report's tables, the short one on stdout, and the summary of `--json`.

Expected numbers are rounded here with `decimal` from the report's own values.
"""

from __future__ import annotations

import json
import math
from decimal import ROUND_HALF_EVEN, Decimal

import pytest

from compressor.report import facts, sentences, summary, tables, unit_tables
from tests.helpers.report_samples import (
    MAKERS,
    changed,
    classifier_report,
    translator_report,
    with_timing,
)


def rounded(value: float, digits: int, sign: bool = False) -> str:
    """`value` with `digits` decimals, by decimal arithmetic on its exact binary value."""
    text = str(Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_EVEN))
    return f"+{text}" if sign and value > 0 else text


def test_quality_table_holds_the_reports_numbers_rounded():
    report = translator_report()
    table = tables.quality(report)
    models = {model.name: model for model in facts.models(report)}
    assert len(table.rows) == 8
    for name, metric, score, against, difference, interval, p_value, result in table.rows:
        key = {"BLEU": "bleu", "chrF": "chrf"}[metric]
        assert score == rounded(models[name].quality.metrics[key], 2)
        if name == "dense":
            assert (against, difference, interval, p_value, result) == (*[""] * 4, "reference")
            continue
        assert against == "dense"
        (found,) = [c for c in models[name].comparisons if c.metric == key]
        low, high = (rounded(bound, 2, sign=True) for bound in found.interval)
        assert difference == rounded(found.difference, 2, sign=True)
        assert interval == f"[{low}, {high}]"
        assert p_value == rounded(found.p_value, 3)
        assert (result == "significantly worse") == (name == "heads-25")


def test_throughput_table_holds_the_reports_numbers_rounded():
    report = translator_report()
    timings = {(row.variant, row.batch_size): row for row in report.throughput.rows}
    table = tables.throughput(report)
    assert len(table.rows) == len(timings) == 16
    for name, batch, speed, tokens, p50, p90, p99, memory, *rest in table.rows:
        row = timings[name, int(batch)]
        shown = [float(cell.replace(",", "")) for cell in (speed, tokens, p50, p90, p99, memory)]
        exact = [row.sentences_per_second, row.tokens_per_second]
        exact += [row.latency_ms[key] for key in ("p50", "p90", "p99")]
        exact.append(row.peak_memory_mib)
        assert shown == pytest.approx(exact, rel=1e-3)  # three significant digits
        if name == "dense":
            assert rest == ["", "", ""]
            continue
        low, high = (rounded(bound, 2) for bound in row.speedup_interval)
        assert rest == [
            rounded(row.speedup, 2),
            f"[{low}, {high}]",
            rounded(row.macs_ratio, 2),
        ]


def test_size_table_counts_heads_per_kind():
    report = translator_report()
    rows = {row[0]: row for row in unit_tables.size(report).rows}
    # 32 + 36 + 40 of 48 each were drawn for this variant; bytes divided by a million.
    assert rows["heads-75"][2:6] == ("32/48", "36/48", "40/48", "108/144")
    assert rows["heads-75"][7] == f"{report.variants[0].parameters:,}"
    assert rows["heads-75"][9] == rounded(report.variants[0].checkpoint_bytes / 1e6, 1)
    assert rows["heads-75"][11] == rounded(report.variants[0].onnx_bytes / 1e6, 1)


def test_differing_signatures_name_their_models():
    place = ("variants", 1, "quality", "signatures", "bleu")
    report = changed(translator_report(), *place, to="tok:char")
    labels = [label for label, _ in tables.signatures(report).rows]
    assert labels == [
        *("BLEU of dense", "BLEU of heads-75", "BLEU of heads-50", "BLEU of heads-25"),
        "chrF",
    ]


@pytest.mark.parametrize("make", MAKERS)
def test_short_table_fits_a_hundred_columns(make):
    lines = summary.short_table(make()).splitlines()
    assert max(map(len, lines)) <= 100
    assert all(line.isprintable() for line in lines)


def test_short_table_says_the_same_as_the_report():
    lines = summary.short_table(translator_report()).splitlines()
    row = next(line for line in lines if line.startswith("heads-50"))
    assert row.split("  ")[0] == "heads-50"
    assert "72/144" in row
    assert "33.90 (-0.31 [-0.62, +0.01])" in row
    assert row.endswith("140.5")
    speeds = [line for line in lines if line.startswith("heads-50") and line is not row]
    assert [" 8.99 (0.99 [0.97, 1.01])" in line for line in speeds] == [True, False]
    batches = [line.split("batch")[1:] for line in lines if line.startswith("sentences/s")]
    assert [int(size) for block in batches for size in block] == [1, 8, 32, 64]
    assert "3 of 6 gate checks are not met." in " ".join(lines)
    assert sum(line.startswith("FAILED  ") for line in lines) == 3


def test_builds_of_a_model_with_a_long_name_are_told_apart():
    names = [f"speedup-1.2-at-batch-16{end}" for end in ("", "-int8", "-ctranslate2-int8")]
    report = changed(translator_report(), "throughput", to=None)
    for number, name in enumerate(names):
        report = changed(report, "variants", number, "name", to=name)
    rows = summary.short_table(report).split("\n\n")[0].splitlines()
    shown = [row.split()[0] for row in rows if row.startswith("speedup")]
    assert shown == [
        "speedup-1.2-at-batch-16",
        "speedup-1.2...ch-16-int8",
        "speedup-1.2...late2-int8",
    ]


def test_wide_characters_count_two_columns():
    report = changed(classifier_report(), "variants", 0, "name", to="翻訳" * 10)
    text = summary.short_table(report)
    header, _, row = text.splitlines()[:3]
    assert row.startswith("翻訳翻訳翻...訳翻訳翻訳 ")  # 23 columns of the 24 a name may take
    assert len(header) == len(row) + 10


def test_summary_is_strict_json_with_full_precision():
    report = with_timing(translator_report(), "heads-50", 8, speedup=math.nan)
    data = json.loads(json.dumps(summary.summary(report), allow_nan=False))
    half = data["variants"][1]
    assert half["heads_kept"] == 72
    assert (half["neurons_kept"], half["neurons_total"]) == (768, 768)
    assert half["comparisons"]["bleu"]["difference"] == 33.9032 - 34.2134
    assert half["comparisons"]["bleu"]["judgement"] == "no significant difference"
    assert [row["speedup"] for row in half["throughput"]] == [0.993, None, 1.151, 1.163]
    assert data["gate_met"] is False
    assert data["verdict"] == sentences.verdict(report)
    assert summary.summary(classifier_report())["gate_met"] is None
