"""Phrases that sentences, tables and messages share, outcomes of gate rules among them."""

from __future__ import annotations

from collections.abc import Sequence

from compressor.model.sublayers import layer_of
from compressor.report import facts, numbers
from compressor.report.schema import Report
from compressor.results import Comparison, Interval, Outcome, Throughput, Timing, Variant


def join(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))


def units(variant: Variant) -> str:
    """`72 of 144 heads (50%) and 96 of 288 neurons (33%) in 10 of 12 layers`.

    Neurons are mentioned if some were removed, layers if whole ones were dropped.
    """
    parts = []
    for which in ("heads", "neurons") if facts.lost_neurons(variant) else ("heads",):
        kept, total = facts.kept(variant, which), facts.total(variant, which)
        parts.append(f"{kept:,} of {total:,} {which} ({numbers.percent(kept, total)})")
    text = " and ".join(parts)
    if variant.dropped_layers:
        layers = len({layer_of(name) for name in variant.heads})
        text += f" in {layers - len(variant.dropped_layers)} of {layers} layers"
    return text


def kept(model: Variant, which: str) -> str:
    """`72/144`: units kept of units before."""
    return f"{facts.kept(model, which):,}/{facts.total(model, which):,}"


def ratio(value: float | None, interval: Interval | None) -> str:
    """A ratio with its interval, if it has one: `0.99 [0.97, 1.01]`."""
    shown = numbers.fixed(value, 2)
    return shown if interval is None else f"{shown} {numbers.interval(interval, 2)}"


def speedup(timing: Timing) -> str:
    return ratio(timing.speedup, timing.speedup_interval)


def over_fastest(row: Timing) -> str:
    """`1.25 [1.20, 1.30] at batch 16 (heads-50-int8 over dense-int8)`."""
    gained = ratio(row.fastest_speedup, row.fastest_speedup_interval)
    return f"{gained} at batch {row.batch_size} ({row.variant} over {row.fastest})"


def providers(throughput: Throughput) -> str:
    """What ran the builds, each with the CUDA graphs that it had captured at the end."""
    last = {row.variant: row.provider or throughput.provider for row in throughput.rows}
    builds = {ran: [name for name in last if last[name] == ran] for ran in last.values()}
    if len(builds) < 2:
        return next(iter(builds), throughput.provider)
    return "; ".join(f"{ran} ({join(names)})" for ran, names in builds.items())


def change(compared: Comparison) -> str:
    """`-0.31 [-0.62, +0.01]`: the difference with its interval."""
    style = facts.metric_style(compared.metric)
    return f"{style.difference(compared.difference)} {style.interval(compared.interval)}"


def shared_rows(shared: int, total: int) -> str:
    """`3 of 24 test rows are calibration rows too, so …`, without the final full stop."""
    are = "is a calibration row" if shared == 1 else "are calibration rows"
    return f"{shared:,} of {total:,} test rows {are} too, so the loss on new text can be greater"


def outcome_result(outcome: Outcome) -> str:
    """`passed`, `FAILED`, or `inconclusive, counts as FAILED`."""
    met = "passed" if outcome.met else "FAILED"
    return f"inconclusive, counts as {met}" if outcome.verdict == "inconclusive" else met


def outcome_line(outcome: Outcome) -> str:
    """One rule's outcome for one artifact, with the numbers."""
    return numbers.printable(f"{outcome_result(outcome)}  {outcome.variant}: {outcome.message}")


def gate_sentence(report: Report) -> str:
    """How many checks of the gate are met; empty without rules."""
    if not report.gate:
        return ""
    met = sum(outcome.met for outcome in report.gate)
    unclear = sum(outcome.verdict == "inconclusive" for outcome in report.gate)
    which = f" ({unclear} inconclusive)" if unclear else ""
    return f"Gate: {met} of {len(report.gate)} checks met{which}."
