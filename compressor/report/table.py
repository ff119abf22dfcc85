"""A table of text cells, as plain text, Markdown and HTML show it.

`tables.py` makes those of a report of its view; `tables.toml` has their words.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

from compressor.report.numbers import printable

WORDS = Path(__file__).with_name("tables.toml")


@dataclass(frozen=True)
class Column:
    """A column's heading, and whether it holds numbers (set flush right)."""

    title: str
    numeric: bool = True


class ResultCell(str):
    """A cell that says how something turned out, with its tone: `good`, `bad` or none."""

    tone: str

    def __new__(cls, text: str, tone: str = "") -> Self:
        """Make a cell; `tone` is `good`, `bad` or empty."""
        made = super().__new__(cls, text)
        made.tone = tone
        return made


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
    words: Path = WORDS,
    **values: object,
) -> ReportTable:
    """A table with its words of a file, in which `values` are filled in.

    Columns are those that are named there, then `more`.
    """
    spec = _read(words)[key]
    named = columns(spec["columns"]) if "columns" in spec else ()
    titles = [Column(x.title.format(**values), x.numeric) for x in named]
    return ReportTable(
        key=key,
        caption=spec["caption"].format(**values),
        columns=(*titles, *more),
        rows=tuple(rows),
        title=spec.get("title", "").format(**values),
        notes=tuple(notes),
        folded=spec.get("folded", False),
    )


def without_column(table: ReportTable, title: str) -> ReportTable:
    """The table without one of its columns."""
    at = [column.title for column in table.columns].index(title)
    return replace(
        table,
        columns=(*table.columns[:at], *table.columns[at + 1 :]),
        rows=tuple((*row[:at], *row[at + 1 :]) for row in table.rows),
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

    Without columns, the first cell stands left and all others right. The last cells of a row may be
    left out.
    """
    from rich.cells import cell_len

    titles = [[column.title for column in columns]] if columns else []
    lines = [[printable(cell) for cell in cells] for cells in (*titles, *rows)]
    count = max(map(len, lines), default=0)
    lines = [cells + [""] * (count - len(cells)) for cells in lines]
    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    right = [column.numeric for column in columns] or [number > 0 for number in range(count)]
    texts = []
    for cells in lines:
        spaces = (" " * (width - cell_len(x)) for x, width in zip(cells, widths, strict=True))
        parts = zip(cells, spaces, right, strict=True)
        padded = [space + cell if is_right else cell + space for cell, space, is_right in parts]
        texts.append("  ".join(padded).rstrip())
    return "\n".join(texts)


# --- GitHub-flavored Markdown, in which data is shown literally

# Escape only what Markdown would interpret, so that the file also reads well as plain text: an
# underscore inside a word, a lone bracket, `< 0.001` and a minus sign inside a line stay.
_INLINE = re.compile(r"[\\`*~$]|(?<!\w)_|_(?!\w)|<(?=[\w/!?])|&(?=[#\w])|\](?=[(\[:])")
# What would start a heading, a quotation or a list inside a list item or a paragraph.
_LINE_START = re.compile(r"^(?:>|[#+=-](?=[\s#=-]|$)|\d{1,9}[.)](?=\s|$))")


def escape(text: str) -> str:
    """`text` as part of a line, shown literally by Markdown."""
    return _INLINE.sub(lambda match: f"&#{ord(match[0])};", printable(text))


def escape_line(text: str) -> str:
    """`text` as a whole paragraph or list item, shown literally by Markdown."""
    return _LINE_START.sub(
        lambda match: f"{match[0][:-1]}&#{ord(match[0][-1])};", escape(text).strip()
    )


def bullets(sentences: Iterable[str]) -> list[str]:
    """Sentences as one list; nothing for none."""
    text = "\n".join(f"- {escape_line(sentence)}" for sentence in sentences)
    return [text] if text else []


def render_table(table: ReportTable) -> list[str]:
    """A table in Markdown with its caption, as blocks of a page."""
    return [escape_line(table.caption), table_block(table)]


def table_block(table: ReportTable, escape: Callable[[str], str] = escape) -> str:
    """The table alone; one without columns as a list of names and values."""
    if not table.columns:
        return "\n".join(f"- **{escape(key)}**: {escape(value)}" for key, value in table.rows)
    titles = [column.title for column in table.columns]
    rows = [
        "| " + " | ".join(escape(cell).strip().replace("|", "&#124;") for cell in cells) + " |"
        for cells in (titles, *table.rows)
    ]
    ruler = "|".join(" ---: " if column.numeric else " --- " for column in table.columns)
    return "\n".join([rows[0], f"|{ruler}|", *rows[1:]])
