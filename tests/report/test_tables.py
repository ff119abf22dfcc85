"""The report's tables, those on stdout, and the summary of --json."""

from __future__ import annotations

import json
import math
from math import ceil

import pytest

from compressor.model.sublayers import Scores
from compressor.report import render, terminal
from compressor.report.build_view import build_view
from compressor.report.card import render_card
from compressor.report.publish import only, share_scoring
from compressor.report.run_report import sample_rows
from compressor.report.schema import Report
from compressor.report.scores_file import read_scores, write_scores
from compressor.report.table import Column, columns, render_text
from compressor.report.tables import conclusion, samples, tables
from compressor.steps.results import QualitySearch, Source, SpeedSearch, SpeedTry
from compressor.tasks import Rows
from tests.helpers.report_samples import (
    MAKERS,
    changed,
    classifier_report,
    int8_report,
    mixed_report,
    tokens_report,
    translator_report,
    with_dense_int8,
    with_samples,
    with_timing,
)
from tests.helpers.scores import comparison, cost_table, judged


def test_the_conclusion_has_before_after_and_difference_beside_dense_int8():
    table = conclusion(build_view(with_dense_int8(int8_report(0.3))).headline)
    titles = [column.title for column in table.columns]
    assert titles == ["Measured", "dense fp32", "heads-50", "Difference", "Dense int8 alone",
                      "Difference"]  # fmt: skip
    assert table.rows == (
        ("BLEU", "34.21", "33.90", "-0.31 [-0.62, +0.01], no significant difference",
         "34.21", "-0.07 [-0.28, +0.13], no significant difference"),
        ("Latency at batch 1 (ms)", "110.5", "111.3", "0.99 [0.97, 1.01], no measurable gain",
         "110.5", "2.30 [2.21, 2.48] times as fast"),
        # 2.3 times dense is dense-int8 at every batch size: 1 / 2.3, 0.993 / 2.3, 1.163 / 2.3.
        ("Over the fastest dense build at batch 1 (dense-int8)", "0.43", "0.43", "", "1.00", ""),
        ("Latency at batch 64 (ms)", "527.3", "453.4", "1.16 [1.14, 1.18] times as fast",
         "527.3", "2.30 [2.21, 2.48] times as fast"),
        ("Over the fastest dense build at batch 64 (dense-int8)", "0.43", "0.51", "", "1.00", ""),
        ("Size (ONNX MB)", "178.3", "140.5", "-21.2%", "44.6", "-75.0%"),
    )  # fmt: skip
    bare = conclusion(build_view(classifier_report()).headline)
    assert bare.rows == (("Size (ONNX MB)", "3.27", "3.00", "-8.1%"),)


def test_samples_are_rows_at_even_distances_with_the_answers_of_both_models():
    texts = [f"text {n}" for n in range(16)]
    rows = Rows("translation", texts, None, texts, ["made up"], "0")
    expected = [texts[n] for n in (2, 6, 10, 14)]
    assert [(x.texts, x.reference) for x in sample_rows(rows, 4)] == [([x], x) for x in expected]
    view = build_view(with_samples(translator_report()))
    assert samples(view.samples).rows[1] == ("text 1", "right 1", "dense says 1", "heads-50 says 1")


def test_quality_and_throughput_tables_hold_the_reports_numbers_rounded():
    made = tables(build_view(translator_report()))
    quality, throughput = made["quality"].rows, made["throughput"].rows
    assert quality[0] == ("dense", "BLEU", "34.21", "", "", "", "", "reference")
    assert quality[2] == ("heads-50", "BLEU", "33.90", "dense", "-0.31", "[-0.62, +0.01]", "0.060",
                          "no significant difference")  # fmt: skip
    assert quality[3] == ("heads-25", "BLEU", "31.20", "dense", "-3.01", "[-3.60, -2.41]", "0.001",
                          "significantly worse")  # fmt: skip
    # 56.38 sentences a second, 24 tokens each; eight in 141.9 ms; 1.29 multiply-adds.
    assert throughput[6] == ("heads-50", "8", "56.4", "1,353", "141.9", "156.1", "174.5", "420.8",
                             "1.04 [1.02, 1.06]", "1.29", "pays")  # fmt: skip
    # Intervals are -0.02 +0.0194: of 0.993 and 1.021 they reach 1, of 1.04 and 1.049 they do not.
    results = {(row[0], row[1]): row[-1] for row in throughput}
    assert results["heads-50", "1"] == results["heads-75", "8"] == "does not pay"
    assert results["heads-25", "1"] == "pays"


