"""A model in one sentence: how much faster and smaller it is, for what difference in quality."""

from __future__ import annotations

from collections.abc import Sequence

from compressor.report import facts, numbers, phrases
from compressor.report.schema import Report
from compressor.results import Timing, Variant


def in_short(report: Report, variant: Variant) -> str | None:
    """`In short: 2.5 to 3.6 times as fast and 5.2 times smaller for -0.70 BLEU [-1.80, +0.60]; …`.

    It ends with what the dense model gains in the same low precision (of a float32 model: in the
    usual one of the device). None where the model was not timed or not compared.
    """
    own = _gains(report, variant)
    if own is None:
        return None
    alone = f"dense {_low_precision(report, variant)} alone"
    dense = _gains(report, _dense_build(report, variant))
    return f"In short: {own}; {alone} {f'is {dense}' if dense else 'was not measured'}."


def _low_precision(report: Report, variant: Variant) -> str:
    if variant.precision != report.dense.precision:
        return variant.precision
    timed = report.throughput
    return "fp16" if timed is not None and timed.device == "cuda" else "int8"


def _dense_build(report: Report, variant: Variant) -> Variant | None:
    wanted = _low_precision(report, variant)
    builds = facts.precisions(report, report.dense)
    return next((build for build in builds if build.precision == wanted), None)


def _gains(report: Report, variant: Variant | None) -> str | None:
    """How fast, how large, and at what difference in quality; None if not all was measured."""
    if variant is None:
        return None
    rows = facts.with_speedup(report, variant)
    compared = facts.comparison(variant, facts.primary_metric(report))
    if not rows or compared is None or facts.judge(compared) == "unknown":
        return None
    smaller = report.dense.onnx_bytes / variant.onnx_bytes
    size = f"{numbers.fixed(smaller, 1)} times smaller" if round(smaller, 1) > 1 else "not smaller"
    style = facts.metric_style(compared.metric)
    what = f"points of {style.label}" if style.unit == "%" else style.label
    return (
        f"{_speed(rows)} and {size} for {style.difference(compared.difference)} {what} "
        f"{style.interval(compared.interval)}"
    )


def _speed(rows: Sequence[Timing]) -> str:
    """`2.5 to 3.6 times as fast`: all that the intervals of the batch sizes allow.

    An interval that reaches below 1 shows no gain, and is told as it is.
    """
    faster = [row for row in rows if facts.pays(row)]
    parts = []
    if faster:
        bounds = [row.speedup_interval or (row.speedup or 0.0,) * 2 for row in faster]
        low, high = min(x for x, _ in bounds), max(x for _, x in bounds)
        ends = dict.fromkeys(numbers.fixed(end, 1) for end in (low, high))
        parts.append(f"{' to '.join(ends)} times as fast")
        if len(faster) < len(rows):
            parts[0] += f" at batch {phrases.join([str(row.batch_size) for row in faster])}"
    for gain, what in _NO_GAIN.items():
        same = [row for row in rows if facts.gain(row) == gain]
        if same:
            found = [f"{row.batch_size} ({phrases.speedup(row)})" for row in same]
            parts.append(f"{what} at batch {phrases.join(found)}")
    return ", ".join(parts)


_NO_GAIN: dict[facts.Gain, str] = {
    "same": "with no measurable gain in speed",
    "slower": "slower",
    "unknown": "without a usable speed-up",
}
