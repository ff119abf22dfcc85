"""From raw times to sentences per second, latency percentiles and speed-ups with intervals.

Estimates are medians: one stall of the machine changes a mean by more than the gain of pruning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compressor.results import Timing
from compressor.throughput.measure import Samples, Workload

Array = NDArray[np.float64]

RESAMPLES = 1000
_DRAWS_PER_CHUNK = 2_000_000  # bounds the memory that very long runs take


def summarize(
    samples: Samples,
    workloads: Sequence[Workload],
    macs_ratios: Mapping[tuple[str, int], float] | None = None,
    *,
    peak_memory_mib: Mapping[tuple[str, int], float | None] | None = None,
    reference: str = "dense",
    seed: int = 0,
) -> list[Timing]:
    """One row per model and batch size, models in the order of `samples`, batch sizes ascending.

    Speed-ups are relative to `reference`, which has none itself. The ratios (multiply-adds of the
    reference over the model's) and the memory are by model and batch size.
    """
    rows = []
    for name in dict.fromkeys(name for name, _ in samples):
        for load in sorted(workloads, key=lambda load: load.batch_size):
            key = (name, load.batch_size)
            base, seconds = (_passes(samples, x, load) for x in (reference, name))
            speedup, interval = speedup_of(base, seconds, seed=seed)
            pass_seconds = float(np.median(base, axis=0).sum()) / speedup
            more: dict[str, Any] = {"peak_memory_mib": (peak_memory_mib or {}).get(key)}
            if name != reference:
                more |= {"speedup": speedup, "speedup_interval": interval}
                more["macs_ratio"] = (macs_ratios or {}).get(key)
            rate = load.batch_size * len(load.batches) / pass_seconds
            p50, p90, p99 = (float(1000.0 * np.percentile(seconds, x)) for x in (50, 90, 99))
            timing = Timing(
                variant=name, batch_size=load.batch_size, runs=seconds.size,
                source_tokens=load.source_tokens, padded_source_tokens=load.padded_source_tokens,
                target_tokens=load.target_tokens, sentences_per_second=rate,
                tokens_per_second=rate * (load.target_tokens or load.source_tokens),
                latency_ms={"p50": p50, "p90": p90, "p99": p99}, **more,
            )  # fmt: skip
            rows.append(timing)
    return rows


def against_dense(
    timings: Sequence[Timing],
    samples: Samples,
    workloads: Sequence[Workload],
    engines: Mapping[str, str],
    dense: Sequence[str],
    seed: int = 0,
) -> list[Timing]:
    """The timings of several engines, with each model's speed-up over builds of the dense model.

    These are its fastest build of any engine, and in the same engine the first one.
    """
    by_size = {workload.batch_size: workload for workload in workloads}
    rate = {(row.variant, row.batch_size): row.sentences_per_second for row in timings}

    def gain(row: Timing, reference: str, what: str) -> dict[str, Any]:
        load = by_size[row.batch_size]
        base, seconds = (_passes(samples, name, load) for name in (reference, row.variant))
        ratio, interval = speedup_of(base, seconds, seed=seed)
        return {f"{what}_speedup": ratio, f"{what}_speedup_interval": interval}

    compared = []
    for row in timings:
        fastest = max(dense, key=lambda name: rate[name, row.batch_size], default=None)
        more: dict[str, Any] = {}
        if fastest is not None:
            more = {"fastest": fastest} | gain(row, fastest, "fastest")
            same = [name for name in dense if engines[name] == engines[row.variant]]
            more |= gain(row, same[0], "engine") if same else {}
        compared.append(row.model_copy(update=more))
    return compared


def speedup_of(
    reference: Array, seconds: Array, *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, tuple[float, float]]:
    """Speed-up over the reference and its 95 % bootstrap interval.

    Times are [passes, batches]; entries at the same place are of the same round, and paired. Rounds
    are drawn within each batch, because batches have different weights.
    """
    passes, batches = seconds.shape
    generator = np.random.default_rng(seed)
    each = np.arange(batches)
    values: list[float] = []
    while len(values) < resamples:
        count = min(resamples - len(values), max(1, _DRAWS_PER_CHUNK // seconds.size))
        drawn = generator.integers(passes, size=(count, passes, batches))  # a pass per entry
        values.extend(_speedup(reference[drawn, each], seconds[drawn, each]))
    low, high = np.quantile(values, [0.025, 0.975])
    return float(_speedup(reference, seconds)), (float(low), float(high))


def _speedup(reference: Array, seconds: Array) -> Array:
    """Speed-up on a whole pass, [...], from times [..., passes, batches] of both models.

    Batches differ in length, so each is estimated by itself: the reference's time is its median
    over the passes; a model's is that over the median of the ratios within rounds, in which drift
    slower than a round cancels. The speed-up is the ratio of the two sums.
    """
    level = np.median(reference, axis=-2)  # [..., batches]
    ratio = np.median(reference / seconds, axis=-2)  # [..., batches]
    return np.asarray(level.sum(axis=-1) / (level / ratio).sum(axis=-1))


def _passes(samples: Samples, name: str, load: Workload) -> Array:
    """One model's times as [passes, batches]."""
    return np.array(samples[name, load.batch_size], np.float64).reshape(-1, len(load.batches))
