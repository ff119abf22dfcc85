"""A table as data: built once, rendered as plain text, Markdown and HTML."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A column's heading, and whether it holds numbers (set flush right)."""

    title: str
    numeric: bool = True


@dataclass(frozen=True)
class ReportTable:
    """A captioned table; the first cell of a row names it."""

    key: str  # of the table in a page
    caption: str
    columns: tuple[Column, ...]  # one for each cell; none for pairs of a name and a value
    rows: tuple[tuple[str, ...], ...]
    title: str = ""  # of its section of a report
    notes: tuple[str, ...] = ()  # sentences about it
    folded: bool = False  # whether a page shows it only on demand


def columns(text: str, *numeric: str) -> tuple[Column, ...]:
    """Columns by their titles: `text` separated by commas, then numeric ones.

    A title after `>` in `text` is numeric, too: `Model, >Score, Result`.
    """
    titles = text.split(", ")
    mixed = tuple(Column(title.removeprefix(">"), title.startswith(">")) for title in titles)
    return mixed + tuple(map(Column, numeric))
