"""What an artifact runs where no precision and no engine is named, by what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compressor.export.exported import pruned_engines
from compressor.export.precision_names import ON_DEVICE
from compressor.report import facts
from compressor.steps.results import Throughput, Variant
from compressor.steps.values import DENSE
from compressor.storage.names import BASE, ONNXRUNTIME


def choose_defaults(builds: Sequence[Variant], throughput: Throughput | None) -> list[Variant]:
    """The pruned models, each marked whether its artifact runs it where no precision is named."""
    marked = []
    for build in builds:
        family = [x for x in builds if x.family == build.family and x.engine == ONNXRUNTIME]
        is_served = build.family != DENSE and build in family
        default = is_served and build.precision == choose_default(family, throughput)
        marked.append(build.model_copy(update={"default": default}))
    return marked


def choose_default(builds: Sequence[Variant], throughput: Throughput | None) -> str:
    """The precision that an artifact runs where none is named, of a model's builds, float32 first.

    The fastest of those that are for the device, met their tolerance and lose no quality
    significantly against float32; without test rows or timings float32.
    """
    base, *others = builds
    if throughput is None:
        return base.precision
    sound = [
        build
        for build in others
        # fp16 is computed in float32 on most CPUs: there it can be faster by luck alone.
        if build.precision in ON_DEVICE[throughput.device]
        and all(check.is_met for check in build.checks)
        and facts.keeps_quality(build)
    ]
    return _fastest([base, *sound], throughput).precision


def _fastest(builds: Sequence[Variant], throughput: Throughput) -> Variant:
    """By the geometric mean of sentences per second over all batch sizes."""

    def speed(build: Variant) -> float:
        rows = [row for row in throughput.rows if row.variant == build.name]
        return sum(math.log(row.sentences_per_second) for row in rows) / max(len(rows), 1)

    return max(builds, key=speed)


def fastest_engines(builds: Sequence[Variant], throughput: Throughput | None) -> dict[str, str]:
    """Precision -> the engine that `engine="auto"` stands for.

    The fastest build of one model, of those that lose no quality significantly against float32;
    none where no other engine than onnxruntime was timed.
    """
    served = set(pruned_engines([build.engine for build in builds]))
    builds = [build for build in builds if build.engine in served]
    if throughput is None or len({build.engine for build in builds}) == 1:
        return {}
    sound: dict[str, list[Variant]] = {}
    for build in builds:
        if build.precision == BASE or build.engine == ONNXRUNTIME or facts.keeps_quality(build):
            sound.setdefault(build.precision, []).append(build)
    return {precision: _fastest(same, throughput).engine for precision, same in sound.items()}
