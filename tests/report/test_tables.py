"""The report's tables, those on stdout, and the summary of `--json`.

Expected cells are rounded by hand from the numbers in `tests.helpers.report_samples`.
"""

from __future__ import annotations

import json
import math

import pytest

from compressor.report import sentences, summary
from compressor.report.publish import only, sample_answers, sample_rows, share_scoring
from compressor.report.schema import Report
from compressor.report.table import Column, columns, render_text
from compressor.report.tables import conclusion, samples, tables
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


def test_the_conclusion_has_before_after_and_difference_beside_dense_int8():
    table = conclusion(with_dense_int8(int8_report(0.3)))
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


def test_quality_and_throughput_tables_hold_the_reports_numbers_rounded():
    made = tables(translator_report())
    quality, throughput = made["quality"].rows, made["throughput"].rows
    assert len(quality) == 8
    assert quality[0] == ("dense", "BLEU", "34.21", "", "", "", "", "reference")
    assert quality[2] == ("heads-50", "BLEU", "33.90", "dense", "-0.31", "[-0.62, +0.01]", "0.060",
                          "no significant difference")  # fmt: skip
    assert quality[3] == ("heads-25", "BLEU", "31.20", "dense", "-3.01", "[-3.60, -2.41]", "0.001",
                          "significantly worse")  # fmt: skip
    assert len(throughput) == 16
    # 54.21 sentences a second of dense, 24 tokens each; eight in 147.6 ms; 1.28 multiply-adds.
    assert throughput[4] == ("dense", "8", "54.2", "1,301", "147.6", "162.3", "181.5", "420.8", "",
                             "", "reference")  # fmt: skip
    assert throughput[6] == ("heads-50", "8", "56.4", "1,353", "141.9", "156.1", "174.5", "420.8",
                             "1.04 [1.02, 1.06]", "1.29", "pays")  # fmt: skip
    # Intervals are -0.02 +0.0194: of 0.993 and 1.021 they reach 1, of 1.04 and 1.049 they do not.
    results = {(row[0], row[1]): row[-1] for row in throughput}
    assert results["heads-50", "1"] == results["heads-75", "8"] == "does not pay"
    assert results["heads-25", "1"] == "pays"


@pytest.mark.parametrize(
    ("p_value", "result"), [(0.001, "significantly worse"), (0.3, "no significant difference")]
)
def test_another_precision_is_compared_with_float32_too_and_refused_where_it_loses(p_value, result):
    report = int8_report(p_value)
    quality = tables(report)["quality"]
    rows = [row for row in quality.rows if row[0] == "heads-50-int8"]
    assert [row[3] for row in rows] == ["dense", "heads-50", "dense"]
    assert rows[1][-1] == result
    loses = "heads-50-int8 is significantly worse than heads-50 in BLEU, so it is not the"
    assert (loses in sentences.verdict(report)) is (result == "significantly worse")
    assert quality.notes == ("Unless a precision is named, heads-50 runs in fp32.",)


def test_size_and_units_are_counted_per_kind_and_layer():
    # 32 + 36 + 40 of 48 heads each were drawn for this variant; bytes divided by a million.
    report = mixed_report()
    made = tables(report)
    titles = [column.title for column in made["size"].columns]
    row = dict(zip(titles, made["size"].rows[2], strict=True))
    assert (row["Heads"], row["Neurons"], row["Multiply-adds"]) == ("72/144", "416/768", "52.1%")
    # 44,121,600 parameters and 178.330112 MB less 72 heads of 131,264 parameters, 525,056 bytes.
    assert row["Parameters"] == "34,670,592 (-21.4%)"
    assert row["ONNX MB"] == "140.5 (-21.2%)"
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
    assert labels == [*(f"BLEU of {x}" for x in ("dense", "heads-75", "heads-50", "heads-25")),
                      "chrF"]  # fmt: skip


def test_a_precision_for_another_device_is_named():
    report = translator_report()
    half = lossy("heads-50-fp16", report.variants[1], 0.3, precision="fp16")
    report = report.model_copy(update={"variants": [*report.variants, half]})
    (note,) = tables(report)["throughput"].notes
    assert note.startswith("fp16 is not for a cpu")
    assert tables(translator_report())["throughput"].notes == ()


# --- reports of several budgets


