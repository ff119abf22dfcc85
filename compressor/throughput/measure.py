"""Timing of several models in turns, on the same batches, in one process.

A machine's speed drifts (clock, temperature, other processes) by more than the gain of pruning, so
models are not timed one after the other: in each pass every model has a turn, in an order that
rotates, and models are compared within passes.

A turn is all batches, one after the other, and begins with calls that are not timed: they bring the
model's weights back into the processor's caches, where they stay when a model serves alone. Models
that alternate call by call evict each other's weights.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from compressor.throughput.workloads import Batch, Workload

Run = Callable[[Batch], object]
Samples = dict[tuple[str, int], list[float]]

# A turn's calls that are not timed: until so much time has passed, or so many calls were made and
# every batch has run. Then times are those of a process with one model alone (see docs/speed.md).
UNTIMED_SECONDS, UNTIMED_CALLS = 0.05, 8


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
    """Time every subject on every workload, in turns.

    Per workload: each subject is warmed up with at least `warmup` calls and at least one per
    batch; then passes follow, in each of which every subject runs all batches. They end once every
    subject has had `min_runs` calls and `min_passes` passes, and all together `min_seconds` for
    each of them. The garbage collector is off meanwhile.

    Args:
        subjects: name -> a call that runs one batch and returns when it is done.
        workloads: of distinct batch sizes.
        warmup: calls before the timing, per subject and workload.
        min_runs: calls that are timed, per subject and workload.
        min_seconds: their sum, per subject and workload, in the mean over the subjects: a fast
            model's would let slow ones run a hundred times as long.
        min_passes: passes over all batches of a workload.
        progress: called with a line of text per workload.
        clock: returns seconds, monotonic.

    Returns:
        (subject, batch size) -> seconds of every timed call. Entry i of every subject of a workload
        is of batch i modulo the number of batches, in the same pass.
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
            seconds = _passes(subjects, batches, min_runs, min_seconds, min_passes, clock)
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


def seconds_of_pass(run: Run, batches: Sequence[Batch], passes: int = 5) -> float:
    """The time of some batches: the sum of their medians over passes, after one to warm up."""
    clock, seconds = time.perf_counter, list[list[float]]()
    for _ in range(passes + 1):
        seconds.append([])
        for batch in batches:
            start = clock()
            run(batch)
            seconds[-1].append(clock() - start)
    return sum(median(times) for times in zip(*seconds[1:], strict=True))


def _passes(
    subjects: Mapping[str, Run],
    batches: Sequence[Batch],
    min_runs: int,
    min_seconds: float,
    min_passes: int,
    clock: Callable[[], float],
) -> dict[str, list[float]]:
    """Time the passes of one workload; subject -> seconds of its timed calls."""
    names = list(subjects)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    passes = 0
    while (
        passes < min_passes
        or passes * len(batches) < min_runs
        or sum(map(sum, seconds.values())) < min_seconds * len(names)
    ):
        first = passes % len(names)
        for name in names[first:] + names[:first]:
            seconds[name] += _turn(subjects[name], batches, clock)
        passes += 1
    return seconds


def _turn(run: Run, batches: Sequence[Batch], clock: Callable[[], float]) -> list[float]:
    """Seconds of each batch, after calls that are not timed."""
    begun = clock()
    for call in range(max(UNTIMED_CALLS, len(batches))):
        run(batches[call % len(batches)])
        if clock() - begun >= UNTIMED_SECONDS:
            break
    seconds = []
    for batch in batches:
        start = clock()
        run(batch)
        seconds.append(clock() - start)
    return seconds
