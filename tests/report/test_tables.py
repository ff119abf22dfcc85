"""The report's tables, those on stdout, and the summary of `--json`.

Expected numbers are rounded here with `decimal` from the report's own values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal

import pytest

from compressor.report import facts, sentences, summary
from compressor.report.first_tables import conclusion, samples
from compressor.report.one_variant import only, share_scoring
from compressor.report.samples import sample_answers, sample_rows
from compressor.report.schema import Report
from compressor.report.table import Column, columns
from compressor.report.tables import tables
from compressor.report.text_table import render_table
from compressor.results import Throughput, Timing
from compressor.tasks import TASKS
from tests.helpers.report_samples import (
    MAKERS,
    changed,
    classifier_report,
    int8_report,
    lossy,
    mixed_report,
    translator_report,
    with_dense_int8,
    with_samples,
    with_timing,
)


def rounded(value: float, digits: int, sign: bool = False) -> str:
    """`value` with `digits` decimals, by decimal arithmetic on its exact binary value."""
    text = str(Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_EVEN))
    return f"+{text}" if sign and value > 0 else text


def ranged(interval: Sequence[float], sign: bool = False) -> str:
    low, high = (rounded(bound, 2, sign) for bound in interval)
    return f"[{low}, {high}]"


def test_the_conclusion_has_before_after_and_difference_beside_dense_int8():
    report = with_dense_int8(int8_report(0.3))
    table = conclusion(report)
    titles = [column.title for column in table.columns]
    assert titles == ["Measured", "dense fp32", "heads-50", "Difference", "Dense int8 alone",
                      "Difference"]  # fmt: skip
    assert table.rows == (
        ("BLEU", "34.21", "33.90", "-0.31 [-0.62, +0.01], no significant difference",
         "34.21", "-0.07 [-0.28, +0.13], no significant difference"),
        ("Latency at batch 1 (ms)", "110.5", "111.3", "0.99 [0.97, 1.01], no measurable gain",
         "110.5", "2.30 [2.21, 2.48] times as fast"),
        ("Latency at batch 64 (ms)", "527.3", "453.4", "1.16 [1.14, 1.18] times as fast",
         "527.3", "2.30 [2.21, 2.48] times as fast"),
        ("Size (ONNX MB)", "178.3", "140.5", "-21.2%", "44.6", "-75.0%"),
    )  # fmt: skip
    assert [column.title for column in conclusion(mixed_report()).columns][3:] == ["Difference"]
    assert conclusion(classifier_report()).rows == (("Size (ONNX MB)", "3.27", "3.00", "-8.1%"),)


def test_samples_are_rows_at_even_distances_with_the_answers_of_both_models(tmp_path):
    file = tmp_path / "rows.tsv"
    lines = [f"text {n}\t{n}.25" for n in range(16)]
    file.write_text("\n".join(["text\tscore", *lines]) + "\n", "utf-8")
    rows = TASKS["regression"].read_rows(file, limit=16)
    assert [row.texts for row in sample_rows(rows, 4)] == [[f"text {n}"] for n in (2, 6, 10, 14)]
    assert sample_rows(rows, 0) == sample_answers(["a"], 0) == []
    assert sample_answers(["x" * 1000, "b"], 4) == ["x" * 399 + "…", "b"]
    report = with_samples(translator_report())
    assert samples(report).rows[1] == ("text 1", "right 1", "dense says 1", "heads-50 says 1")
    assert samples(translator_report()) is None
    numbered = changed(report, "dense", "samples", to=["0.8532214760780334", "2.5", "B", "3.1"])
    assert [row[2] for row in samples(numbered).rows] == ["0.8532", "2.5", "B", "3.1"]


def test_quality_table_holds_the_reports_numbers_rounded():
    report = translator_report()
    rows = tables(report)["quality"].rows
    models = {model.name: model for model in facts.models(report)}
    assert len(rows) == 8
    for name, metric, score, against, difference, interval, p_value, result in rows:
        key = {"BLEU": "bleu", "chrF": "chrf"}[metric]
        assert score == rounded(models[name].quality.metrics[key], 2)
        if name == "dense":
            assert (against, difference, interval, p_value, result) == (*[""] * 4, "reference")
            continue
        assert against == "dense"
        (found,) = [c for c in models[name].comparisons if c.metric == key]
        assert difference == rounded(found.difference, 2, sign=True)
        assert interval == ranged(found.interval, sign=True)
        assert p_value == rounded(found.p_value, 3)
        assert (result == "significantly worse") == (name == "heads-25")


def test_another_precision_is_compared_with_float32_too_and_refused_where_it_loses():
    for p_value, result in ((0.001, "significantly worse"), (0.3, "no significant difference")):
        report = int8_report(p_value)
        rows = [row for row in tables(report)["quality"].rows if row[0] == "heads-50-int8"]
        assert [row[3] for row in rows] == ["dense", "heads-50", "dense"]
        assert rows[1][-1] == result
        said = "heads-50-int8 is significantly worse than heads-50 in BLEU, so it is not the"
        assert (said in sentences.verdict(report)) is (result == "significantly worse")
        assert tables(report)["quality"].notes == (
            "Unless a precision is named, heads-50 runs in fp32.",
        )


def test_throughput_table_holds_the_reports_numbers_rounded():
    report = translator_report()
    timings = {(row.variant, row.batch_size): row for row in report.throughput.rows}
    rows = tables(report)["throughput"].rows
    assert len(rows) == len(timings) == 16
    results = {}
    for name, batch, speed, tokens, p50, p90, p99, memory, speedup, ratio, result in rows:
        row = timings[name, int(batch)]
        shown = [float(cell.replace(",", "")) for cell in (speed, tokens, p50, p90, p99, memory)]
        exact = [row.sentences_per_second, row.tokens_per_second]
        exact += [row.latency_ms[key] for key in ("p50", "p90", "p99")]
        exact.append(row.peak_memory_mib)
        assert shown == pytest.approx(exact, rel=1e-3)  # three significant digits
        if name == "dense":
            assert (speedup, ratio, result) == ("", "", "reference")
            continue
        assert speedup == f"{rounded(row.speedup, 2)} {ranged(row.speedup_interval)}"
        assert ratio == rounded(row.macs_ratio, 2)
        results[name, row.batch_size] = result
    # Intervals are -0.02 +0.0194: of 0.993 and 1.021 they reach 1, of 1.04 and 1.049 they do not.
    assert results["heads-50", 1] == results["heads-75", 8] == "does not pay"
    assert results["heads-50", 8] == results["heads-25", 1] == "pays"


def test_size_and_units_are_counted_per_kind_and_layer():
    # 32 + 36 + 40 of 48 heads each were drawn for this variant; bytes divided by a million.
    report = mixed_report()
    made, model = tables(report), report.variants[1]
    titles = [column.title for column in made["size"].columns]
    row = dict(zip(titles, made["size"].rows[2], strict=True))
    assert (row["Heads"], row["Neurons"], row["Multiply-adds"]) == ("72/144", "416/768", "52.1%")
    change = 100 * (model.parameters / report.dense.parameters - 1)
    assert row["Parameters"] == f"{model.parameters:,} ({change:.1f}%)"
    assert row["ONNX MB"].startswith(f"{rounded(model.onnx_bytes / 1e6, 1)} (-")
    layers = {row[0]: row[1:] for row in made["units"].rows}
    assert layers["encoder_ffn.1"] == ("64/64", "32/64", "0/64")
    assert layers["All encoder self-attention"] == ("32/48", "16/48", "6/48")
    assert layers["All decoder feed-forward"] == ("352/384", "288/384", "64/384")
    assert layers["encoder_self.0"][2] == "0/8: none"
    skipped = changed(report, "variants", 1, "dropped_layers", to=["decoder.2"])
    assert "heads-50 skips decoder.2" in tables(skipped)["units"].notes[0]
    # A model that lost heads alone: nothing about its neurons is news.
    assert "neuron" not in str(tables(translator_report()))


def test_differing_signatures_name_their_models():
    place = ("variants", 1, "quality", "signatures", "bleu")
    report = changed(translator_report(), *place, to="tok:char")
    labels = [label for label, _ in tables(report)["signatures"].rows]
    assert labels == [
        *("BLEU of dense", "BLEU of heads-75", "BLEU of heads-50", "BLEU of heads-25"),
        "chrF",
    ]


def test_a_precision_for_another_device_is_told():
    report = translator_report()
    half = lossy("heads-50-fp16", report.variants[1], 0.3, precision="fp16")
    report = report.model_copy(update={"variants": [*report.variants, half]})
    (note,) = tables(report)["throughput"].notes
    assert note.startswith("fp16 is not for a cpu")
    assert tables(translator_report())["throughput"].notes == ()


# --- reports of several budgets


def scored_apart() -> Report:
    """The translator's report with other scores and methods for each variant."""
    report = translator_report()
    variants = [
        variant.model_copy(
            update={"scoring": report.scoring.model_copy(update={"signature": f"signature-{n}"})}
        )
        for n, variant in enumerate(report.variants, 1)
    ]
    return report.model_copy(update={"scoring": None, "variants": variants})


