"""A table as data: built once, rendered as plain text, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A column's heading, and whether it holds numbers (set flush right)."""

    title: str
    numeric: bool = True


@dataclass(frozen=True)
class ReportTable:
    """A captioned table; the first cell of a row names it.

    Args:
        key: of the table in a page.
        columns: one for each cell; none for pairs of a name and a value.
        title: of its section of a report.
        notes: sentences about it.
        folded: whether a page shows it only on demand.
    """

    key: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()
    folded: bool = False


def columns(text: str, *numeric: str) -> tuple[Column, ...]:
    """Comma-separated titles of text columns, then the numeric ones."""
    named = tuple(Column(title, numeric=False) for title in text.split(", "))
    return named + tuple(map(Column, numeric))


def named_values(
    key: str, caption: str, pairs: Iterable[tuple[str, str]], title: str = "", folded: bool = False
) -> ReportTable:
    """A table of names and values."""
    return ReportTable(key, caption, (), tuple(pairs), title, folded=folded)
