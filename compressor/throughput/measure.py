"""Batches to time, and interleaved timing of several models on them, in one process.

A machine's speed drifts (clock, temperature, other processes) by more than the gain of pruning, so
each round runs every model once on the same batch, and models are compared within rounds.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.text import Encoded

Batch = dict[str, NDArray[np.int64]]
Lengths = Literal["data"] | int
Run = Callable[[Batch], object]
Samples = dict[tuple[str, int], list[float]]


@dataclass(frozen=True)
class Workload:
    """Batches of one size; token counts are means per row."""

    batch_size: int
    batches: list[Batch]
    source_tokens: float
    padded_source_tokens: float
    target_tokens: float = 0.0  # that each row generates; 0 if the model does not generate

    @classmethod
    def of(cls, batches: list[Batch]) -> Workload:
        """From batches of one size that hold an `attention_mask` [rows, tokens]."""
        masks = [batch["attention_mask"] for batch in batches]
        rows = sum(len(mask) for mask in masks)
        return cls(
            batch_size=len(masks[0]),
            batches=batches,
            source_tokens=sum(int(mask.sum()) for mask in masks) / rows,
            padded_source_tokens=sum(mask.size for mask in masks) / rows,
        )


def make_workloads(
    rows: Sequence[Encoded],
    batch_sizes: Sequence[int],
    collate: Callable[[list[Encoded]], Batch],
    *,
    lengths: Lengths = "data",
    seed: int = 0,
) -> list[Workload]:
    """One workload per batch size, each of 4 to 16 batches (about 32 rows, if that suffices).

    Rows keep the data's order. Of more rows than needed a random sample is taken; fewer rows are
    repeated from the start. `lengths` other than `data` are the number of tokens that every row is
    truncated or extended to; its last token (a special one) stays the last.
    """
    if lengths != "data":
        whole, rows = rows, []
        for row in whole:
            inner, last = max(1, len(row) - 1), len(row) - 1
            places = [index % inner for index in range(lengths - 1)] + [last]
            rows.append(Encoded([row[i] for i in places], [row.type_ids[i] for i in places]))
    workloads = []
    for size in batch_sizes:
        # Enough batches for a typical mix of lengths, few enough to repeat each several times.
        wanted = size * min(16, max(4, ceil(32 / size)))
        chosen = [index % len(rows) for index in range(wanted)]
        if len(rows) >= wanted:
            sample = np.random.default_rng(seed).choice(len(rows), size=wanted, replace=False)
            chosen = [int(index) for index in np.sort(sample)]
        batches = [
            collate([rows[index] for index in chosen[start : start + size]])
            for start in range(0, wanted, size)
        ]
        workloads.append(Workload.of(batches))
    return workloads


def measure(
    subjects: Mapping[str, Run],
    workloads: Sequence[Workload],
    *,
    warmup: int = 10,
    min_runs: int = 20,
    min_seconds: float = 2.0,
    min_passes: int = 5,  # a batch's time is a median over them; disturbances move that of fewer
    progress: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Samples:
    """Seconds of every call, by subject and batch size, interleaved.

    Per workload: each subject is warmed up with at least `warmup` calls and at least one per
    batch; then rounds follow, one batch each, cycling over the batches. Rounds end after a whole
    number of passes over the batches, once every subject has had `min_runs` calls, `min_seconds`
    in total and `min_passes` passes. Entry i of every subject of a workload belongs to round i,
    which ran batch i modulo the number of batches. The garbage collector is off meanwhile.

    Args:
        subjects: name -> a call that runs one batch and returns when it is done.
        workloads: of distinct batch sizes.
    """
    samples: Samples = {}
    for workload in workloads:
        batches = workload.batches
        # Every batch at least once: memory arenas and the choice of kernels depend on its shape.
        for number in range(max(warmup, len(batches))):
            for run in subjects.values():
                run(batches[number % len(batches)])
        was_enabled = gc.isenabled()
        gc.collect()
        gc.disable()
        try:
            seconds = _rounds(subjects, batches, min_runs, min_seconds, min_passes, clock)
        finally:
            if was_enabled:
                gc.enable()
        for name, values in seconds.items():
            samples[name, workload.batch_size] = values
        if progress:
            runs = len(next(iter(seconds.values())))
            times = ", ".join(f"{name} {1000 * median(x):.1f} ms" for name, x in seconds.items())
            progress(f"batch size {workload.batch_size}: {times} (medians of {runs} runs)")
    return samples


def _rounds(
    subjects: Mapping[str, Run],
    batches: Sequence[Batch],
    min_runs: int,
    min_seconds: float,
    min_passes: int,
    clock: Callable[[], float],
) -> dict[str, list[float]]:
    names = list(subjects)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    passes = 0
    while (
        passes < min_passes
        or passes * len(batches) < min_runs
        or min(sum(values) for values in seconds.values()) < min_seconds
    ):
        for number, batch in enumerate(batches):
            # The order rotates by one per round and once more per pass. Without the latter, each
            # batch would always have the same order if batches are a multiple of models.
            first = (passes * (len(batches) + 1) + number) % len(names)
            for name in names[first:] + names[:first]:
                start = clock()
                subjects[name](batch)
                seconds[name].append(clock() - start)
        passes += 1
    return seconds
