"""The report's data, sentences, tables, JUnit, summary and files.

Expected numbers are rounded here with `decimal` from the report's own values.
"""

from __future__ import annotations

import json
import math
from decimal import ROUND_HALF_EVEN, Decimal
from xml.etree import ElementTree

import pytest
from pydantic import ValidationError

from compressor.errors import InputError, UsageError
from compressor.report import (
    RENDERERS,
    facts,
    numbers,
    render,
    sentences,
    summary,
    tables,
    unit_tables,
    write_reports,
)
from compressor.report.markdown import render_markdown
from compressor.report.model_card import render_card
from compressor.report.schema import Report, load_report
from compressor.results import Outcome
from tests.helpers.errors import raises
from tests.helpers.report_samples import (
    HOSTILE,
    classifier_report,
    hostile_report,
    mixed_report,
    translator_report,
)

MAKERS = [translator_report, classifier_report, hostile_report, mixed_report]


def rounded(value: float, digits: int, sign: bool = False) -> str:
    """`value` with `digits` decimals, by decimal arithmetic on its exact binary value."""
    text = str(Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_EVEN))
    return f"+{text}" if sign and value > 0 else text


def with_timing(report: Report, name: str, batch: int, **changes: object) -> Report:
    """The report with one timing changed."""
    data = report.model_dump()
    for row in data["throughput"]["rows"]:
        if (row["variant"], row["batch_size"]) == (name, batch):
            row.update(changes)
    return Report.model_validate(data)


# --- the data


@pytest.mark.parametrize("make", MAKERS)
def test_report_survives_the_way_to_a_file_and_back_exactly(make, tmp_path):
    report = make()
    report.save(tmp_path / "report.json")
    assert load_report(tmp_path / "report.json") == report


def test_not_a_number_survives_the_way_to_a_file_and_back(tmp_path):
    report = with_timing(translator_report(), "heads-50", 8, speedup=math.nan, limit=math.inf)
    report.save(tmp_path / "report.json")
    json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    (row,) = [
        row
        for row in facts.timings(load_report(tmp_path / "report.json"), "heads-50")
        if row.batch_size == 8
    ]
    assert math.isnan(row.speedup)
    assert row.limit == math.inf


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("variants", 0, "kept", "cross.1"), [0, 8], "cross.1"),
        (("variants", 0, "kept", "cross.1"), [2, 2], "cross.1"),
        (("variants", 0, "kept", "cross.6"), [0], "cross.6"),
        (("variants", 0, "name"), "dense", "'dense', 'dense'"),
        (("throughput", "rows", 5, "variant"), "heads-33", "heads-33"),
        (("variants", 0, "nane"), "x", "nane"),
    ],
)
def test_impossible_reports_are_errors_that_name_the_place(path, value, named, tmp_path):
    data = translator_report().model_dump()
    *parents, last = path
    place = data
    for key in parents:
        place = place[key]
    place[last] = value
    with pytest.raises(ValidationError):
        Report.model_validate(data)
    file = tmp_path / "report.json"
    file.write_text(json.dumps(data))
    with raises(InputError, "report-invalid") as caught:
        load_report(file)
    assert str(file) in str(caught.value)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("{", "report-not-json"),
        ("[]", "report-version"),
        ('{"schema_version": "3.0"}', "report-version"),
    ],
)
def test_files_that_are_no_reports_are_refused(text, id, tmp_path):
    (tmp_path / "report.json").write_text(text)
    with raises(InputError, id):
        load_report(tmp_path / "report.json")


def test_a_report_that_is_not_there_is_an_error(tmp_path):
    with raises(InputError, "report-unreadable"):
        load_report(tmp_path / "absent.json")


# --- numbers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (numbers.fixed(-0.004, 2, sign=True), "0.00"),
        (numbers.fixed(0.005001, 2, sign=True), "+0.01"),
        (numbers.fixed(1234.5, 1), "1,234.5"),
        (numbers.fixed(None, 2), "n/a"),
        (numbers.fixed(math.nan, 2, sign=True), "NaN"),
        (numbers.adaptive(0.01234), "0.012"),
        (numbers.adaptive(1234.6), "1,235"),
        (numbers.p_value(0.0004999), "< 0.001"),
        (numbers.p_value(0.000999), "0.001"),
        (numbers.change(75, 100), "-25.0%"),
        (numbers.change(75, 0), "n/a"),
        (numbers.percent(0, 0), "n/a"),
        (numbers.compact(44_121_600), "44.1 M"),
        (numbers.compact(999), "999"),
        (numbers.megabytes(178_330_112), "178.3"),
        (numbers.printable("a\x1b[31m\nb\u2028c"), "a [31m b c"),
    ],
)
def test_how_numbers_are_written(text, expected):
    assert text == expected


# --- sentences


