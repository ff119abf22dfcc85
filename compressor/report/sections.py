"""What a report consists of, as data: sections of sentences and tables that every page renders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from compressor.report import budgets, facts, sentences, tables, unit_tables
from compressor.report.schema import Report
from compressor.report.table import ReportTable


@dataclass(frozen=True)
class ReportSection:
    """A part of the report.

    Args:
        key: its name in a page.
        sentences, tables: what it says.
        plots: names in `plots.PLOTS`, for formats that have pictures.
        otherwise: what is said where there is nothing.
    """

    key: str
    title: str
    sentences: list[str] = field(default_factory=list)
    tables: list[ReportTable] = field(default_factory=list)
    plots: tuple[str, ...] = ()
    otherwise: str = ""


def sections(report: Report) -> list[ReportSection]:
    """All sections in their order; those about nothing are left out."""
    return [
        section
        for section in _all(report)
        if section.sentences or section.tables or section.otherwise or section.plots
    ]


def _all(report: Report) -> Iterator[ReportSection]:
    yield ReportSection("gate", "Gate", tables=_some(tables.gate(report)))
    yield ReportSection(
        "baseline", "Compared with the baseline", tables=_some(tables.baseline(report))
    )
    yield ReportSection(
        "quality",
        "Quality",
        sentences.quality_sentences(report),
        _some(tables.quality(report), tables.signatures(report)),
        plots=("quality",),
    )
    yield ReportSection(
        "throughput",
        "Throughput",
        sentences.speed_sentences(report),
        _some(tables.throughput(report), tables.engines(report), tables.shapes(report)),
        plots=("throughput", "speedup"),
    )
    yield ReportSection("size", "Size", tables=[unit_tables.size(report)])
    searched = budgets.search(report)
    yield ReportSection("budget", "Budget", searched.sentences, searched.tables)
    yield ReportSection(
        "units",
        f"{facts.units_title(report)} kept",
        sentences.emptied_sentences(report),
        [unit_tables.layers(report)],
    )
    yield ReportSection(
        "verification",
        "Verification",
        tables=_some(tables.checks(report)),
        otherwise="No check was recorded.",
    )
    yield ReportSection("origin", "How it was made", tables=_some(tables.origin(report)))
    yield ReportSection("environment", "Environment", tables=_some(tables.environment(report)))


def _some(*found: ReportTable | None) -> list[ReportTable]:
    return [table for table in found if table is not None]
