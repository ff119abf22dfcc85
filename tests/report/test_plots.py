"""Plots: what is drawn is what the report holds, in files and in the page."""

from __future__ import annotations

import base64
import math
import re
import struct
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from compressor.report import facts, page, plots
from compressor.report.schema import Report
from tests.helpers.report_samples import (
    BATCHES,
    changed,
    classifier_report,
    int8_report,
    translator_report,
)

SVG = "{http://www.w3.org/2000/svg}"


def drawn(name: str, report: Report):
    with plots.plot_style(name):
        return plots.PLOTS[name].draw(report)


def lines(figure) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in figure.axes[0].lines]


def test_quality_plot_shows_scores_at_the_share_of_heads_kept_with_intervals():
    report = translator_report()
    found = lines(drawn("quality", report))
    assert ([0, 1], [34.2134, 34.2134]) in found  # dense: a line across
    for share, variant in zip((75.0, 50.0, 25.0), report.variants, strict=True):
        comparison = facts.comparison(variant, "bleu")
        assert ([share], [comparison.pruned]) in found
        ends = [comparison.dense + bound for bound in comparison.interval]
        assert ([share, share], ends) in found
    axes = drawn("quality", report).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("heads kept (%)", "BLEU")


def test_quality_plot_needs_two_compared_variants():
    data = translator_report().model_dump()
    data["variants"][0]["comparisons"] = data["variants"][2]["comparisons"] = []
    assert drawn("quality", Report.model_validate(data)) is None


def test_an_interval_beside_its_estimate_is_drawn_as_it_is():
    # A percentile interval need not hold the point estimate.
    place = ("variants", 0, "comparisons", 0, "interval")
    report = changed(translator_report(), *place, to=(-1.0, -0.5))
    assert ([75.0, 75.0], [33.2134, 33.7134]) in lines(drawn("quality", report))


def test_throughput_plot_has_a_line_per_model_on_a_base_two_axis():
    report = translator_report()
    figure = drawn("throughput", report)
    expected = [
        (list(BATCHES), [row.sentences_per_second for row in facts.timings(report, model.name)])
        for model in facts.models(report)
    ]
    assert lines(figure) == expected
    axes = figure.axes[0]
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "8", "32", "64"]
    assert axes.get_ylim()[0] == 0
    assert axes.get_ylabel() == "throughput (sentences/s)"
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["dense", "heads-75", "heads-50", "heads-25"]
    # Never by color alone.
    assert len({line.get_marker() for line in axes.lines}) == 4


def test_speedup_plot_shows_ratio_interval_and_multiply_adds():
    report = translator_report()
    heights = [ys for _, ys in lines(drawn("speedup", report))]
    for variant in report.variants:
        rows = facts.timings(report, variant.name)
        assert [row.speedup for row in rows] in heights
        assert [row.macs_ratio for row in rows] in heights
        assert all(list(row.speedup_interval) in heights for row in rows)


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


def svg_of(address: str) -> ElementTree.Element:
    start = "data:image/svg+xml;base64,"
    assert address.startswith(start)
    return ElementTree.fromstring(base64.b64decode(address.removeprefix(start)))


def luminance(color: str) -> float:
    """WCAG 2.1, relative luminance."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_plots_are_light_and_dark_and_their_texts_can_be_read():
    images = page.images(translator_report())
    assert images == page.images.__wrapped__(translator_report())  # drawn anew
    for image in images.values():
        light, dark = (ElementTree.tostring(svg_of(x)).decode() for x in (image.light, image.dark))
        assert plots.INK in light
        assert page.DARK[plots.INK] in dark
        assert not {plots.INK, plots.FAINT, plots.DENSE} & set(re.findall(r"#\w{6}", dark))
    for ink, paper in ((plots.INK, "#ffffff"), (page.DARK[plots.INK], "#12161c")):
        low, high = sorted(luminance(color) + 0.05 for color in (ink, paper))
        assert high / low > 4.5


def test_the_first_plot_is_quality_against_measured_speed_of_all_builds():
    report = int8_report(0.3)
    assert next(iter(plots.PLOTS)) == "tradeoff"
    figure = drawn("tradeoff", report)
    for axes, size in zip(figure.axes, (1, 64), strict=True):
        found = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
        assert ([1], [34.2134]) in found
        for variant in report.variants:
            compared = facts.comparison(variant, "bleu")
            (row,) = [r for r in facts.timings(report, variant.name) if r.batch_size == size]
            assert ([row.speedup], [compared.pruned]) in found
            ends = [compared.dense + end for end in compared.interval]
            assert ([row.speedup, row.speedup], ends) in found
            assert (list(row.speedup_interval), [compared.pruned] * 2) in found
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["heads-75", "heads-50", "heads-25", "heads-50-int8", "dense (34.21)"]
    untimed = report.model_copy(update={"throughput": None})
    assert drawn("tradeoff", untimed) is None


def test_save_plots_writes_png_and_svg_files(tmp_path):
    paths = plots.save_plots(translator_report(), tmp_path / "plots")
    assert [path.name for path in paths] == [
        *("tradeoff.png", "tradeoff.svg"),
        *("quality.png", "quality.svg"),
        *("throughput.png", "throughput.svg"),
        *("speedup.png", "speedup.svg"),
    ]
    for path in paths:
        if path.suffix == ".png":
            header = path.read_bytes()[:24]
            assert header[:8] == b"\x89PNG\r\n\x1a\n"
            panels = 2 if path.stem == "tradeoff" else 1
            width = struct.unpack(">I", header[16:20])[0]
            assert width == 1040 * panels  # 5.2 inches at 200 dpi
        else:
            texts = [element.text for element in ElementTree.parse(path).iter(f"{SVG}text")]
            assert "heads-25" in texts
    again = plots.save_plots(translator_report(), tmp_path / "again")
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]


def test_save_plots_writes_nothing_for_a_report_without_measurements(tmp_path):
    assert plots.save_plots(classifier_report(), tmp_path) == []


def test_the_users_matplotlib_configuration_has_no_say():
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        with plots.plot_style("x"):
            assert mpl.rcParams["font.size"] == 10
            assert mpl.rcParams["axes.facecolor"] == "white"
        assert mpl.rcParams["font.size"] == pytest.approx(30)
