"""What a report says of a search for a budget, told by the module of its kind of result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compressor.report import max_drop, speed_search
from compressor.report.schema import Report
from compressor.report.search_report import SearchReport
from compressor.results import QualitySearch, SpeedSearch

# Type of a search's results -> what tells of it.
_DESCRIBE: dict[type, Callable[[Report, Any], SearchReport]] = {
    SpeedSearch: speed_search.describe,
    QualitySearch: max_drop.describe,
}


def search(report: Report) -> SearchReport:
    """How the units to remove were searched; empty where the budget gave their number."""
    found = report.search
    return SearchReport() if found is None else _DESCRIBE[type(found)](report, found)
