"""Plots: what is drawn is what the report holds, in files and in the page."""

from __future__ import annotations

import math
import re
import struct
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from compressor.report import facts, plots
from compressor.report.inline_svg import VARIABLES, inline_svg
from compressor.report.schema import Report
from tests.helpers.report_samples import BATCHES, classifier_report, translator_report

SVG = "{http://www.w3.org/2000/svg}"


def drawn(name: str, report: Report):
    with plots.plot_style(name):
        return plots.FIGURES[name](report)


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
    data = translator_report().model_dump()
    data["variants"][0]["comparisons"][0]["interval"] = (-1.0, -0.5)
    assert ([75.0, 75.0], [33.2134, 33.7134]) in lines(
        drawn("quality", Report.model_validate(data))
    )


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


def test_speedup_plot_shows_ratio_interval_and_limit():
    report = translator_report()
    heights = [ys for _, ys in lines(drawn("speedup", report))]
    for variant in report.variants:
        rows = facts.timings(report, variant.name)
        assert [row.speedup for row in rows] in heights
        assert [row.limit for row in rows] in heights
        assert all(list(row.speedup_interval) in heights for row in rows)


def test_plots_bear_names_and_numbers_of_every_kind():
    data = translator_report().model_dump()
    data["variants"][0]["name"] = "_$hidden$"
    for row in data["throughput"]["rows"]:
        if row["variant"] == "heads-75":
            row["variant"] = "_$hidden$"
            row["speedup"] = row["sentences_per_second"] = math.nan
            row["speedup_interval"] = (math.nan, math.nan)
            row["limit"] = None
    report = Report.model_validate(data)
    for name in plots.FIGURES:
        with plots.plot_style(name):
            svg = inline_svg(plots.FIGURES[name](report), name, "title", "description")
        texts = [element.text for element in ElementTree.fromstring(svg).iter("text")]
        assert "_$hidden$" in texts


def test_inline_svg_takes_its_colours_from_the_page():
    def render() -> str:
        with plots.plot_style("speedup"):
            figure = plots.speedup_figure(translator_report())
            return inline_svg(figure, "speedup", "A <title>", 'what "it" shows')

    text = render()
    assert text == render()
    root = ElementTree.fromstring(text)
    assert root.find("title").text == "A <title>"
    assert root.find("desc").text == 'what "it" shows'
    assert not re.search("|".join(VARIABLES), text)
    assert {"var(--ink)", "var(--series-0)", "var(--series-2)"} <= set(
        re.findall(r"var\(--[\w-]+\)", text)
    )
    ids = {element.get("id") for element in root.iter()} - {None}
    assert all(name.startswith("speedup-") for name in ids)
    used = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text)
    assert used
    assert {a or b for a, b in used} <= ids
    assert "http" not in text


def test_style_sheet_defines_every_colour_in_light_and_dark():
    from importlib.resources import files

    css = files("compressor.report").joinpath("page.css").read_text()
    for variable in VARIABLES.values():
        name = variable.removeprefix("var(").removesuffix(")")
        assert css.count(f"{name}:") == 2


def test_save_plots_writes_png_and_svg_files(tmp_path):
    paths = plots.save_plots(translator_report(), tmp_path / "plots")
    assert [path.name for path in paths] == [
        *("quality.png", "quality.svg"),
        *("throughput.png", "throughput.svg"),
        *("speedup.png", "speedup.svg"),
    ]
    for path in paths:
        if path.suffix == ".png":
            header = path.read_bytes()[:24]
            assert header[:8] == b"\x89PNG\r\n\x1a\n"
            assert struct.unpack(">I", header[16:20])[0] == 1040  # 5.2 inches at 200 dpi
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