def test_pruning_that_does_not_pay_is_said_for_every_such_batch_size():
    data = translator_report().model_dump()
    data["variants"] = [v for v in data["variants"] if v["name"] == "heads-50"]
    rows = data["throughput"]["rows"]
    data["throughput"]["rows"] = [r for r in rows if r["variant"] in ("dense", "heads-50")]
    report = Report.model_validate(data)
    report = with_timing(report, "heads-50", 8, speedup=0.95, speedup_interval=(0.93, 0.97))
    report = with_timing(report, "heads-50", 64, speedup=math.nan, speedup_interval=None)
    assert sentences.speed_sentences(report) == [
        "At batch 32 (speed-up 1.15 [1.13, 1.17]) pruning pays.",
        "At batch 1 pruning does not pay: speed-up 0.99 [0.97, 1.01].",
        "At batch 8 pruning does not pay: speed-up 0.95 [0.93, 0.97], slower than dense.",
        "At batch 64 pruning has no usable speed-up: the ratio is not a number.",
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
    report = with_timing(
        translator_report(), "heads-50", 1, speedup=speedup, speedup_interval=interval
    )
    assert facts.pays(facts.timings(report, "heads-50")[0]) is pays


def test_a_speedup_above_the_theoretical_limit_is_pointed_out():
    report = with_timing(translator_report(), "heads-50", 8, limit=1.01)
    assert (
        sum("above the theoretical limit 1.01" in s for s in sentences.speed_sentences(report)) == 1
    )
    assert not any("above the" in s for s in sentences.speed_sentences(translator_report()))


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
    assert "heads-50, the smallest without significant loss, keeps 72 of" in sentences.verdict(
        report
    )
    failed = Outcome(rule="min-speedup 2", variant="heads-50", met=False, message="")
    gated = report.model_copy(update={"gate": [failed]})
    assert facts.headline(gated).name == "heads-75"
    assert "without significant loss that meets the gate" in sentences.verdict(gated)
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
    assert sentences.quality_sentences(report) == [
        "Quality was not measured: the run had no test rows."
    ]
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


# --- tables


def test_quality_table_holds_the_reports_numbers_rounded():
    report = translator_report()
    table = tables.quality(report)
    models = {model.name: model for model in facts.models(report)}
    assert len(table.rows) == 8
    for name, metric, score, difference, interval, p_value, result in table.rows:
        key = {"BLEU": "bleu", "chrF": "chrf"}[metric]
        assert score == rounded(models[name].quality.metrics[key], 2)
        if name == "dense":
            assert (difference, interval, p_value, result) == ("", "", "", "reference")
            continue
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
            assert rest == ["", "", "", ""]
            continue
        low, high = (rounded(bound, 2) for bound in row.speedup_interval)
        share = 100 * (row.speedup - 1) / (row.limit - 1)
        assert rest == [
            rounded(row.speedup, 2),
            f"[{low}, {high}]",
            rounded(row.limit, 2),
            f"{rounded(share, 0)}%",
        ]


def test_size_table_counts_heads_per_kind():
    report = translator_report()
    rows = {row[0]: row for row in unit_tables.size(report).rows}
    # 32 + 36 + 40 of 48 each were drawn for this variant; bytes divided by a million.
    assert rows["heads-75"][2:6] == ("32/48", "36/48", "40/48", "108/144")
    assert rows["heads-75"][6] == f"{report.variants[0].parameters:,}"
    assert rows["heads-75"][8] == rounded(report.variants[0].checkpoint_bytes / 1e6, 1)
    assert rows["heads-75"][10] == rounded(report.variants[0].onnx_bytes / 1e6, 1)


def test_differing_signatures_name_their_models():
    data = translator_report().model_dump()
    data["variants"][1]["quality"]["signatures"]["bleu"] = "tok:char"
    labels = [label for label, _ in tables.signatures(Report.model_validate(data))]
    assert labels == [
        *("BLEU of dense", "BLEU of heads-75", "BLEU of heads-50", "BLEU of heads-25"),
        "chrF",
    ]


# --- stdout and --json


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


def test_wide_characters_count_two_columns():
    data = classifier_report().model_dump()
    data["variants"][0]["name"] = "翻訳" * 10
    text = summary.short_table(Report.model_validate(data))
    header, _, row = text.splitlines()[:3]
    assert row.startswith("翻訳" * 5 + "...")  # 23 columns of the 24 a name may take
    assert len(header) == len(row) + 10


def test_summary_is_strict_json_with_full_precision():
    report = with_timing(translator_report(), "heads-50", 8, speedup=math.nan)
    data = json.loads(json.dumps(summary.summary(report), allow_nan=False))
    half = data["variants"][1]
    assert half["heads_kept"] == 72
    assert half["comparisons"]["bleu"]["difference"] == 33.9032 - 34.2134
    assert half["comparisons"]["bleu"]["judgement"] == "no significant difference"
    assert [row["speedup"] for row in half["throughput"]] == [0.993, None, 1.151, 1.163]
    assert data["gate_met"] is False
    assert data["verdict"] == sentences.verdict(report)
    assert summary.summary(classifier_report())["gate_met"] is None


# --- files


def test_junit_has_a_failure_per_unmet_rule_and_escapes():
    for report in (translator_report(), hostile_report()):
        root = ElementTree.fromstring(render(report, "junit"))
        cases = root.findall("./testsuite/testcase")
        failed = [case.find("failure") is not None for case in cases]
        assert failed == [not outcome.met for outcome in report.gate]
        assert root.get("failures") == root.find("testsuite").get("failures") == "3"
    assert {case.get("name") for case in cases} == {HOSTILE}
    empty = ElementTree.fromstring(render(classifier_report(), "junit"))
    assert empty.get("tests") == "0"


def test_write_reports_writes_the_three_usual_files(tmp_path):
    report = translator_report()
    paths = write_reports(report, tmp_path / "new" / "out")
    assert [path.name for path in paths] == ["report.json", "report.md", "report.html"]
    assert paths[1].read_bytes().decode("utf-8") == render_markdown(report)
    assert load_report(paths[0]) == report


def test_an_unknown_format_is_an_error_and_writes_nothing(tmp_path):
    with raises(UsageError, "report-format-unknown"):
        write_reports(translator_report(), tmp_path / "out", ["json", "pdf"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", RENDERERS)
def test_every_renderer_gives_the_same_text_twice(name):
    assert render(translator_report(), name) == render(translator_report(), name)