def test_each_variant_has_the_scores_its_own_heads_were_chosen_by():
    report = scored_apart()
    pairs = dict(tables(report)["origin"].rows)
    assert pairs["Scoring signature of heads-50"] == "signature-2"
    own = only(report, report.variants[1])
    assert dict(tables(own)["origin"].rows)["Scoring signature"] == "signature-2"
    assert Report.model_validate_json(report.model_dump_json()) == report


def test_scores_that_all_variants_share_stand_once_in_the_report():
    report = translator_report()
    same = [v.model_copy(update={"scoring": report.scoring}) for v in report.variants]
    precision = same[0].model_copy(update={"name": "other", "base": same[0].name, "scoring": None})
    scoring, variants = share_scoring([*same, precision])
    assert scoring == report.scoring
    assert all(variant.scoring is None for variant in variants)
    apart = scored_apart().variants
    assert share_scoring(apart) == (None, apart)


def test_the_report_of_one_model_has_all_its_builds_and_the_dense_ones():
    report = with_dense_int8(int8_report(0.3))
    own = only(report, report.variants[1])
    assert [v.name for v in own.variants] == ["heads-50", "heads-50-int8", "dense-int8"]
    assert {row.variant for row in own.throughput.rows} == {
        "dense",
        *(v.name for v in own.variants),
    }
    assert [v.name for v in only(report, report.variants[0]).variants] == ["heads-75", "dense-int8"]


