"""Which precisions a model is exported in, and which of them an artifact runs by default."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compressor.errors import UsageError
from compressor.report import facts
from compressor.results import Throughput, Variant

BASE = "fp32"  # what every other precision is made from and compared with
PRECISIONS = (BASE, "fp16", "int8")
AUTO = "auto"
_ON = {"cpu": (BASE, "int8"), "cuda": (BASE, "fp16")}


def split_precisions(values: str | Sequence[str]) -> list[str]:
    """Names from a comma list, or from several.

    Raises:
        UsageError: an unknown name, one given twice, or `auto` beside others.
    """
    texts = [values] if isinstance(values, str) else values
    names = [name.strip() for text in texts for name in str(text).split(",")]
    given = ",".join(names)
    for name in names:
        if name not in (*PRECISIONS, AUTO):
            raise UsageError(
                f"--precision {given}: {name!r} is unknown; use {', '.join(PRECISIONS)} or {AUTO}"
            )
    if len(set(names)) < len(names):
        raise UsageError(f"--precision {given} names one twice; give each once")
    if AUTO in names and len(names) > 1:
        raise UsageError(f"--precision {given}: {AUTO} stands alone; leave out the others")
    return names


def made_precisions(names: Sequence[str], device: str) -> tuple[str, ...]:
    """The precisions to export, float32 first.

    Args:
        names: as `split_precisions` returns them.
        device: `cpu` or `cuda`, where the run measures.

    Raises:
        UsageError: float32 is not among them, or one that the device has no kernels for.
    """
    wanted = _ON[device] if list(names) == [AUTO] else tuple(names)
    text = ",".join(wanted)
    if BASE not in wanted:
        raise UsageError(
            f"--precision {text} lacks {BASE}, which the others are made from and compared with; "
            f"write --precision {BASE},{text}"
        )
    if "int8" in wanted and device == "cuda":
        raise UsageError(
            f"--precision {text}: int8 graphs are for the CPU; leave int8 out, or use --device cpu"
        )
    return (BASE, *(name for name in wanted if name != BASE))


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
        if build.precision in _ON[throughput.device]:
            sound += [build] if within_tolerance(build) and keeps_quality(build) else []

    def speed(build: Variant) -> float:
        rows = [row for row in throughput.rows if row.variant == build.name]
        return sum(math.log(row.sentences_per_second) for row in rows) / max(len(rows), 1)

    return max(sound, key=speed).precision
