"""Phrases that sentences, tables and messages share, outcomes of gate rules among them."""

from __future__ import annotations

from collections.abc import Sequence

from compressor.model.sublayers import layer_of
from compressor.report import facts, numbers
from compressor.report.schema import Change, Report
from compressor.results import Comparison, Outcome, Timing, Variant


def join(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))


def units(variant: Variant) -> str:
    """`72 of 144 heads (50%)`; `72 of 144 heads (50%) and 96 of 288 neurons (33%)`.

    Neurons are mentioned if some were removed; then `all 144 heads` if heads were not. If whole
    layers were dropped, ` in 10 of 12 layers` follows.
    """
    parts = []
    for which in ("heads", "neurons") if facts.lost_neurons(variant) else ("heads",):
        kept, total = facts.kept(variant, which), facts.total(variant, which)
        if kept == total and which not in facts.lost(variant):
            parts.append(f"all {total:,} {which}")
        else:
            parts.append(f"{kept:,} of {total:,} {which} ({numbers.percent(kept, total)})")
    text = " and ".join(parts)
    if variant.dropped_layers:
        layers = len({layer_of(name) for name in variant.heads})
        text += f" in {layers - len(variant.dropped_layers)} of {layers} layers"
    return text


def kept(model: Variant, which: str) -> str:
    """`72/144`: units kept of units before."""
    return f"{facts.kept(model, which):,}/{facts.total(model, which):,}"


def macs(model: Variant) -> str:
    """The model's share of the dense model's multiply-adds, for example `52.1%`."""
    return numbers.percent(model.macs_share, 1, 1)


def speedup(timing: Timing) -> str:
    """`0.99 [0.97, 1.01]`; just the ratio if there is no interval."""
    return ratio(timing.speedup, timing.speedup_interval)


def ratio(value: float | None, interval: tuple[float, float] | None) -> str:
    """A ratio with its interval, if it has one: `0.99 [0.97, 1.01]`."""
    shown = numbers.fixed(value, 2)
    return shown if interval is None else f"{shown} {numbers.interval(interval, 2)}"


def over_fastest(row: Timing) -> str:
    """`1.25 [1.20, 1.30] at batch 16 (heads-50-int8 over dense-int8)`."""
    gained = ratio(row.fastest_speedup, row.fastest_speedup_interval)
    return f"{gained} at batch {row.batch_size} ({row.variant} over {row.fastest})"


def change(compared: Comparison) -> str:
    """`-0.31 [-0.62, +0.01]`: the difference with its interval."""
    style = facts.metric_style(compared.metric)
    return f"{style.difference(compared.difference)} {style.interval(compared.interval)}"


def shared_rows(shared: int, total: int) -> str:
    """`3 of 24 test rows are calibration rows too, so …`, without the final full stop."""
    are = "is a calibration row" if shared == 1 else "are calibration rows"
    return f"{shared:,} of {total:,} test rows {are} too, so the loss on new text can be greater"


def outcome_result(outcome: Outcome) -> str:
    """`passed`, `FAILED`, or `inconclusive, counts as failed`."""
    met = "passed" if outcome.met else "FAILED"
    if outcome.verdict == "inconclusive":
        return f"inconclusive, counts as {met}"
    return "passed" if outcome.verdict == "passed" else "FAILED"


def outcome_line(outcome: Outcome) -> str:
    """One rule's outcome for one artifact, with the numbers."""
    return numbers.printable(f"{outcome_result(outcome)}  {outcome.variant}: {outcome.message}")


def change_result(change: Change) -> str:
    """Whether a number got worse since an earlier run; sizes and counts need no test."""
    if change.interval is None and change.judgment != "unknown":
        return {"worse": "larger", "better": "smaller", "same": "unchanged"}[change.judgment]
    return facts.JUDGMENT_WORDS[change.judgment]


def change_line(change: Change) -> str:
    """One number beside that of an earlier run."""
    bounds = "" if change.interval is None else f" {numbers.interval(change.interval, 3)}"
    note = f" ({change.note})" if change.note else ""
    return numbers.printable(
        f"{change_result(change)}  {change.variant}: {change.what} {change.after:.6g}, earlier "
        f"{change.before:.6g}{bounds}{note}"
    )


def gate_sentence(report: Report) -> str | None:
    """How many gate rules are met; None without rules."""
    total = len(report.gate)
    unmet = sum(not outcome.met for outcome in report.gate)
    inconclusive = sum(outcome.verdict == "inconclusive" for outcome in report.gate)
    if total == 0:
        return None
    if total == 1:
        which = " (inconclusive)" if inconclusive else ""
        return f"The gate check is {'not met' if unmet else 'met'}{which}."
    which = f" ({inconclusive} inconclusive)" if inconclusive else ""
    if unmet:
        return f"{unmet} of {total} gate checks {'is' if unmet == 1 else 'are'} not met{which}."
    return f"All {total} gate checks are met{which}."