def test_long_sources_and_other_lengths_stand_below_quality():
    """In the sample BLEU falls twice as far there, and of every removed head one in 1,000."""
    report = translator_report()
    made = tables(build_view(report))
    assert [*made][:3] == ["gate", "quality", "lengths"]
    titles = [column.title for column in made["lengths"].columns]
    assert titles == ["Model", "BLEU", "BLEU of long sources", "Other lengths"]
    assert made["lengths"].rows == (
        ("dense", "34.21", "34.21", ""),
        ("heads-75", "34.14", "34.06", "3.6%"),
        ("heads-50", "33.90", "33.59", "7.2%"),
        ("heads-25", "31.20", "28.20", "10.8%"),
    )
    assert "Long sources: those of more than 20 words, in 213 rows." in made["lengths"].caption
    for path in (("dense",), *(("variants", number) for number in range(3))):
        one = {"words": 20, "rows": 1, "score": None}
        report = changed(report, *path, "quality", "long_sources", to=one)
    made = tables(build_view(report))
    assert "more than 20 words, in 1 row, too few for a score." in made["lengths"].caption
    assert {row[2] for row in made["lengths"].rows} == {"n/a"}
    assert "lengths" not in tables(build_view(classifier_report()))


def test_what_ran_is_shown_with_the_cuda_graphs_that_were_captured_at_the_end():
    timed = translator_report().throughput
    for number, row in enumerate(x for x in timed.rows if x.variant == "heads-50"):
        row.__dict__["provider"] = f"CUDA, {number + 1} CUDA graphs with 1 MiB"
    shown = "CPUExecutionProvider (dense, heads-75 and heads-25); CUDA, 4 CUDA graphs with 1 MiB"
    assert terminal.bench_text(timed).startswith(f"{shown} (heads-50), fp32, 2 threads")


@pytest.mark.parametrize(
    ("p_value", "result"), [(0.001, "significantly worse"), (0.3, "no significant difference")]
)
def test_another_precision_is_compared_with_float32_too_and_refused_where_it_loses(p_value, result):
    report = int8_report(p_value)
    quality = tables(build_view(report))["quality"]
    rows = [row for row in quality.rows if row[0] == "heads-50-int8"]
    assert [row[3] for row in rows] == ["dense", "heads-50", "dense"]
    assert rows[1][-1] == result
    loses = "heads-50-int8 is significantly worse than heads-50 in BLEU, so it is not the"
    assert (loses in build_view(report).paragraph) is (result == "significantly worse")
    assert quality.notes == ("Unless a precision is named, heads-50 runs in fp32.",)


def test_size_and_units_are_counted_per_kind_and_layer():
    report = mixed_report()
    made = tables(build_view(report))
    # 44,121,600 parameters and 178.330112 MB less 72 heads of 131,264 parameters, 525,056 bytes.
    assert made["size"].rows[2][2:6] == ("72/144", "416/768", "52.1%", "34,670,592 (-21.4%)")
    assert made["size"].rows[2][-1] == "140.5 (-21.2%)"
    layers = {row[0]: row[1:] for row in made["units"].rows}
    assert layers["encoder_ffn.1"] == ("64/64", "32/64", "0/64")
    assert layers["All encoder self-attention"] == ("32/48", "16/48", "6/48")
    assert layers["All decoder feed-forward"] == ("352/384", "288/384", "64/384")
    assert layers["encoder_self.0"][2] == "0/8: none"
    skipped = changed(report, "variants", 1, "dropped_layers", to=["decoder.2"])
    assert "heads-50 skips decoder.2" in tables(build_view(skipped))["units"].notes[0]


