"""Phrases that sentences, tables and messages share."""

from __future__ import annotations

from collections.abc import Sequence

from compressor.model.sublayers import layer_of
from compressor.report import facts, numbers
from compressor.results import Comparison, Timing, Variant


def join(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))


def units(variant: Variant) -> str:
    """`72 of 144 heads (50%)`; `72 of 144 heads (50%) and 96 of 288 neurons (33%)`.

    Neurons are mentioned where some were removed; `all 144 heads` where only neurons were. After
    whole layers were dropped ` in 10 of 12 layers` follows.
    """
    text = _kept(variant, "heads")
    if facts.lost_neurons(variant):
        text += f" and {_kept(variant, 'neurons')}"
    if variant.dropped_layers:
        total = len({layer_of(name) for name in variant.heads})
        text += f" in {total - len(variant.dropped_layers)} of {total} layers"
    return text


def _kept(variant: Variant, which: str) -> str:
    kept, total = facts.kept(variant, which), facts.total(variant, which)
    if kept == total and which not in facts.lost(variant):
        return f"all {total:,} {which}"
    return f"{kept:,} of {total:,} {which} ({numbers.percent(kept, total)})"


def work(variant: Variant) -> str:
    """`52% of the multiply-adds`, where neurons were removed; else empty."""
    if not facts.lost_neurons(variant):
        return ""
    return f"{numbers.percent(variant.macs_share, 1)} of the multiply-adds"


def speedup(timing: Timing) -> str:
    """`0.99 [0.97, 1.01]`; just the ratio where there is no interval."""
    return ratio(timing.speedup, timing.speedup_interval)


def ratio(value: float | None, interval: tuple[float, float] | None) -> str:
    """A speed-up with its interval, if it has one: `0.99 [0.97, 1.01]`."""
    shown = numbers.fixed(value, 2)
    return shown if interval is None else f"{shown} {numbers.interval(interval, 2)}"


def change(found: Comparison) -> str:
    """`-0.31 [-0.62, +0.01]`: the difference with its interval."""
    style = facts.metric_style(found.metric)
    return f"{style.difference(found.difference)} {style.interval(found.interval)}"


def quality(found: Comparison) -> str:
    """`BLEU 33.90 against 34.21 (-0.31 [-0.62, +0.01], p = 0.062): no significant difference`."""
    style = facts.metric_style(found.metric)
    verdict = facts.JUDGMENT_WORDS[facts.judge(found)]
    return (
        f"{style.label} {style.with_unit(found.pruned)} against {style.with_unit(found.dense)} "
        f"({change(found)}, {numbers.p_equation(found.p_value)}): {verdict}"
    )


def shared_rows(shared: int, total: int) -> str:
    """`3 of 24 test rows are calibration rows too, so …`, without the final full stop."""
    are = "is a calibration row" if shared == 1 else "are calibration rows"
    return f"{shared:,} of {total:,} test rows {are} too, so the loss on new text can be greater"
