"""Texts, lists and tables in GitHub-flavored Markdown, in which data is shown literally."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from compressor.report import numbers
from compressor.report.table import ReportTable

# Escape only what Markdown would interpret, so that the file also reads well as plain text: an
# underscore inside a word, a lone bracket, `< 0.001` and a minus sign inside a line stay.
_INLINE = re.compile(r"[\\`*~$]|(?<!\w)_|_(?!\w)|<(?=[\w/!?])|&(?=[#\w])|\](?=[(\[:])")
# What would start a heading, a quotation or a list inside a list item or a paragraph.
_LINE_START = re.compile(r"^(?:>|[#+=-](?=[\s#=-]|$)|\d{1,9}[.)](?=\s|$))")


def escape(text: str) -> str:
    """`text` as part of a line, shown literally by Markdown."""
    return _INLINE.sub(lambda match: f"&#{ord(match[0])};", numbers.printable(text))


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
    """The caption and the table as two blocks."""
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
