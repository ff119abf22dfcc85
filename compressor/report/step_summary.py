"""A verdict on one screen for GitHub: the summary of a step, and the text of a comment.

The verdict comes first, then one table; everything else is folded, and left out from the end where
GitHub's limits would be exceeded. Texts from data are shown as they are, and notify nobody.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from compressor.report import facts, gate_text, markdown, numbers
from compressor.report.formats import ReportFormat
from compressor.report.in_short import in_short
from compressor.report.rule import worst_of
from compressor.report.schema import Report
from compressor.report.sections import ReportSection, sections
from compressor.report.sentences import floor_sentences
from compressor.report.table import ReportTable

SUMMARY_BYTES = 1_000_000  # GitHub takes 1 MiB from a step
COMMENT_BYTES = 60_000  # and 65,536 characters of a comment
MARKER = "<!-- compress gate "
_MOST_ROWS = 40  # of the table
_MOST_TEXT = 300  # characters of a cell or a sentence
# A mention of a user or a team, and a reference to an issue.
_NOTIFIES = re.compile(r"(?<!\w)@(?=[\w-])|(?<![\w&])#(?=\d)")

_SIGNS = {"passed": "✅ Passed", "failed": "❌ Failed", "inconclusive": "⚠️ Inconclusive"}


def render_summary(report: Report) -> str:
    """What goes to `$GITHUB_STEP_SUMMARY`, at most `SUMMARY_BYTES` long."""
    first, folds = _parts(report)
    return _fitted([*_opening(report), *first], folds, SUMMARY_BYTES)


def render_comment(report: Report) -> str:
    """The text of a comment, at most `COMMENT_BYTES` long.

    Its first line is a marker, the same for all reports about a model, by which the comment of an
    earlier run is found and replaced.
    """
    first, folds = _parts(report)
    return _fitted([marker(report), *_opening(report), *first], folds[:3], COMMENT_BYTES)


def marker(report: Report) -> str:
    """A line that Markdown does not show; no text from data is in it."""
    return f"{MARKER}{hashlib.sha256(report.model.encode('utf-8', 'replace')).hexdigest()[:16]} -->"


def _is_own(text: str) -> bool:
    return text.startswith(MARKER) or _TITLE.match(text) is not None


_TITLE = re.compile(rf"## (?:{'|'.join(_SIGNS.values())}|No gate rule)\b.*: compress")


def _opening(report: Report) -> list[str]:
    title = "No gate rule"
    if report.gate:
        verdict = worst_of(outcome.verdict for outcome in report.gate)
        title = _SIGNS[verdict]
        if verdict == "inconclusive":
            met = all(outcome.met for outcome in report.gate)
            title += f", counts as {'passed' if met else 'failed'}"
    lead = gate_text.gate_sentence(report) or "No rule was given."
    return [
        f"## {title}: compress {_inert(markdown.escape, facts.model_name(report))}",
        _inert(markdown.escape_line, f"{lead} {_short_verdict(report)}"),
    ]


def _short_verdict(report: Report) -> str:
    variant = facts.headline(report)
    if variant is None:
        return "The report holds no pruned variant."
    parts = (*floor_sentences(report), in_short(report, variant))
    return " ".join(filter(None, parts))


# Sections that can be opened, the most important first.
_FOLDED = (
    *("gate", "baseline", "quality", "throughput", "size", "verification"),
    *("origin", "environment"),
)


def _parts(report: Report) -> tuple[list[str], list[str]]:
    """The one table that is seen at once (the rules, or else the first there is), and the folds."""
    by_key = {section.key: section for section in sections(report)}
    found = [by_key[key] for key in _FOLDED if key in by_key and by_key[key].tables]
    first = next(s for s in found if s.key in ("gate", "quality", "size"))
    return [_rendered(first.tables[0])], [_fold(section) for section in found if section != first]


def _fold(section: ReportSection) -> str:
    body = "\n\n".join(map(_rendered, section.tables))
    return f"<details><summary>{section.title}</summary>\n\n{body}\n\n</details>"


def _rendered(table: ReportTable) -> str:
    most = _MOST_ROWS if table.columns else len(table.rows)
    left = len(table.rows) - most
    more = f"\n\n{left:,} more rows are in the report." if left > 0 else ""
    shown = replace(table, rows=table.rows[:most])
    return markdown.table_block(shown, lambda text: _inert(markdown.escape, text)) + more


def _inert(escape: Callable[[str], str], text: str) -> str:
    """A text from data: escaped, not without end, and without mentions and references."""
    shown = numbers.printable(text)
    shown = shown if len(shown) <= _MOST_TEXT else f"{shown[:_MOST_TEXT]} ..."
    return _NOTIFIES.sub(lambda found: f"{found[0]}<!-- -->", escape(shown))


def _fitted(opening: Sequence[str], folded: Sequence[str], most: int) -> str:
    """As many blocks as fit; the rows of the table go last."""
    note = "The rest is in the report: it is too long for this page."
    kept = list(folded)
    while kept and _size([*opening, *kept, note]) > most:
        kept.pop()
    shown = [*opening, *kept, *([note] if len(kept) < len(folded) else [])]
    if _size(shown) > most:
        *head, table = opening
        lines = table.split("\n")
        while len(lines) > 2 and _size([*head, "\n".join(lines), note]) > most:
            lines.pop()
        shown = [*head, "\n".join(lines), note]
    return "\n\n".join(shown) + "\n"


def _size(blocks: Sequence[str]) -> int:
    return sum(len(block.encode("utf-8", "replace")) + 2 for block in blocks)


SUMMARY = ReportFormat("summary.md", render_summary, _is_own, for_ci=True)
COMMENT = ReportFormat("comment.md", render_comment, _is_own, for_ci=True)
