"""Files for continuous integration: JUnit, a summary and a comment for GitHub, and numbers.

Summary and comment begin with the verdict and one table; everything else is folded. Badge and
outputs are about the model that the report leads with (`facts.headline`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any
from xml.etree import ElementTree

from compressor.report import numbers
from compressor.report.formats import ReportFormat
from compressor.report.rules import MinSpeedupRule
from compressor.report.sentences import speedup
from compressor.report.table import escape, escape_line, table_block
from compressor.report.tables import tables
from compressor.report.view import BuildSummary, ReportView, SpeedRow
from compressor.steps.results import Interval

SUITE = "compress gate"


def render_junit(view: ReportView) -> str:
    """One test case per gate outcome; an inconclusive one that counts as passed is skipped."""
    root = ElementTree.Element("testsuites", name=SUITE)
    suite = ElementTree.SubElement(root, "testsuite", name=SUITE)
    suite.set("timestamp", numbers.printable(view.report.created))
    for outcome in view.gate:
        variant, rule, message = map(
            numbers.printable, (outcome.variant, outcome.rule, outcome.message)
        )
        case = ElementTree.SubElement(suite, "testcase", classname=variant, name=rule)
        skipped = outcome.met and outcome.verdict == "inconclusive"
        kind = "failure" if not outcome.met else "skipped" if skipped else "system-out"
        element = ElementTree.SubElement(case, kind)
        element.text = message
        if kind != "system-out":
            element.attrib |= {"message": message, "type": outcome.verdict}
    for element in (root, suite):
        for name, tag in (("tests", "testcase"), ("failures", "failure"), ("skipped", "skipped")):
            element.set(name, str(len(list(suite.iter(tag)))))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


JUNIT = ReportFormat(
    "junit.xml", render_junit, rf"<\?xml[^>]*>\s*<testsuites[^>]*name=\"{SUITE}\"", for_ci=True
)


SUMMARY_BYTES = 1_000_000  # GitHub takes 1 MiB from a step
COMMENT_BYTES = 60_000  # and 65,536 characters of a comment
MARKER = "<!-- compress gate "
_MOST_TEXT = 300  # characters of a cell or a name
_MOST_SENTENCE = 1200  # of a sentence
_MOST_ROWS = 40
_NOTE = "The rest is in the report: it is too long for this page."
# A mention of a user or a team, and a reference to an issue.
_NOTIFIES = re.compile(r"(?<!\w)@(?=[\w-])|(?<![\w&])#(?=\d)")
_TITLES = {"passed": "✅ Passed", "failed": "❌ Failed", "inconclusive": "⚠️ Inconclusive"}
# Tables in the order of their importance here: the first one with rows stays open.
_SHOWN = ["gate", "baseline", "quality", "throughput", "size", "checks", "origin", "environment"]


def render_comment(view: ReportView) -> str:
    """The text of a comment.

    Its first line is a marker, which Markdown does not show. It is the same for all reports about a
    model, to replace the comment of an earlier run by.
    """
    model = hashlib.sha256(view.report.model.encode("utf-8", "replace")).hexdigest()[:16]
    return _fitted(view, [f"{MARKER}{model} -->"], 4, COMMENT_BYTES)


def _fitted(view: ReportView, blocks: list[str], count: int, most: int) -> str:
    """Verdict, conclusion and tables as far as they fit.

    Args:
        view: What to show.
        blocks: What stands before it.
        count: Tables at most, the first one open.
        most: Bytes at most.
    """
    title = _TITLES[view.verdict] if view.verdict else "No gate rule"
    if view.verdict == "inconclusive":
        met = all(outcome.met for outcome in view.gate)
        title += f", counts as {'passed' if met else 'failed'}"
    lead = view.gate_sentence or "No rule was given."
    lines = (lead, *view.floors, view.conclusion, *view.few_rows)
    blocks += [
        f"## {title}: compress {_inert(escape, view.title)}",
        " ".join(_inert(escape_line, text, _MOST_SENTENCE) for text in lines),
    ]
    made = tables(view)
    for number, table in enumerate([made[key] for key in _SHOWN if key in made][:count]):
        rows = table_block(table, lambda cell: _inert(escape, cell)).splitlines()
        # Beside what stands there already, the frame of a fold, and a note that something is left.
        room = most - _bytes("\n\n".join(blocks)) - 400
        ends = accumulate(map(_bytes, rows))
        shown = [row for row, end in zip(rows, ends, strict=True) if end <= room]
        shown = shown[: _MOST_ROWS + 2]
        if len(shown) < min(len(rows), 3):
            blocks.append(_NOTE)
            break
        text, left = "\n".join(shown), len(rows) - len(shown)
        text += f"\n\n{left:,} more rows are in the report." if left else ""
        fold = f"<details><summary>{table.title}</summary>\n\n{text}\n\n</details>"
        blocks.append(fold if number else text)
    return "\n\n".join(blocks) + "\n"


def _bytes(text: str) -> int:
    """Bytes of a text with the end of its line."""
    return len(text.encode("utf-8", "replace")) + 1


def _inert(escaped: Callable[[str], str], text: str, most: int = _MOST_TEXT) -> str:
    """A text from data: escaped, not without end, and without mentions and references."""
    shown = numbers.printable(text)
    shown = shown if len(shown) <= most else f"{shown[:most]} ..."
    return _NOTIFIES.sub(lambda match: f"{match[0]}<!-- -->", escaped(shown))


_START = rf"{MARKER}|## (?:{'|'.join(_TITLES.values())}|No gate rule)\b[^\n]*: compress"
SUMMARY = ReportFormat(  # for `$GITHUB_STEP_SUMMARY`
    "summary.md", lambda x: _fitted(x, [], len(_SHOWN), SUMMARY_BYTES), _START, for_ci=True
)
COMMENT = ReportFormat("comment.md", render_comment, _START, for_ci=True)


LABEL = "compress"
_COLORS = {"passed": "brightgreen", "failed": "red", "inconclusive": "orange"}


def render_badge(view: ReportView) -> str:
    """The JSON that a Shields endpoint badge shows (schema version 1)."""
    parts: list[str] = [view.verdict or "no rules"]
    if view.headline is not None:
        if row := _timing(view, view.headline.build):
            ratio = numbers.fixed(row.timing.speedup, 2)
            parts.append(f"{ratio if row.gain == 'faster' else speedup(row.timing)}x")
        if made := view.headline.build.difference:
            parts.append(f"{numbers.printable(made.style.label)[:40]} {made.text}")
    color = _COLORS[view.verdict] if view.verdict else "lightgrey"
    badge = {"schemaVersion": 1, "label": LABEL, "message": ", ".join(parts), "color": color}
    return _json(badge)


def render_bigger(view: ReportView) -> str:
    """`customBiggerIsBetter` for github-action-benchmark: scores and speed-ups."""
    entries: list[dict[str, Any]] = []
    dense = view.report.dense.name
    for build in view.delivered:
        for row in view.quality.rows:
            made = row.difference
            if row.build == build and (made is None or made.against == dense):
                more = {} if made is None else {"extra": f"against dense {_range(made.interval)}"}
                unit = row.style.unit or "points"
                entries += _entry(build, row.style.label, unit, row.score, **more)
        for timing in (row.timing for row in view.speed.rows if row.timing.variant == build):
            interval = timing.speedup_interval
            more = {} if interval is None else {"range": _range(interval)}
            what = f"speed-up at batch {timing.batch_size}"
            entries += _entry(build, what, "x", timing.speedup, **more)
    return _json(entries)


def render_smaller(view: ReportView) -> str:
    """`customSmallerIsBetter` for github-action-benchmark: sizes and counts."""
    entries: list[dict[str, Any]] = []
    for size in view.sizes:
        if size.build in view.delivered:
            entries += _entry(size.build, "ONNX size", "MB", size.onnx_bytes / 1e6)
            entries += _entry(size.build, "parameters", "parameters", float(size.parameters))
            entries += _entry(size.build, "multiply-adds", "share of dense", size.macs_share)
    return _json(entries)


def _entry(
    build: str, what: str, unit: str, value: float | None, **more: str
) -> list[dict[str, Any]]:
    """One number of a build; none where it is not known."""
    if value is None or not math.isfinite(value):
        return []
    name = numbers.printable(f"{build}: {what}")[:200]
    return [{"name": name, "unit": numbers.printable(unit), "value": value, **more}]


def _range(bounds: Interval) -> str:
    return f"{numbers.fixed(bounds[0], 2)} to {numbers.fixed(bounds[1], 2)}"


def render_outputs(view: ReportView) -> str:
    """Lines `name=value` for `$GITHUB_OUTPUT`: words and numbers alone, empty if not measured."""
    measured: dict[str, float | None] = dict.fromkeys(
        ("speedup", "quality-delta", "quality-interval-low", "size-mb")
    )
    if view.headline is not None:
        build = view.headline.build
        measured["size-mb"] = build.onnx_bytes / 1e6
        if row := _timing(view, build):
            measured["speedup"] = row.timing.speedup
        if build.difference is not None and not build.difference.is_at_floor:
            measured["quality-delta"] = build.difference.difference
            measured["quality-interval-low"] = build.difference.interval[0]
    values = {
        "passed": str(all(outcome.met for outcome in view.gate)).lower(),
        "verdict": view.verdict or "none",
    }
    for name, value in measured.items():
        values[name] = "" if value is None or not math.isfinite(value) else f"{value:.6g}"
    return "".join(f"{name}={value}\n" for name, value in values.items())


def _timing(view: ReportView, build: BuildSummary) -> SpeedRow | None:
    """A build's timing at the batch size of a speed-up rule, else at the largest."""
    rows = [row for row in build.speeds if row.gain is not None]
    ruled = [
        outcome.rule.rpartition("@")[2]
        for outcome in view.gate
        if outcome.variant == build.name and outcome.rule.startswith(f"{MinSpeedupRule.option} ")
    ]
    asked = [row for row in rows if str(row.timing.batch_size) in ruled]
    return next(iter(asked), rows[-1] if rows else None)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


_BADGE = rf'\{{\s*"schemaVersion": 1,\s*"label": "{LABEL}"'
_ENTRIES = r'\[\s*(?:\]|\{\s*"name":)'
BADGE = ReportFormat("badge.json", render_badge, _BADGE, for_ci=True)
BENCHMARK_BIGGER = ReportFormat("benchmark-bigger.json", render_bigger, _ENTRIES, for_ci=True)
BENCHMARK_SMALLER = ReportFormat("benchmark-smaller.json", render_smaller, _ENTRIES, for_ci=True)
OUTPUTS = ReportFormat("outputs.txt", render_outputs, "passed=", for_ci=True)
