"""A table as data: built once, rendered as plain text, Markdown and HTML.

`tables.toml` has the words of the report's tables.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Any

from compressor.report.numbers import printable

WORDS = Path(__file__).with_name("tables.toml")


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


@cache
def _read(words: Path) -> dict[str, Any]:
    return tomllib.loads(words.read_text("utf-8"))


def make_table(
    key: str,
    rows: Iterable[tuple[str, ...]],
    notes: Sequence[str] = (),
    *,
    more: Sequence[Column] = (),
    left_out: Collection[str] = (),
    words: Path = WORDS,
    **values: object,
) -> ReportTable:
    """A table with its words of a file.

    Args:
        more: columns after those that are named there.
        left_out: titles of columns that are not shown, with their cells.
        values: to fill in.
    """
    spec = _read(words)[key]
    named = columns(spec["columns"]) if "columns" in spec else ()
    shown = [column.title not in left_out for column in (*named, *more)]
    titles = [Column(x.title.format(**values), x.numeric) for x in named]
    return ReportTable(
        key=key,
        caption=spec["caption"].format(**values),
        columns=tuple(compress((*titles, *more), shown)),
        rows=tuple(tuple(compress(row, shown)) for row in rows) if left_out else tuple(rows),
        title=spec.get("title", "").format(**values),
        notes=tuple(notes),
        folded=spec.get("folded", False),
    )


def columns(text: str, *numeric: str) -> tuple[Column, ...]:
    """Columns by their titles: `text` separated by commas, then numeric ones.

    A title after `>` in `text` is numeric, too: `Model, >Score, Result`.
    """
    titles = text.split(", ")
    mixed = tuple(Column(title.removeprefix(">"), title.startswith(">")) for title in titles)
    return mixed + tuple(map(Column, numeric))


def render_text(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> str:
    """Plain text, the same on a terminal, in a pipe and in a file: never cut or wrapped.

    Aligned columns, two spaces between them; one line per row and one for the titles, if any.
    Without columns, the first cell stands left and all others right. The last cells of a row may be
    left out. Lines have no spaces at their ends, and the last one no newline.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    titles = [[column.title for column in columns]] if columns else []
    lines = [*titles, *rows]
    if not lines:
        return ""
    grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    widest = max(map(len, lines))
    for right in [column.numeric for column in columns] or [False] + [True] * (widest - 1):
        grid.add_column(justify="right" if right else "left", no_wrap=True)
    for cells in lines:
        grid.add_row(*(Text(printable(cell)) for cell in cells))
    # As wide as the table wants to be, whatever the terminal and its variables say.
    console = Console(
        width=1_000_000, color_system=None, force_terminal=False, legacy_windows=False
    )
    with console.capture() as captured:
        console.print(grid)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
