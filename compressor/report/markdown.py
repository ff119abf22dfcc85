"""The report as GitHub-flavoured Markdown: `report.md`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from compressor.report import budgets, facts, numbers, sentences, tables, unit_tables
from compressor.report.schema import Report

# Escape only what Markdown would interpret, so that the file also reads well as plain text: an
# underscore inside a word, a lone bracket, `< 0.001` and a minus sign inside a line stay.
_INLINE = re.compile(r"[\\`*~$]|(?<!\w)_|_(?!\w)|<(?=[\w/!?])|&(?=[#\w])|\](?=[(\[:])")
# What would start a heading, a quotation or a list inside a list item or a paragraph.
_LINE_START = re.compile(r"^(?:>|[#+=-](?=[\s#=-]|$)|\d{1,9}[.)](?=\s|$))")


def _entity(found: re.Match[str]) -> str:
    return f"&#{ord(found[0])};"


def escape(text: str) -> str:
    """`text` as part of a line, shown literally by Markdown."""
    return _INLINE.sub(_entity, numbers.printable(text).strip())


def escape_line(text: str) -> str:
    """`text` as a whole paragraph or list item, shown literally by Markdown."""
    return _LINE_START.sub(lambda found: f"{found[0][:-1]}&#{ord(found[0][-1])};", escape(text))


def escape_cell(text: str) -> str:
    """`text` as a table cell, shown literally by Markdown."""
    return escape(text).replace("|", "&#124;")


def render_markdown(report: Report) -> str:
    """The whole report as Markdown, ending with a newline."""
    gate, signatures = tables.gate(report), tables.signatures(report)
    blocks = [
        f"# Compression report: {escape(facts.model_name(report))}",
        escape_line(sentences.verdict(report)),
        *(["## Gate", *render_table(gate)] if gate else []),
        "## Quality",
        *bullets(sentences.quality_sentences(report)),
        *render_table(tables.quality(report)),
        *(["### Metric signatures", *pair_list(signatures)] if signatures else []),
        "## Throughput",
        *bullets(sentences.speed_sentences(report)),
        *render_table(tables.throughput(report)),
        *render_table(tables.shapes(report)),
        "## Size",
        *render_table(unit_tables.size(report)),
        *_budget(report),
        f"## {facts.units_title(report)} kept",
        *bullets(sentences.emptied_sentences(report)),
        *render_table(unit_tables.layers(report)),
        "## Verification",
        *(render_table(tables.checks(report)) or ["No check was recorded."]),
        "## How it was made",
        *pair_list(tables.origin(report)),
        "## Environment",
        *pair_list(tables.environment(report)),
    ]
    return "\n\n".join(blocks) + "\n"


def _budget(report: Report) -> list[str]:
    """The section on the search for a budget; nothing where there was no search."""
    sentences = budgets.budget_sentences(report)
    if not sentences:
        return []
    rendered = [block for table in budgets.tables(report) for block in render_table(table)]
    return ["## Budget", *bullets(sentences), *rendered]


def bullets(sentences: Iterable[str]) -> list[str]:
    """Sentences as one list; nothing for none."""
    text = "\n".join(f"- {escape_line(sentence)}" for sentence in sentences)
    return [text] if text else []


def pair_list(pairs: tables.Pairs) -> list[str]:
    """Named values as one list; nothing for none."""
    text = "\n".join(f"- **{escape(key)}**: {escape(value)}" for key, value in pairs)
    return [text] if text else []


def render_table(table: tables.Table | None) -> list[str]:
    """The caption and the table as two blocks; nothing for None."""
    if table is None:
        return []
    lines = [
        _row(column.title for column in table.columns),
        "|" + "|".join(" ---: " if column.numeric else " --- " for column in table.columns) + "|",
        *(_row(row) for row in table.rows),
    ]
    return [escape_line(table.caption), "\n".join(lines)]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(escape_cell(cell) for cell in cells) + " |"
