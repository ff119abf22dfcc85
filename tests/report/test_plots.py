"""Plots: what is drawn is what the report holds, in files and in the page."""

from __future__ import annotations

import base64
import itertools
import math
from xml.etree import ElementTree

import numpy as np
import pytest

from compressor.report import facts, gains, page, plots
from compressor.report.plot_series import plots as series
from compressor.report.schema import Report
from tests.helpers.report_samples import (
    BATCHES,
    KINDS,
    int8_report,
    mixed_report,
    tokens_report,
    translator_report,
    with_timing,
)

SVG = "{http://www.w3.org/2000/svg}"


def drawn(name: str, report: Report):
    with plots.plot_style(name):
        return plots.PLOTS[name](series(report))


def lines(axes) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]


def test_quality_against_speed_has_a_panel_for_every_batch_size_and_dense_in_the_legend():
    report = int8_report(0.3)
    figure = drawn("quality", report)
    assert [axes.get_title("left") for axes in figure.axes] == [f"batch {n}" for n in BATCHES]
    for axes, size in zip(figure.axes, BATCHES, strict=True):
        found = lines(axes)
        assert ([1], [34.2134]) in found  # dense
        assert ([0, 1], [34.2134, 34.2134]) in found  # and a line across
        for variant in report.variants:
            compared = facts.comparison(variant, "bleu")
            (row,) = [r for r in gains.timings(report, variant.name) if r.batch_size == size]
            assert ([row.speedup], [compared.pruned]) in found
            ends = [compared.dense + end for end in compared.interval]
            assert ([row.speedup, row.speedup], ends) in found
            assert (list(row.speedup_interval), [compared.pruned] * 2) in found
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["dense (34.21)", "heads-75", "heads-50", "heads-25", "heads-50-int8"]


def test_one_wide_interval_does_not_squash_the_others():
    report = translator_report()
    before = drawn("quality", report).axes[0].get_xlim()
    report = with_timing(report, "heads-50", 8, speedup=1.04, speedup_interval=(0.1, 30.0))
    assert drawn("quality", report).axes[0].get_xlim() == pytest.approx(before, abs=0.4)


@pytest.mark.parametrize("make", [translator_report, mixed_report, lambda: int8_report(0.3)])
def test_no_point_is_on_the_edge_of_a_plot(make):
    for name in plots.PLOTS:
        for axes in drawn(name, make()).axes:
            box = axes.transData.transform
            (left, bottom), (right, top) = box(np.transpose([axes.get_xlim(), axes.get_ylim()]))
            bottom, top = sorted((bottom, top))
            for line in axes.lines:
                if line.get_marker() in (None, "None", ""):
                    continue
                for x, y in box(np.transpose(line.get_data())):
                    assert left + 4 < x < right - 4, name
                    assert bottom + 4 < y < top - 4, name


def test_units_are_squares_crosses_and_bars_for_every_model_and_kind():
    report = mixed_report()
    panels = iter(drawn("units", report).axes)
    for variant in report.variants:
        for kind in KINDS:
            marks = {
                point: line.get_marker()
                for line in next(panels).lines
                for point in zip(*line.get_data(), strict=True)
            }
            for layer, head in itertools.product(range(6), range(8)):
                kept = head in variant.kept[f"{kind}.{layer}"]
                assert marks.pop((head, layer)) == ("s" if kept else "x")
            assert not marks
        for kind in ("encoder_ffn", "decoder_ffn"):
            widths = [bar.get_width() for bar in next(panels).patches]
            kept = [variant.kept_neurons[f"{kind}.{n}"] for n in range(6)]
            assert widths == [width for count in kept for width in (64, count)]


def test_tokens_are_bars_in_percent_beside_the_heads_of_the_same_layers():
    figure = drawn("units", tokens_report())
    rows = [figure.axes[start : start + 3] for start in (0, 3, 6)]
    for heads, _, tokens in rows:
        assert list(heads.get_yticks()) == list(tokens.get_yticks()) == [0, 1, 2, 3]
        low, high = sorted(tokens.get_ylim())
        assert (low < 0, high > 3) == (True, True)  # the last layer has its place, too
        assert [x.get_text() for x in tokens.get_xticklabels()] == ["0%", "50%", "100%"]
    found = []
    for *_, tokens in rows:
        bars = [bar for bar in tokens.patches if bar.get_width()]
        assert [bar.get_width() for bar in bars[::2]] == [100] * (len(bars) // 2)
        found.append([(bar.get_y() + bar.get_height() / 2, bar.get_width()) for bar in bars[1::2]])
    wanted = [[(0, 100), (1, 100), (2, 100)], [(0, 100), (1, 70), (2, 30)], [(0, 80), (2, 20)]]
    for bars, expected in zip(found, wanted, strict=True):
        assert np.array(bars) == pytest.approx(np.array(expected, float))
    assert rows[1][2].get_title("left") == "tokens handed on: 67% in the mean"
    heads, neurons = drawn("units", mixed_report()).axes[0], drawn("units", tokens_report()).axes[1]
    assert "in the mean" not in heads.get_title("left") + neurons.get_title("left")


def test_plots_bear_names_and_numbers_of_every_kind():
    data = translator_report().model_dump()
    data["variants"][0]["name"] = "$hidden$"
    for row in data["throughput"]["rows"]:
        if row["variant"] == "heads-75":
            row["variant"] = "$hidden$"
            row["speedup"] = row["sentences_per_second"] = math.nan
            row["speedup_interval"] = (math.nan, math.nan)
            row["macs_ratio"] = None
    start = "data:image/svg+xml;base64,"
    for name, address in page.images(series(Report.model_validate(data))).items():
        root = ElementTree.fromstring(base64.b64decode(address.removeprefix(start)))
        assert "$hidden$" in [element.text for element in root.iter(f"{SVG}text")], name
