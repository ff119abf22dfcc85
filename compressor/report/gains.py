"""The timings of a report, and what a build gains over dense ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from compressor.report import facts
from compressor.report.schema import Report
from compressor.steps.results import Interval, Timing, Variant

Gain = Literal["faster", "same", "slower", "unknown"]


def timings(report: Report, name: str) -> list[Timing]:
    """One model's timings by ascending batch size."""
    rows = report.throughput.rows if report.throughput else []
    return sorted((row for row in rows if row.variant == name), key=lambda row: row.batch_size)


def all_timings(report: Report) -> list[Timing]:
    """Every timing, by model in the report's order, then by ascending batch size."""
    return [row for model in facts.models(report) for row in timings(report, model.name)]


def with_speedup(report: Report, variant: Variant) -> list[Timing]:
    """A variant's timings that were compared with the dense model's."""
    return [row for row in timings(report, variant.name) if row.speedup is not None]


def fastest(report: Report, builds: Sequence[Variant]) -> list[Timing]:
    """The timing with the largest gain over the fastest dense build, for each batch size.

    Only where several engines were timed; `gains_over_fastest` knows the others, too.
    """
    best: dict[int, Timing] = {}
    rows = [row for build in builds for row in timings(report, build.name) if row.fastest_speedup]
    for row in sorted(rows, key=lambda row: -(row.fastest_speedup or 0.0)):
        best.setdefault(row.batch_size, row)
    return [best[size] for size in sorted(best)]


@dataclass(frozen=True)
class FastestGain:
    """How fast a build is beside the fastest dense build, of any precision and engine."""

    build: str
    dense: str  # the fastest dense build at this batch size
    batch_size: int
    ratio: float  # of sentences per second
    interval: Interval | None  # 95 %; only where it was measured


def gain_over_fastest(report: Report, row: Timing) -> FastestGain | None:
    """A timing beside the fastest dense build's; None where only one dense build was timed.

    Where several engines were timed it is stored with its interval; else it follows from the
    rates, which were measured in turns.
    """
    names = [build.name for build in facts.builds(report, report.dense)]
    timed = [row for row in all_timings(report) if row.variant in names]
    rates = {x.variant: x.sentences_per_second for x in timed if x.batch_size == row.batch_size}
    if len(rates) < 2:
        return None
    dense = row.fastest or max(rates, key=rates.__getitem__)
    if row.fastest_speedup is not None:
        ratio, interval = row.fastest_speedup, row.fastest_speedup_interval
    elif dense in rates and rates[dense] > 0:
        ratio, interval = row.sentences_per_second / rates[dense], None
    else:
        return None
    return FastestGain(row.variant, dense, row.batch_size, ratio, interval)


def gains_over_fastest(report: Report, variant: Variant) -> list[FastestGain]:
    """The largest gain of a model's `facts.sound_builds`, by batch size."""
    best: dict[int, FastestGain] = {}
    for build in facts.sound_builds(report, variant):
        for row in timings(report, build.name):
            gain = gain_over_fastest(report, row)
            known = best.get(row.batch_size)
            if gain and (known is None or gain.ratio > known.ratio):
                best[row.batch_size] = gain
    return [best[size] for size in sorted(best)]


def batch_sizes(report: Report) -> list[int]:
    """Batch sizes that were measured, ascending."""
    return sorted({row.batch_size for row in report.throughput.rows}) if report.throughput else []


def gain(timing: Timing) -> Gain:
    """Whether the speed-up's whole interval (without one, the speed-up) is above or below 1.

    The lower end is compared as it is printed, with two decimals: `[1.00, 1.04]` is not above 1.
    """
    if timing.speedup is None or math.isnan(timing.speedup):
        return "unknown"
    low, high = timing.speedup_interval or (timing.speedup, timing.speedup)
    return "faster" if round(low, 2) > 1 else "slower" if high < 1 else "same"


def pays(timing: Timing) -> bool:
    """Whether a model is faster than the dense one, beyond its interval."""
    return gain(timing) == "faster"