def test_each_variant_has_the_scores_its_heads_were_chosen_by_and_shared_ones_stand_once():
    report = translator_report()
    scorings = [report.scoring.model_copy(update={"signature": f"s-{n}"}) for n in range(3)]
    pairs = zip(report.variants, scorings, strict=True)
    apart = [v.model_copy(update={"scoring": scoring}) for v, scoring in pairs]
    assert share_scoring(apart) == (None, apart)
    several = report.model_copy(update={"scoring": None, "variants": apart})
    assert dict(tables(several)["origin"].rows)["Scoring signature of heads-50"] == "s-1"
    one = only(several, apart[1])
    assert dict(tables(one)["origin"].rows)["Scoring signature"] == "s-1"
    assert Report.model_validate_json(several.model_dump_json()) == several
    same = [v.model_copy(update={"scoring": report.scoring}) for v in report.variants]
    precision = same[0].model_copy(update={"name": "other", "base": same[0].name, "scoring": None})
    scoring, variants = share_scoring([*same, precision])
    assert scoring == report.scoring
    assert all(variant.scoring is None for variant in variants)


def test_the_report_of_one_model_has_all_its_builds_and_the_dense_ones():
    report = with_dense_int8(int8_report(0.3))
    one = only(report, report.variants[1])
    names = ["heads-50", "heads-50-int8", "dense-int8"]
    assert [v.name for v in one.variants] == names
    assert {row.variant for row in one.throughput.rows} == {"dense", *names}


# --- on stdout


@pytest.mark.parametrize("make", MAKERS)
def test_short_table_fits_a_hundred_columns(make):
    lines = summary.short_table(make()).splitlines()
    assert max(map(len, lines)) <= 100
    assert all(line.isprintable() for line in lines)


def test_short_table_says_the_same_as_the_report():
    lines = summary.short_table(translator_report()).splitlines()
    row, *speeds = [line for line in lines if line.startswith("heads-50")]
    assert row.split()[:7] == ["heads-50", "72/144", "33.90", "(-0.31", "[-0.62,", "+0.01])",
                               "34.7"]  # fmt: skip
    assert row.endswith("140.5")
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
    assert shown == [names[0], "speedup-1.2...ch-16-int8", "speedup-1.2...late2-int8"]


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
        (columns("a, >b, c"), [["cpu", "1", "x"], ["memory", "16", "y"]],
         "a        b  c\ncpu      1  x\nmemory  16  y"),
        ([Column("x")], [["翻訳"], ["[b]"]], "   x\n翻訳\n [b]"),  # wide letters, no markup
        ((), [["a\nb\x1b[31m", "1"]], "a b [31m  1"),  # a cell stays on its line
        ((), [["a", "1"], ["b", "2", "3"]], "a  1\nb  2  3"),  # rows may be shorter than others
        ((), [], ""),
    ],
)  # fmt: skip
def test_text_stands_left_and_numbers_right(titles, rows, text):
    assert render_text(titles, rows) == text


@pytest.mark.parametrize("variable", ["COLUMNS", "FORCE_COLOR", "TTY_INTERACTIVE"])
def test_no_cell_is_cut_wrapped_or_colored_whatever_the_terminal(monkeypatch, variable):
    monkeypatch.setenv(variable, "20")
    name = "a name with spaces 12.5 http://z " * 20
    assert render_text(columns("x", "y"), [[name + "end", "1"]]).splitlines()[1] == name + "end  1"


def test_timings_are_shown_with_speed_up_interval_and_multiply_adds():
    dense = Timing(
        variant="dense", batch_size=4, source_tokens=3, padded_source_tokens=3,
        target_tokens=0, runs=5, sentences_per_second=12.34, tokens_per_second=99.6,
        latency_ms={"p50": 1.0, "p90": 2.0, "p99": 3.04},
    )  # fmt: skip
    measured = {"speedup": 1.256, "speedup_interval": (1.2, 1.3), "macs_ratio": 1.5}
    pruned = {"variant": "some/long/directory/of-the-pruned-model", "peak_memory_mib": 41.6}
    throughput = Throughput(
        provider="CPUExecutionProvider", device="cpu", precision="fp32", threads=2,
        lengths="source lengths from the data",
        rows=[dense, dense.model_copy(update=pruned | measured)],
    )  # fmt: skip
    first, _, line, other = summary.timing_table(throughput).splitlines()
    assert first == "CPUExecutionProvider, fp32, 2 threads, lengths: source lengths from the data"
    assert line.split() == ["4", "dense", "12.3", "100", "1.0", "2.0", "3.0"]
    assert other.split()[1] == "some/long/directory/of-the-pruned-model"
    assert other.endswith("3.0   42  1.26 [1.20, 1.30] (1.50)")
