"""The report as GitHub-flavoured Markdown, `report.md`; its words stand in `report.md.j2`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from compressor.report import facts, numbers, sentences
from compressor.report.first_tables import conclusion, samples
from compressor.report.formats import ReportFormat
from compressor.report.gate_text import gate_sentence
from compressor.report.schema import Report
from compressor.report.table import ReportTable
from compressor.report.tables import tables

# Escape only what Markdown would interpret, so that the file also reads well as plain text: an
# underscore inside a word, a lone bracket, `< 0.001` and a minus sign inside a line stay.
_INLINE = re.compile(r"[\\`*~$]|(?<!\w)_|_(?!\w)|<(?=[\w/!?])|&(?=[#\w])|\](?=[(\[:])")
# What would start a heading, a quotation or a list inside a list item or a paragraph.
_LINE_START = re.compile(r"^(?:>|[#+=-](?=[\s#=-]|$)|\d{1,9}[.)](?=\s|$))")


def escape(text: str) -> str:
    """`text` as part of a line, shown literally by Markdown."""
    return _INLINE.sub(lambda found: f"&#{ord(found[0])};", numbers.printable(text))


def escape_line(text: str) -> str:
    """`text` as a whole paragraph or list item, shown literally by Markdown."""
    return _LINE_START.sub(
        lambda found: f"{found[0][:-1]}&#{ord(found[0][-1])};", escape(text).strip()
    )


def render_markdown(report: Report) -> str:
    """The whole report as Markdown, ending with a newline."""
    return render_template("report.md.j2", report)


def render_template(name: str, report: Report, **more: Any) -> str:
    """A template of this package in Markdown, in which every text is escaped.

    Args:
        more: values for it beside the report, its tables and its sentences.
    """
    made, sampled = tables(report), samples(report)
    text = _environment().get_template(name).render(
        report=report, title=facts.model_name(report), facts=facts, sentences=sentences,
        conclusion=conclusion(report), gate=gate_sentence(report), tables=made,
        shown=[*([sampled] if sampled else []), *made.values()], **more,
    )  # fmt: skip
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("compressor.report", ""),
        autoescape=False,  # `finalize` escapes for Markdown
        finalize=lambda value: value if isinstance(value, Markup) else escape(str(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["line"] = lambda text: Markup(escape_line(text))
    environment.filters["items"] = lambda lines: Markup("\n".join(bullets(lines)))
    environment.filters["code"] = lambda text: Markup(numbers.printable(text))
    environment.filters["table"] = lambda table: Markup(table_block(table))
    return environment


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
    lines = [
        _row((column.title for column in table.columns), escape),
        "|" + "|".join(" ---: " if column.numeric else " --- " for column in table.columns) + "|",
        *(_row(row, escape) for row in table.rows),
    ]
    return "\n".join(lines)


def _row(cells: Iterable[str], escape: Callable[[str], str]) -> str:
    return "| " + " | ".join(escape(cell).strip().replace("|", "&#124;") for cell in cells) + " |"


MARKDOWN = ReportFormat("report.md", render_markdown, r"# Compression report: ")
