"""Numbers of a report for programs that CI runs: a badge, a history of benchmarks, outputs.

All are about the model that the report leads with (`facts.headline`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from compressor.report import facts, numbers, phrases
from compressor.report.formats import ReportFormat
from compressor.report.rule import worst_of
from compressor.report.schema import Report
from compressor.report.speedup_rules import MinSpeedupRule
from compressor.results import Timing, Variant

LABEL = "compress"
_COLORS = {"passed": "brightgreen", "failed": "red", "inconclusive": "orange"}


def render_badge(report: Report) -> str:
    """The JSON that a Shields endpoint badge shows (schema version 1)."""
    message, color = "no rules", "lightgrey"
    if report.gate:
        message = worst_of(outcome.verdict for outcome in report.gate)
        color = _COLORS[message]
    parts = [message, *_shown(report)]
    badge = {"schemaVersion": 1, "label": LABEL, "message": ", ".join(parts), "color": color}
    return _json(badge)


def render_bigger(report: Report) -> str:
    """`customBiggerIsBetter` for github-action-benchmark: quality and speed-ups."""
    return _benchmark(
        entry
        for variant in facts.delivered(report)
        for entry in (*_quality(report, variant), *_speedups(report, variant))
    )


def render_smaller(report: Report) -> str:
    """`customSmallerIsBetter` for github-action-benchmark: sizes and counts."""
    return _benchmark(
        _entry(variant, what, unit, value)
        for variant in facts.delivered(report)
        for what, unit, value in (
            ("ONNX size", "MB", variant.onnx_bytes / 1e6),
            ("parameters", "parameters", float(variant.parameters)),
            ("multiply-adds", "share of dense", variant.macs_share),
        )
    )


def _benchmark(entries: Iterable[dict[str, Any]]) -> str:
    """What was not measured, or is no number, is left out."""
    return _json([x for x in entries if x["value"] is not None and math.isfinite(x["value"])])


_NAMES = ("passed", "verdict", "speedup", "quality-delta", "quality-interval-low", "size-mb")


def render_outputs(report: Report) -> str:
    """Lines `name=value` for `$GITHUB_OUTPUT`: words and numbers alone, empty where not measured.

    The speed-up is the one that a rule is about, else that of the largest batch; the quality is
    the main metric's difference from dense, with the lower end of its confidence interval.
    """
    variant = facts.headline(report)
    values: dict[str, str] = dict.fromkeys(_NAMES, "")
    values["passed"] = str(all(outcome.met for outcome in report.gate)).lower()
    values["verdict"] = worst_of(x.verdict for x in report.gate) if report.gate else "none"
    if variant is not None:
        row = _timing(report, variant)
        difference, low = _difference(report, variant)
        values |= {
            "speedup": _plain(None if row is None else row.speedup),
            "quality-delta": _plain(difference),
            "quality-interval-low": _plain(low),
            "size-mb": _plain(variant.onnx_bytes / 1e6),
        }
    return "".join(f"{name}={value}\n" for name, value in values.items())


def _shown(report: Report) -> Iterator[str]:
    """The speed-up and the difference in quality with its interval, in few characters.

    A speed-up whose interval reaches below 1 has its interval, too.
    """
    variant, metric = facts.headline(report), facts.primary_metric(report)
    if variant is None:
        return
    row = _timing(report, variant)
    if row is not None:
        yield f"{numbers.fixed(row.speedup, 2) if facts.pays(row) else phrases.speedup(row)}x"
    found = facts.comparison(variant, metric)
    if metric is not None and found is not None:
        label = numbers.printable(facts.metric_style(metric).label)[:40]
        yield f"{label} {phrases.change(found)}"


def _timing(report: Report, variant: Variant) -> Timing | None:
    rows = facts.with_speedup(report, variant)
    ruled = [
        outcome.rule.rpartition("@")[2]
        for outcome in report.gate
        if outcome.variant == variant.name and outcome.rule.startswith(f"{MinSpeedupRule.option} ")
    ]
    asked = [row for row in rows if str(row.batch_size) in ruled]
    return next(iter(asked), rows[-1] if rows else None)


def _difference(report: Report, variant: Variant) -> tuple[float | None, float | None]:
    """In the main metric, with the lower end of its confidence interval; none at its floor."""
    found = facts.comparison(variant, facts.primary_metric(report))
    if found is None or found.at_floor:
        return None, None
    bounds = facts.bounds(report, variant, found)
    return found.difference, None if bounds is None else bounds[0]


def _quality(report: Report, variant: Variant) -> Iterator[dict[str, Any]]:
    for metric in facts.metrics(report):
        score = facts.value(variant, metric)
        found, style = facts.comparison(variant, metric), facts.metric_style(metric)
        bounds = None if found is None else facts.bounds(report, variant, found)
        more = {} if bounds is None else {"extra": f"against dense {_range(bounds)}"}
        yield _entry(variant, style.label, style.unit or "points", score) | more


def _speedups(report: Report, variant: Variant) -> Iterator[dict[str, Any]]:
    for row in facts.timings(report, variant.name):
        more = {} if row.speedup_interval is None else {"range": _range(row.speedup_interval)}
        yield _entry(variant, f"speed-up at batch {row.batch_size}", "x", row.speedup) | more


def _range(bounds: tuple[float, float]) -> str:
    return f"{numbers.fixed(bounds[0], 2)} to {numbers.fixed(bounds[1], 2)}"


def _entry(variant: Variant, what: str, unit: str, value: float | None) -> dict[str, Any]:
    name = numbers.printable(f"{variant.name}: {what}")[:200]
    return {"name": name, "unit": numbers.printable(unit), "value": value}


def _plain(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.6g}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


_BADGE = rf'\{{\s*"schemaVersion": 1,\s*"label": "{LABEL}"'
_ENTRIES = r'\[\s*(?:\]|\{\s*"name":)'
BADGE = ReportFormat("badge.json", render_badge, _BADGE, for_ci=True)
BENCHMARK_BIGGER = ReportFormat("benchmark-bigger.json", render_bigger, _ENTRIES, for_ci=True)
BENCHMARK_SMALLER = ReportFormat("benchmark-smaller.json", render_smaller, _ENTRIES, for_ci=True)
OUTPUTS = ReportFormat("outputs.txt", render_outputs, "passed=", for_ci=True)
