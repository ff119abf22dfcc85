"""What a report says of searches for a budget, each told by the module of its kind of result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from compressor.report import facts, max_drop, phrases, speed_search
from compressor.report.schema import Report, Run
from compressor.report.search_report import SearchReport
from compressor.report.table import ReportTable
from compressor.results import QualitySearch, SpeedSearch

# Type of a search's results -> what tells of it.
_DESCRIBE: dict[type, Callable[[Report, Run, Any], SearchReport]] = {
    SpeedSearch: speed_search.describe,
    QualitySearch: max_drop.describe,
}


def _searches(report: Report) -> Iterator[tuple[Run, SearchReport]]:
    """Every run that searched, with what there is to say of it."""
    for run in facts.runs(report):
        if run.search is not None:
            yield run, _DESCRIBE[type(run.search)](report, run, run.search)


def sentences(report: Report) -> list[str]:
    """How the units to remove were searched; empty where the budget gave their number."""
    found = _searches(report)
    return [_prefix(report, run) + line for run, search in found for line in search.sentences]


def warnings(report: Report) -> list[str]:
    """What the searches could not show, for the verdict."""
    return [line for _, found in _searches(report) for line in found.warnings]


def limitations(report: Report) -> list[str]:
    """On which rows the units were searched, for a model card."""
    return [found.limitation for _, found in _searches(report) if found.limitation]


def tables(report: Report) -> list[ReportTable]:
    """What the searches measured; empty where the budgets gave the number of units."""
    tables = []
    for run, found in _searches(report):
        suffix = f"-{facts.runs(report).index(run) + 1}" if report.runs else ""
        for table in found.tables:
            caption = _prefix(report, run) + table.caption
            tables.append(replace(table, key=table.key + suffix, caption=caption))
    return tables


def _prefix(report: Report, run: Run) -> str:
    """`heads-50 and heads-25: ` where the report combines several runs, else nothing."""
    return f"{phrases.join(run.variants)}: " if report.runs else ""