def test_tokens_are_shown_by_layer_where_a_model_hands_on_fewer():
    """10, 7, 3 and 8, 2 tenths: means of 20/30 and 10/20. Layers have the dense model's numbers."""
    made = tables(build_view(tokens_report()))
    layers = {row[0]: row[1:] for row in made["units"].rows}
    assert {name: cells for name, cells in layers.items() if "okens" in name} == {
        "Tokens handed on, mean": ("100%", "67%", "50%"),
        "encoder_tokens.0": ("100%", "100%", "80%"),
        "encoder_tokens.1": ("100%", "70%", "n/a"),
        "encoder_tokens.2": ("100%", "30%", "20%"),
    }
    assert "n/a where a layer is skipped, or the last one" in made["units"].caption
    size = made["size"]
    at = [column.title for column in size.columns].index("Tokens")
    assert [row[at] for row in size.rows] == ["100%", "100%", "67%", "50%"]
    assert made["units"].title == "Heads, neurons and tokens kept"
    titles, *lines = terminal.short_table(build_view(tokens_report())).splitlines()
    assert titles.split()[1:5] == ["heads", "neurons", "tokens", "multiply-adds"]
    assert lines[2].split()[:5] == ["fewer", "8/16", "48/64", "67%", "52.3%"]


def test_tokens_are_not_mentioned_where_all_models_hand_on_all():
    full = tokens_report()
    for number in (1, 2):
        full = changed(full, "variants", number, "handed_on", to=[])
    view = build_view(full)
    for text in (render(full, "markdown"), render(full, "html"), terminal.short_table(view)):
        assert "tokens" not in text.lower()


def test_the_summary_has_the_tenths_of_each_layer_that_is_left():
    found = terminal.summary(build_view(tokens_report()))
    assert [x["handed_on"] for x in found["variants"]] == [[], [10, 7, 3], [8, 2]]


def test_scores_are_listed_by_head_by_quartile_and_by_tenth():
    tenths = [9.5, 8, 7, 6, 5, 4, 3, 2, 1, 0.25]
    values = {"encoder_tokens.0": tenths, "encoder_self.0": (1, 2), "encoder_ffn.0": range(5)}
    shown = terminal.scores_text(Scores(values, "second-order", "", {}))
    heads, neurons, tokens = (text.splitlines() for text in shown.split("\n\n"))
    assert heads[0].split() == ["encoder_self.0", "1", "2"]
    assert neurons[1].split() == ["encoder_ffn.0", "0", "1", "2", "3", "4"]
    assert tokens[0].split() == [
        *["tokens", "by", "tenth", "1", "(most", "significant)"],
        *"23456789",
        "10",
    ]
    assert tokens[1].split() == ["encoder_tokens.0", *(f"{x:g}" for x in tenths)]


def test_a_scores_file_may_have_scores_of_tokens(tmp_path):
    values = {"encoder_self.0": (0.1, 0.3), "encoder_tokens.0": tuple(x / 7 for x in range(10))}
    scores = Scores(values, "second-order", "second-order", {"seconds": 1.0}, "fingerprint")
    write_scores(tmp_path / "scores.json", scores)
    assert read_scores(tmp_path / "scores.json") == scores


def test_each_variant_has_the_scores_its_heads_were_chosen_by_and_shared_ones_stand_once():
    report = translator_report()
    apart = [
        v.model_copy(update={"scoring": report.scoring.model_copy(update={"signature": v.name})})
        for v in report.variants
    ]
    assert share_scoring(apart) == (None, apart)
    several = report.model_copy(update={"scoring": None, "variants": apart})
    for shown, name in ((several, "Scoring signature of heads-50"),
                        (only(several, apart[1]), "Scoring signature")):  # fmt: skip
        facts = {fact.name: fact.value for fact in build_view(shown).provenance}
        assert facts[name] == "heads-50"
    same = [v.model_copy(update={"scoring": report.scoring}) for v in report.variants]
    assert share_scoring(same) == (report.scoring, report.variants)


