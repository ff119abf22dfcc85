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


def change(compared: Comparison) -> str:
    """`-0.31 [-0.62, +0.01]`: the difference with its interval."""
    style = facts.metric_style(compared.metric)
    return f"{style.difference(compared.difference)} {style.interval(compared.interval)}"


def shared_rows(shared: int, total: int) -> str:
    """`3 of 24 test rows are calibration rows too, so …`, without the final full stop."""
    are = "is a calibration row" if shared == 1 else "are calibration rows"
    return f"{shared:,} of {total:,} test rows {are} too, so the loss on new text can be greater"
