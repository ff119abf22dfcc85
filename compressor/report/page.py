"""The report as one self-contained HTML page: `report.html`.

No script, no external file, light and dark. The template escapes every text but SVG, whose text
is escaped where it is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from compressor.report import (
    budgets,
    facts,
    headmap,
    inline_svg,
    numbers,
    plots,
    sentences,
    tables,
    unit_tables,
)
from compressor.report.schema import Report
from compressor.results import Variant

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup


@dataclass(frozen=True)
class Figure:
    """A key number with its label and a note."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class UnitMaps:
    """One variant's maps of heads and bars of neurons, by kind of sublayer."""

    variant: str
    summary: str
    maps: list[tuple[str, Markup]]  # heading, SVG


def render_html(report: Report) -> str:
    """The whole report as an HTML document."""
    from markupsafe import Markup

    return _template().render(
        report=report,
        verdict=sentences.verdict(report),
        figures=_figures(report),
        gate=tables.gate(report),
        quality=tables.quality(report),
        quality_sentences=sentences.quality_sentences(report),
        signatures=tables.signatures(report),
        throughput=tables.throughput(report),
        shapes=tables.shapes(report),
        speed_sentences=sentences.speed_sentences(report),
        budget_sentences=budgets.budget_sentences(report),
        budget_tables=budgets.tables(report),
        size=unit_tables.size(report),
        layers=unit_tables.layers(report),
        emptied_sentences=sentences.emptied_sentences(report),
        unit_maps=[_unit_maps(report, variant) for variant in facts.pruned(report)],
        scored=any(facts.scoring(report, variant) for variant in facts.pruned(report)),
        model_name=facts.model_name(report),
        units_title=facts.units_title(report),
        legend=Markup(headmap.render_legend(report)),
        checks=tables.checks(report),
        origin=tables.origin(report),
        environment=tables.environment(report),
        plots=_plots(report),
    )


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


def _plots(report: Report) -> dict[str, Markup]:
    """Plot name -> SVG, for the plots the report has data for."""
    from markupsafe import Markup

    metric = facts.primary_metric(report)
    label = facts.metric_style(metric).label if metric else "Quality"
    described = {
        "quality": (
            f"{label} against {facts.left(report, report.variants).label}",
            " ".join(sentences.quality_sentences(report)),
        ),
        "throughput": (
            "Throughput against batch size",
            "Sentences per second of every model; the numbers are in the throughput table.",
        ),
        "speedup": (
            "Speed-up against its theoretical limit",
            " ".join(sentences.speed_sentences(report)),
        ),
    }
    drawn = {}
    for name, draw in plots.FIGURES.items():
        with plots.plot_style(name):
            figure = draw(report)
            if figure is not None:
                title, description = described[name]
                drawn[name] = Markup(inline_svg.inline_svg(figure, name, title, description))
    return drawn


def _unit_maps(report: Report, variant: Variant) -> UnitMaps:
    from markupsafe import Markup

    maps = []
    for kind in facts.attention_kinds(report):
        maps.append((_heading(variant, kind), headmap.render_head_map(report, variant, kind)))
    for kind in facts.neuron_kinds(report):
        if facts.layers(variant, kind):  # none of a variant whose report does not count neurons
            maps.append((_heading(variant, kind), headmap.render_neuron_bars(variant, kind)))
    return UnitMaps(
        variant.name,
        f"{variant.name} keeps {sentences.units(variant)}",
        [(heading, Markup(svg)) for heading, svg in maps],
    )


def _heading(variant: Variant, kind: str) -> str:
    kept, total = facts.kept(variant, kind), facts.total(variant, kind)
    return f"{facts.kind_label(kind).capitalize()}: {kept:,} of {total:,}"


def _kept_figure(variant: Variant, units: str) -> Figure:
    kept, total = facts.kept(variant, units), facts.total(variant, units)
    share = numbers.percent(kept, total)
    return Figure(f"{units.capitalize()} kept", f"{kept:,} of {total:,}", share)


def _figures(report: Report) -> list[Figure]:
    """Key numbers of the most important variant."""
    variant = facts.headline(report)
    if variant is None:
        return []
    figures = [_kept_figure(variant, "heads")]
    if facts.lost_neurons(variant):
        figures.append(_kept_figure(variant, "neurons"))
        if variant.macs_share is not None:
            share = numbers.percent(variant.macs_share, 1)
            figures.append(Figure("Multiply-adds", share, "of dense"))
    metric = facts.primary_metric(report)
    found = facts.comparison(variant, metric)
    if metric is not None and found is not None:
        style = facts.metric_style(metric)
        bounds = numbers.interval(found.interval, style.digits, sign=True)
        figures.append(
            Figure(
                f"{style.label} against dense",
                numbers.fixed(found.difference, style.digits, sign=True),
                f"{bounds}, {facts.JUDGMENT_WORDS[facts.judge(found)]}",
            )
        )
    rows = [row for row in facts.timings(report, variant.name) if row.speedup is not None]
    for row in rows[:1] + rows[1:][-1:]:  # smallest and largest batch
        paying = "pays" if facts.pays(row) else "does not pay"
        limit = "" if row.limit is None else f", limit {numbers.fixed(row.limit, 2)}"
        figures.append(
            Figure(
                f"Speed-up at batch {row.batch_size}",
                numbers.fixed(row.speedup, 2),
                f"{numbers.interval(row.speedup_interval, 2)}{limit}: {paying}",
            )
        )
    smaller = numbers.change(variant.onnx_bytes, report.dense.onnx_bytes)
    size = f"{numbers.megabytes(variant.onnx_bytes)} MB"
    return [*figures, Figure("ONNX size", size, f"{smaller} against dense")]
