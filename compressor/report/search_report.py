"""What there is to say of the search for a budget."""

from __future__ import annotations

from dataclasses import dataclass, field

from compressor.report.table import ReportTable


@dataclass(frozen=True)
class SearchReport:
    """A run's search.

    Args:
        sentences: how the units were searched, and how that ended.
        tables: what was measured on the way.
        warnings: for the verdict, where nobody can miss them; they name the models they are about.
        limitation: for the model card.
    """

    sentences: list[str] = field(default_factory=list)
    tables: list[ReportTable] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    limitation: str = ""
