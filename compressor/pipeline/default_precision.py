"""The precision that an artifact runs when none is named."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compressor.export.precision_names import ON_DEVICE
from compressor.report import facts
from compressor.results import Throughput, Variant


def within_tolerance(variant: Variant) -> bool:
    """Whether every check of a model met its tolerance; NaN does not."""
    return all(check.largest_difference <= check.tolerance for check in variant.checks)


def keeps_quality(build: Variant) -> bool:
    """Whether the test rows were answered, and no metric is significantly below float32's."""
    found = build.base_comparisons
    return bool(found) and all(facts.judge(c) in ("same", "better") for c in found)


def choose_default(builds: Sequence[Variant], throughput: Throughput | None) -> str:
    """The precision an artifact runs unless told otherwise.

    The fastest, by the geometric mean of its sentences per second over all batch sizes, of those
    that are for the device, met their tolerance and lose no quality significantly against float32.
    Without test rows or timings it is float32.

    Args:
        builds: one model in its precisions, float32 first.
    """
    base, *others = builds
    if throughput is None:
        return base.precision
    sound = [base]
    for build in others:
        # fp16 is computed in float32 on most CPUs: there it can be faster by luck alone.
        if build.precision in ON_DEVICE[throughput.device]:
            sound += [build] if within_tolerance(build) and keeps_quality(build) else []

    def speed(build: Variant) -> float:
        rows = [row for row in throughput.rows if row.variant == build.name]
        return sum(math.log(row.sentences_per_second) for row in rows) / max(len(rows), 1)

    return max(sound, key=speed).precision
