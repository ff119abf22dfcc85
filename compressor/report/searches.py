"""What a report says of a search for a budget: what was tried, and what that proves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from compressor.report import max_drop, speed_search
from compressor.report.schema import Report
from compressor.report.table import ReportTable
from compressor.results import QualitySearch, SpeedSearch


@dataclass(frozen=True)
class Search:
    """A run's search.

    Args:
        tables: what was measured on the way, with notes on how the search ended.
        warnings: they name the models they are about.
        limitation: for the model card.
    """

    tables: list[ReportTable] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    limitation: str = ""


# Type of a search's results -> its tables, warnings and limitation.
_DESCRIBE: dict[type, Callable[[Report, Any], tuple[list[ReportTable], list[str], str]]] = {
    SpeedSearch: speed_search.describe,
    QualitySearch: max_drop.describe,
}


def describe(report: Report) -> Search:
    """How the units to remove were searched; empty where the budget gave their number."""
    found = report.search
    return Search() if found is None else Search(*_DESCRIBE[type(found)](report, found))