# --- on stdout


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
    assert [" 8.99 (0.99 [0.97, 1.01])" in line for line in speeds[:2]] == [True, False]
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


@pytest.mark.parametrize(
    ("titles", "rows", "text"),
    [
        (columns("model", "heads"), [["dense", "144"], ["half", "72"]],
         "model  heads\ndense    144\nhalf      72"),
        (columns("a, b"), [["cpu", "fast"], ["memory", "16 GiB"]],
         "a       b\ncpu     fast\nmemory  16 GiB"),
        ([Column("x")], [["翻訳"], ["[b]"]], "   x\n翻訳\n [b]"),  # wide letters, no markup
        ((), [["a\nb\x1b[31m", "1"]], "a b [31m  1"),  # a cell stays on its line
        ((), [["a", "1"], ["b", "2", "3"]], "a  1\nb  2  3"),  # rows may be shorter than others
        ((), [], ""),
    ],
)  # fmt: skip
def test_text_stands_left_and_numbers_right(titles, rows, text):
    assert render_table(titles, rows) == text


@pytest.mark.parametrize("variable", ["COLUMNS", "FORCE_COLOR", "TTY_INTERACTIVE"])
def test_no_cell_is_cut_wrapped_or_colored_whatever_the_terminal(monkeypatch, variable):
    monkeypatch.setenv(variable, "20")
    name = "a name with spaces 12.5 http://z " * 20
    assert render_table(columns("x", "y"), [[name + "end", "1"]]).splitlines()[1] == name + "end  1"


def test_timings_are_shown_with_speed_up_interval_and_multiply_adds():
    def timing(variant: str, **more) -> Timing:
        return Timing(
            variant=variant, batch_size=4, source_tokens=3, padded_source_tokens=3,
            target_tokens=0, runs=5, sentences_per_second=12.34, tokens_per_second=99.6,
            latency_ms={"p50": 1.0, "p90": 2.0, "p99": 3.04}, **more,
        )  # fmt: skip

    pruned = timing(
        "some/long/directory/of-the-pruned-model", peak_memory_mib=41.6, speedup=1.256,
        speedup_interval=(1.2, 1.3), macs_ratio=1.5,
    )  # fmt: skip
    throughput = Throughput(
        provider="CPUExecutionProvider", device="cpu", precision="fp32", threads=2,
        lengths="source lengths from the data", rows=[timing("dense"), pruned],
    )  # fmt: skip
    first, _, dense, other = summary.timing_table(throughput).splitlines()
    assert first == "CPUExecutionProvider, fp32, 2 threads, lengths: source lengths from the data"
    assert dense.split() == ["4", "dense", "12.3", "100", "1.0", "2.0", "3.0"]
    assert other.split()[1] == "some/long/directory/of-the-pruned-model"
    assert other.endswith("3.0   42  1.26 [1.20, 1.30] (1.50)")
