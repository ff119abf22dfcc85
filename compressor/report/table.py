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
    """Columns by their titles: `text` separated by commas, then numeric ones.

    A title after `>` in `text` is numeric, too: `Model, >Score, Result`.
    """
    titles = text.split(", ")
    mixed = tuple(Column(title.removeprefix(">"), title.startswith(">")) for title in titles)
    return mixed + tuple(map(Column, numeric))