def test_the_report_of_one_model_has_all_its_builds_and_the_dense_ones():
    report = with_dense_int8(int8_report(0.3))
    names = {"dense", "heads-50", "heads-50-int8", "dense-int8"}
    assert {row.variant for row in only(report, report.variants[1]).throughput.rows} == names


@pytest.mark.parametrize("make", MAKERS)
def test_short_table_fits_a_hundred_columns(make):
    lines = terminal.short_table(build_view(make())).splitlines()
    assert all(len(line) <= 100 and line.isprintable() for line in lines)


def test_summary_is_strict_json_with_full_precision():
    report = with_timing(translator_report(), "heads-50", 8, speedup=math.nan)
    data = json.loads(json.dumps(terminal.summary(build_view(report)), allow_nan=False))
    half = data["variants"][1]
    assert (half["heads_kept"], half["neurons_kept"], half["neurons_total"]) == (72, 768, 768)
    compared = half["comparisons"]["bleu"]
    assert compared["difference"] == 33.9032 - 34.2134
    assert compared["judgement"] == "no significant difference"
    assert [row["speedup"] for row in half["throughput"]] == [0.993, None, 1.151, 1.163]
    assert (data["gate_met"], data["verdict"]) == (False, build_view(report).paragraph)


@pytest.mark.parametrize(
    ("titles", "rows", "text"),
    [
        (columns("a, >b, c"), [["cpu", "1", "x"], ["memory", "16", "y"]],
         "a        b  c\ncpu      1  x\nmemory  16  y"),
        ([Column("x")], [["翻訳"], ["[b]"]], "   x\n翻訳\n [b]"),  # wide letters, no markup
        ((), [["a\nb\x1b[31m", "1"], ["b"]], "a b [31m  1\nb"),  # a cell stays on its line
    ],
)  # fmt: skip
def test_text_stands_left_and_numbers_right_whatever_the_terminal(titles, rows, text, monkeypatch):
    monkeypatch.setenv("COLUMNS", "3")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert render_text(titles, rows) == text


def report_of(low: float = -0.95, high: float = 0.45, **changes) -> Report:
    """A search for a drop of 1 among 12 heads, on 300 rows; 300 others judge 7 heads, then 8.

    The delivered variant has its difference in the middle of `low` and `high`.
    """
    search = QualitySearch(
        drop=1, metric="bleu", proof="bound", delivered=4, proven=True, held_out=300,
        rows=Source(files=["test.tsv"], rows=300, sha256="0" * 64),
        probes=[
            judged(4, -3.0, -4.0, 8, accepted=False), judged(8, -0.2, -0.8, 4),
            judged(6, -0.6, -1.4, 6, accepted=False), judged(7, -0.3, -0.9, 5),
        ],
        looks=[judged(7, -1.2, -1.9, 5, accepted=False), judged(8, -0.25, -0.95, 4)],
    ).model_copy(update=changes)  # fmt: skip
    report = translator_report()
    variant = report.variants[0].model_copy(update={"comparisons": [comparison(low, high)]})
    update = {"variants": [variant], "gate": [], "throughput": None, "search": search}
    return report.model_copy(update=update)


def test_the_report_says_which_rows_were_searched_on_and_which_were_held_out():
    report = report_of()
    markdown = render(report, "markdown")
    for text in (markdown, render_card(report, "heads-75")):
        assert "judged 4 models on 300 rows" in text
        assert "measured on 300 rows that were held out" in text
        assert "too few" not in text
    assert "drop in BLEU is shown to be at most 1" in markdown
    for row in (
        "| 1 | 4 | 64 | 90% | 27.00 | -3.00 | [-4.00, -2.00] | -4.00 | searched | refused |",
        "| 2 | 8 | 64 | 90% | 29.80 | -0.20 | [-0.80, +0.40] | -0.80 | searched | accepted |",
        "| 3 | 6 | 64 | 90% | 29.40 | -0.60 | [-1.40, +0.20] | -1.40 | searched | not proven |",
        "| 5 | 7 | 64 | 90% | 28.80 | -1.20 | [-1.90, -0.50] | -1.90 | held out | refused |",
    ):
        assert row in markdown


