"""A verdict on one screen for GitHub: the summary of a step, and the text of a comment.

The verdict comes first, then one table; everything else is folded, and left out from the end where
GitHub's limits would be exceeded. Texts from data are shown as they are, without mentions of users.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from compressor.report import facts, gate_text, markdown, numbers, sentences
from compressor.report.formats import ReportFormat
from compressor.report.rule import worst_of
from compressor.report.schema import Report
from compressor.report.table import ReportTable
from compressor.report.tables import tables

SUMMARY_BYTES = 1_000_000  # GitHub takes 1 MiB from a step
COMMENT_BYTES = 60_000  # and 65,536 characters of a comment
MARKER = "<!-- compress gate "
_MOST_TEXT = 300  # characters of a cell or a name
_MOST_SAID = 1200  # of a sentence
_NOTE = "The rest is in the report: it is too long for this page."
# A mention of a user or a team, and a reference to an issue.
_NOTIFIES = re.compile(r"(?<!\w)@(?=[\w-])|(?<![\w&])#(?=\d)")
_SIGNS = {"passed": "✅ Passed", "failed": "❌ Failed", "inconclusive": "⚠️ Inconclusive"}
# Tables in the order of their importance here: the first there is stays open.
_SHOWN = (
    *("gate", "baseline", "quality", "throughput", "size", "checks", "origin", "environment"),
)


def render_summary(report: Report) -> str:
    """What goes to `$GITHUB_STEP_SUMMARY`, at most `SUMMARY_BYTES` long."""
    return _fitted(report, [], len(_SHOWN), SUMMARY_BYTES)


def render_comment(report: Report) -> str:
    """The text of a comment, at most `COMMENT_BYTES` long.

    Its first line is a marker, the same for all reports about a model, by which the comment of an
    earlier run is found and replaced.
    """
    return _fitted(report, [marker(report)], 4, COMMENT_BYTES)


def marker(report: Report) -> str:
    """A line that Markdown does not show; no text from data is in it."""
    return f"{MARKER}{hashlib.sha256(report.model.encode('utf-8', 'replace')).hexdigest()[:16]} -->"


def _opening(report: Report) -> Iterator[str]:
    title = "No gate rule"
    if report.gate:
        verdict = worst_of(outcome.verdict for outcome in report.gate)
        title = _SIGNS[verdict]
        if verdict == "inconclusive":
            met = all(outcome.met for outcome in report.gate)
            title += f", counts as {'passed' if met else 'failed'}"
    yield f"## {title}: compress {_inert(markdown.escape, facts.model_name(report))}"
    lead = gate_text.gate_sentence(report) or "No rule was given."
    said = (lead, *sentences.floors(report), sentences.conclusion(report))
    yield " ".join(_inert(markdown.escape_line, text, _MOST_SAID) for text in said)


def _fitted(report: Report, head: list[str], count: int, most: int) -> str:
    """As much as fits: `count` tables at most, the first one open."""
    made = tables(report)
    first, *folded = [made[key] for key in _SHOWN if key in made][:count]
    head += _opening(report)
    for rows in (40, 10, 2):
        blocks = [*head, _table(first, rows)]
        if _bytes([*blocks, _NOTE]) <= most:
            break
    for table in folded:
        fold = _table(table, len(table.rows) if not table.columns else 40)
        fold = f"<details><summary>{table.title}</summary>\n\n{fold}\n\n</details>"
        if _bytes([*blocks, fold, _NOTE]) > most:
            blocks.append(_NOTE)
            break
        blocks.append(fold)
    return "\n\n".join(blocks) + "\n"


def _bytes(blocks: list[str]) -> int:
    return len("\n\n".join(blocks).encode("utf-8", "replace")) + 1


def _table(table: ReportTable, most: int) -> str:
    shown = replace(table, rows=table.rows[:most])
    left = len(table.rows) - len(shown.rows)
    more = f"\n\n{left:,} more rows are in the report." if left else ""
    return markdown.table_block(shown, lambda text: _inert(markdown.escape, text)) + more


def _inert(escape: Callable[[str], str], text: str, most: int = _MOST_TEXT) -> str:
    """A text from data: escaped, not without end, and without mentions and references."""
    shown = numbers.printable(text)
    shown = shown if len(shown) <= most else f"{shown[:most]} ..."
    return _NOTIFIES.sub(lambda found: f"{found[0]}<!-- -->", escape(shown))


_START = rf"{MARKER}|## (?:{'|'.join(_SIGNS.values())}|No gate rule)\b[^\n]*: compress"
SUMMARY = ReportFormat("summary.md", render_summary, _START, for_ci=True)
COMMENT = ReportFormat("comment.md", render_comment, _START, for_ci=True)
