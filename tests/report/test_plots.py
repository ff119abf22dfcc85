"""Plots: what is drawn is what the report holds, in files and in the page."""

from __future__ import annotations

import base64
import itertools
import math
import re
from xml.etree import ElementTree

import pytest

from compressor.report import facts, page, plots
from compressor.report.schema import Report
from tests.helpers.report_samples import (
    BATCHES,
    KINDS,
    changed,
    int8_report,
    mixed_report,
    translator_report,
    with_timing,
)

SVG = "{http://www.w3.org/2000/svg}"


def drawn(name: str, report: Report):
    with plots.plot_style(name):
        return plots.PLOTS[name](report)


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
            (row,) = [r for r in facts.timings(report, variant.name) if r.batch_size == size]
            assert ([row.speedup], [compared.pruned]) in found
            ends = [compared.dense + end for end in compared.interval]
            assert ([row.speedup, row.speedup], ends) in found
            assert (list(row.speedup_interval), [compared.pruned] * 2) in found
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["dense (34.21)", "heads-75", "heads-50", "heads-25", "heads-50-int8"]


def test_one_wide_interval_does_not_squash_the_others_and_is_named():
    report = translator_report()
    before = drawn("quality", report).axes[0].get_xlim()
    report = with_timing(report, "heads-50", 8, speedup=1.04, speedup_interval=(0.1, 30.0))
    figure = drawn("quality", report)
    low, high = figure.axes[0].get_xlim()
    assert (low, high) == pytest.approx(before, abs=0.4)
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles[:2] == ["batch 1", "batch 8: busy machine, run again"]
    # A percentile interval need not hold the point estimate.
    place = ("variants", 0, "comparisons", 0, "interval")
    figure = drawn("quality", changed(report, *place, to=(-1.0, -0.5)))
    assert ([0.987, 0.987], [33.2134, 33.7134]) in lines(figure.axes[0])


def test_throughput_plot_has_a_line_per_model_on_a_base_two_axis():
    report = translator_report()
    figure = drawn("throughput", report)
    expected = [
        (list(BATCHES), [row.sentences_per_second for row in facts.timings(report, model.name)])
        for model in facts.models(report)
    ]
    axes = figure.axes[0]
    assert lines(axes) == expected
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "8", "32", "64"]
    assert axes.get_ylim()[0] == 0
    assert axes.get_ylabel() == "throughput (sentences/s)"
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["dense", "heads-75", "heads-50", "heads-25"]
    # Never by color alone.
    assert len({line.get_marker() for line in axes.lines}) == 4


def test_units_are_squares_crosses_and_bars_for_every_model_and_kind():
    """Squares have the color of the fifth that a score is in, by its place among all 144."""
    report = mixed_report()
    values = report.scoring.values
    ordered = sorted(score for scores in values.values() for score in scores)
    panels = iter(drawn("units", report).axes)
    for variant in report.variants:
        for kind in KINDS:
            marks = {
                point: (line.get_marker(), line.get_color())
                for line in next(panels).lines
                for point in zip(*line.get_data(), strict=True)
            }
            for layer, head in itertools.product(range(6), range(8)):
                fifth = 5 * ordered.index(values[f"{kind}.{layer}"][head]) // 144
                kept = head in variant.kept[f"{kind}.{layer}"]
                expected = ("s", plots.SHADES[fifth]) if kept else ("x", plots.FAINT)
                assert marks.pop((head, layer)) == expected
            assert not marks
        for kind in ("encoder_ffn", "decoder_ffn"):
            widths = [bar.get_width() for bar in next(panels).patches]
            assert widths == [64] * 6 + [variant.kept_neurons[f"{kind}.{n}"] for n in range(6)]
    unscored = drawn("units", changed(report, "scoring", to=None)).axes[0]
    assert {line.get_color() for line in unscored.lines} == {plots.DENSE, plots.FAINT}


def test_plots_bear_names_and_numbers_of_every_kind():
    data = translator_report().model_dump()
    data["variants"][0]["name"] = "_$hidden$"
    for row in data["throughput"]["rows"]:
        if row["variant"] == "heads-75":
            row["variant"] = "_$hidden$"
            row["speedup"] = row["sentences_per_second"] = math.nan
            row["speedup_interval"] = (math.nan, math.nan)
            row["macs_ratio"] = None
    report = Report.model_validate(data)
    for name, image in page.images(report).items():
        texts = [element.text for element in svg_of(image.light).iter(f"{SVG}text")]
        assert "_$hidden$" in texts, name
        light, dark = (ElementTree.tostring(svg_of(x)).decode() for x in (image.light, image.dark))
        assert plots.INK in light
        assert page.DARK[plots.INK] in dark
        assert not {plots.INK, plots.FAINT, plots.DENSE} & set(re.findall(r"#\w{6}", dark))


def svg_of(address: str) -> ElementTree.Element:
    start = "data:image/svg+xml;base64,"
    assert address.startswith(start)
    return ElementTree.fromstring(base64.b64decode(address.removeprefix(start)))


def luminance(color: str) -> float:
    """WCAG 2.1, relative luminance."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_texts_of_plots_can_be_read_on_light_and_on_dark():
    for ink, paper in ((plots.INK, "#ffffff"), (page.DARK[plots.INK], "#12161c")):
        low, high = sorted(luminance(color) + 0.05 for color in (ink, paper))
        assert high / low > 4.5


def test_save_plots_writes_png_and_svg_files(tmp_path):
    paths = plots.save_plots(translator_report(), tmp_path / "plots")
    names = ("quality", "throughput", "units")
    assert [path.name for path in paths] == [f"{n}{end}" for n in names for end in (".png", ".svg")]
    for path in paths:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        else:
            texts = [element.text for element in ElementTree.parse(path).iter(f"{SVG}text")]
            assert "heads-25" in texts