def test_candidates_say_what_share_of_tokens_they_hand_on_where_tokens_may_go():
    """Of the cut at position 6 layers hand on 10, 8 and 3 tenths, 70% in the mean."""
    plain = report_of()
    titles = [column.title for column in tables(build_view(plain))["candidates"].columns]
    assert "Tokens kept" not in titles
    probes = [
        probe.model_copy(update={"handed_on": [10, 8, 3] if probe.position == 6 else [10] * 3})
        for probe in plain.search.probes
    ]
    table = tables(build_view(report_of(probes=probes)))["candidates"]
    titles = [column.title for column in table.columns]
    assert titles[1:5] == ["Heads kept", "Neurons kept", "Tokens kept", "Multiply-adds"]
    assert [row[3] for row in table.rows[:4]] == ["100%", "100%", "70%", "100%"]


def test_what_few_rows_cannot_prove_is_in_the_verdict_with_how_many_would_do():
    """Rows by the normal approximation: with half the width h and room r, n (h / r)^2."""
    taken, mild = (
        judged(kept, difference, difference - half, position, accepted=False).model_copy(
            update={"rows_needed": ceil(300 * (half / round(1 + difference, 9)) ** 2)}
        )
        for kept, difference, half, position in ((6, -0.8, 3.0, 6), (11, -0.1, 2.5, 1))
    )
    search = {"probes": [taken, mild], "looks": [taken], "delivered": 6, "proven": False}
    report = report_of(**search)
    for text in (build_view(report).paragraph, render_card(report, "heads-75")):
        assert "600 test rows are too few to show that BLEU falls by at most 1" in text
        assert "about 140,000 are needed for this model" in text  # 2 x 67,500
        assert "about 4,700 for the mildest cut" in text  # 2 x 2,315
    # Nothing is missing where proof was not asked for.
    assert "too few" not in build_view(report_of(**search, proof="measured")).paragraph
    at_the_limit = judged(6, -1.0, -3.0, 6, accepted=False)
    report = report_of(probes=[taken], looks=[at_the_limit], delivered=6, proven=False)
    assert "more rows will not decide this for this model" in build_view(report).paragraph


@pytest.mark.parametrize(("drop", "is_more"), [(5, True), (5.1, False)])
def test_a_drop_above_the_one_asked_for_is_in_the_verdict(drop, is_more):
    verdict = build_view(report_of(-10.0, -0.2, drop=drop)).paragraph
    assert ("The measured drop of 5.10 in BLEU is more than the 5 asked for" in verdict) is is_more


def test_the_report_shows_the_cost_table_and_every_try():
    """Two tries for 1.3, neither of which reached it: the faster one was taken."""
    costs = cost_table({"cross": [0.15, 0.13, 0.06, 0.03]}, {"cross": 1})
    tries = [
        SpeedTry(
            aim=1.3 + number / 10, predicted=1.31 + number / 10, kept=f"{10 - number} heads",
            speedup=speedup, speedup_interval=(speedup - 0.01, speedup + 0.01), met=False,
        )
        for number, speedup in enumerate([1.25, 1.26])
    ]  # fmt: skip
    search = SpeedSearch(wanted=1.3, costs=costs, tries=tries)
    markdown = render(translator_report().model_copy(update={"search": search}), "markdown")
    assert "1.3 times as fast at batch 16" in markdown
    for row in costs.rows:
        assert f" {500 * row.saved_share:.1f}"[:4] in markdown
    assert "| 2 | 1.400 | 9 heads | 1.410 | 1.26 [1.25, 1.27] | missed, taken |" in markdown
    assert "1.25 [1.24, 1.26] | missed |" in markdown
    assert "was not reached in 2 tries" in markdown
    assert markdown.count("| cross-attention |") == 4
