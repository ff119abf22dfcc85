"""From raw times to sentences per second, latency percentiles and speed-ups with intervals.

A workload is run in passes, in each of which every model runs all batches (`measure`). Batches
differ in length and passes in disturbances, so each batch is estimated apart:

- time of the reference model on a batch: median over the passes;
- a model's speed-up on a batch: median over the passes of reference time / its time, both of the
  same pass. Drift slower than a pass cancels, and a single disturbed run does not move a median;
- a model's time on that batch: the reference's time over its speed-up.

Sentences per second are the sentences of a pass over the sum of these times. The speed-up is the
ratio of two such sums, and so exactly the ratio of the sentences per second.

The 95 % interval is the percentile interval over bootstrap draws of passes, drawn jointly for all
batches and both models: what disturbs a model's turn slows down several of its batches.
Estimates based on means were rejected: one stall of the machine changes them by more than the gain
of pruning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compressor.steps.results import Timing
from compressor.throughput.measure import Samples
from compressor.throughput.workloads import Workload

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

    Args:
        samples: the result of `measure` for the workloads.
        workloads: those that were measured.
        macs_ratios: (model, batch size) -> multiply-adds of the reference over the model's.
        peak_memory_mib: (model, batch size) -> peak memory in MiB, None where it is unknown.
        reference: the model that speed-ups are relative to; it has none itself.
        seed: of the bootstrap.
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
                variant=name,
                batch_size=load.batch_size,
                runs=seconds.size,
                source_tokens=load.source_tokens,
                padded_source_tokens=load.padded_source_tokens,
                target_tokens=load.target_tokens,
                sentences_per_second=rate,
                tokens_per_second=rate * (load.target_tokens or load.source_tokens),
                latency_ms={"p50": p50, "p90": p90, "p99": p99},
                **more,
            )
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

    These are the fastest build of any engine at that batch size, and the first one in the same
    engine.

    Args:
        timings: the result of `summarize` for the samples.
        samples: the result of `measure` for the workloads.
        workloads: those that were measured.
        engines: model -> engine.
        dense: builds of the dense model; of each engine the one to compare with comes first.
        seed: of the bootstrap.
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

    Args:
        reference: seconds of the reference, [passes, batches].
        seconds: of the model, in the same shape; entries at the same place are of the same pass.
        resamples: draws of passes.
        seed: of the draws.

    Returns:
        The speed-up, and (low, high).
    """
    passes = len(seconds)
    generator = np.random.default_rng(seed)
    values: list[float] = []
    while len(values) < resamples:
        count = min(resamples - len(values), max(1, _DRAWS_PER_CHUNK // seconds.size))
        drawn = generator.integers(passes, size=(count, passes))
        values.extend(_speedup(reference[drawn], seconds[drawn]))
    low, high = np.quantile(values, [0.025, 0.975])
    return float(_speedup(reference, seconds)), (float(low), float(high))


def _speedup(reference: Array, seconds: Array) -> Array:
    """Speed-up on a whole pass, [...], from times [..., passes, batches] of both models.

    Batches differ in length, so each is estimated by itself: the reference's time is its median
    over the passes; a model's is that over the median of the ratios within passes, in which drift
    slower than a pass cancels. The speed-up is the ratio of the two sums.
    """
    level = np.median(reference, axis=-2)  # [..., batches]
    ratio = np.median(reference / seconds, axis=-2)  # [..., batches]
    return np.asarray(level.sum(axis=-1) / (level / ratio).sum(axis=-1))


def _passes(samples: Samples, name: str, load: Workload) -> Array:
    """One model's times as [passes, batches]."""
    return np.array(samples[name, load.batch_size], np.float64).reshape(-1, len(load.batches))
