"""The report as one self-contained HTML page: `report.html`.

No script, no external file, light and dark. The template escapes every text.
"""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from compressor.report import facts, numbers, plots, sentences
from compressor.report.formats import ReportFormat
from compressor.report.schema import Report
from compressor.report.sections import sections
from compressor.report.unit_maps import SHADES, unit_maps
from compressor.results import Variant

if TYPE_CHECKING:
    from jinja2 import Template

# Color -> the one on a dark page.
DARK = {
    plots.INK: "#d5dbe2", plots.FAINT: "#333c47", plots.DENSE: "#a3aebb",
    **dict(zip(plots.COLORS, ("#56b4e9", "#f08a4b", "#34c99a", "#e29bc4", "#9ad1f2", "#f0b840"),
               strict=True)),
}  # fmt: skip
KeyFigure = tuple[str, str, str]  # a key number: label, value, note
_TITLE = "<title>Compression report: "
_TITLE_WITHIN = 1000  # characters from the start


def render_html(report: Report) -> str:
    """The whole report as an HTML document."""
    pruned = facts.pruned(report)
    maps = [(variant.name, list(unit_maps(report, variant))) for variant in pruned]
    return _template().render(
        report=report,
        model_name=facts.model_name(report),
        verdict=sentences.verdict(report),
        figures=_figures(report),
        sections=sections(report),
        images=images(report),
        unit_maps=maps,
        scored=any(facts.scoring(report, variant) for variant in pruned),
        unscored=any(row.has_unscored for _, found in maps for m in found for row in m.rows),
        shades=range(SHADES),
        has_neurons=bool(facts.neuron_kinds(report)),
    )


@dataclass(frozen=True)
class PageImage:
    """A plot as `data:` addresses for a light and a dark page."""

    plot: plots.Plot
    light: str
    dark: str


def images(report: Report) -> dict[str, PageImage]:
    """The plots that the report has data for, by name."""
    images = {}
    for name, figure in plots.figures(report):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        svg = buffer.getvalue()
        dark = re.sub("|".join(DARK), lambda found: DARK[found[0]], svg)
        images[name] = PageImage(plots.PLOTS[name], _data_address(svg), _data_address(dark))
    return images


def _data_address(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("compressor.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")


def _kept_figure(variant: Variant, units: str) -> KeyFigure:
    kept, total = facts.kept(variant, units), facts.total(variant, units)
    share = numbers.percent(kept, total)
    return f"{units.capitalize()} kept", f"{kept:,} of {total:,}", share


def _figures(report: Report) -> list[KeyFigure]:
    """Key numbers of the most important variant."""
    variant = facts.headline(report)
    if variant is None:
        return []
    figures = [_kept_figure(variant, "heads")]
    if facts.lost_neurons(variant):
        figures.append(_kept_figure(variant, "neurons"))
        share = numbers.percent(variant.macs_share, 1)
        figures.append(("Multiply-adds", share, "of dense"))
    found = facts.comparison(variant, facts.primary_metric(report))
    if found is not None:
        style = facts.metric_style(found.metric)
        figures.append(
            (
                f"{style.label} against dense",
                style.difference(found.difference),
                f"{style.interval(found.interval)}, {numbers.p_equation(found.p_value)}: "
                f"{facts.JUDGMENT_WORDS[facts.judge(found)]}",
            )
        )
    rows = facts.with_speedup(report, variant)
    for row in rows[:1] + rows[1:][-1:]:  # smallest and largest batch
        paying = "pays" if facts.pays(row) else "does not pay"
        ratio = "" if row.macs_ratio is None else f", multiply-adds {row.macs_ratio:.2f}"
        figures.append(
            (
                f"Speed-up at batch {row.batch_size}",
                numbers.fixed(row.speedup, 2),
                f"{numbers.interval(row.speedup_interval, 2)}{ratio}: {paying}",
            )
        )
    smaller = numbers.change(variant.onnx_bytes, report.dense.onnx_bytes)
    size = f"{numbers.megabytes(variant.onnx_bytes)} MB"
    return [*figures, ("ONNX size", size, f"{smaller} against dense")]


HTML = ReportFormat("report.html", render_html, lambda text: _TITLE in text[:_TITLE_WITHIN])
