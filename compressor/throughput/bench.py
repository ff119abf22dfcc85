"""The whole measurement: artifacts in, timings and peak memory out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compressor.errors import UsageError
from compressor.results import Throughput
from compressor.runtime.vocabulary import count_output_tokens
from compressor.tasks import TASKS, Task
from compressor.throughput.measure import measure
from compressor.throughput.memory import measure_memory
from compressor.throughput.multiply_adds import WorkSize, ratio_of_multiply_adds
from compressor.throughput.plan import (
    BenchOptions,
    Subject,
    plan_workloads,
    precisions_of,
    retokenized_batches,
)
from compressor.throughput.shapes import shape_of
from compressor.throughput.statistics import against_dense, summarize
from compressor.throughput.workloads import Batch, Workload

if TYPE_CHECKING:
    from compressor.tasks.rows import Rows

Key = tuple[str, int]  # model, batch size


def benchmark(
    subjects: Sequence[Subject],
    *,
    rows: Rows,
    config: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Throughput:
    """Time artifacts of one model side by side; speed-ups are relative to the first.

    Models that generate make the same number of tokens for every row, so that shorter answers do
    not make a model look faster. With the checkpoint's `config` multiply-adds are counted, with
    several engines speed-ups over all dense models. The `options` are fields of `BenchOptions`.

    Raises:
        UsageError: settings that contradict each other or are impossible.
        InputError: an artifact cannot be read, or there are no rows.
        EnvironmentProblem: the device is not usable, or artifacts run on different providers.
    """
    task, chosen = TASKS[rows.task], BenchOptions(**options)
    _check_request(subjects, task, chosen.target_length)
    # The workloads are made with a runtime of their own: one that has run before is slower than a
    # fresh one, because its memory arena has grown, and the reference would be at a disadvantage.
    workloads, timed = plan_workloads(chosen.open(subjects[0], task), rows, chosen)
    runtimes = {subject.name: chosen.open(subject, task) for subject in subjects}
    retokenized = retokenized_batches(subjects, runtimes, workloads, rows, chosen)
    unnamed = [subject for subject in subjects if (subject.precision or chosen.precision) is None]
    precisions = precisions_of(runtimes, unnamed)
    ratios = {} if config is None else _ratios(task, subjects, config, workloads)
    peaks: dict[Key, float | None] = {}
    if chosen.memory:
        progress("measuring peak memory in fresh processes")
        peaks = _peaks(task, subjects, workloads, precisions, retokenized, timed.options, chosen)

    def run_of(name: str) -> Callable[[Batch], object]:
        runtime, batches = runtimes[name], retokenized.get(name, {})
        return lambda batch: runtime.compute(batches.get(id(batch), batch), **timed.options)

    runs = {name: run_of(name) for name in runtimes}
    samples = measure(runs, workloads, min_seconds=chosen.seconds, progress=progress)
    first = subjects[0].name
    timings = summarize(
        samples, workloads, ratios, peak_memory_mib=peaks, reference=first, seed=chosen.seed
    )
    engines = {name: runtime.engine for name, runtime in runtimes.items()}
    if len(set(engines.values())) > 1:
        dense = [subject.name for subject in subjects if subject.dense]
        timings = against_dense(timings, samples, workloads, engines, dense, chosen.seed)
    ran = {
        name: {"precision": x.precision, "engine": x.engine, "provider": x.ran_by}
        for name, x in runtimes.items()
    }
    return Throughput(
        provider=runtimes[first].provider,
        device=chosen.device,
        precision=", ".join(dict.fromkeys(precisions.values())),
        threads=chosen.runtime["threads"],
        lengths=chosen.source_lengths + timed.description,
        rows=[row.model_copy(update=ran[row.variant]) for row in timings],
    )


def _check_request(subjects: Sequence[Subject], task: Task, target: int | None) -> None:
    names = [subject.name for subject in subjects]
    if not names or len(set(names)) < len(names):
        raise UsageError(
            f"the models to time need distinct names, not {names}", id="names-not-distinct"
        )
    if target is not None and "--target-length" not in task.options:
        raise UsageError(
            f"models for {task.name} generate no tokens; leave the target length out",
            id="target-length-without-generation",
        )


def _peaks(
    task: Task,
    subjects: Sequence[Subject],
    workloads: Sequence[Workload],
    precisions: Mapping[str, str],
    retokenized: Mapping[str, Mapping[int, Batch]],
    run: Mapping[str, Any],
    options: BenchOptions,
) -> dict[Key, float | None]:
    """Peak memory in MiB of a fresh process that runs each workload's largest batch.

    Args:
        retokenized: see `retokenized_batches`.
        run: options of `Runtime.compute`.
    """
    peaks = {}
    for subject in subjects:
        for load in workloads:
            largest = max(load.batches, key=lambda batch: batch["input_ids"].size)
            largest = retokenized.get(subject.name, {}).get(id(largest), largest)
            use = measure_memory(
                subject.directory, task.runtime, [largest], run,
                precision=precisions[subject.name], engine=subject.engine, **options.runtime,
            )  # fmt: skip
            peaks[subject.name, load.batch_size] = use.peak_mib(options.device)
    return peaks


def _ratios(
    task: Task,
    subjects: Sequence[Subject],
    config: Mapping[str, Any],
    workloads: Sequence[Workload],
) -> dict[Key, float]:
    """Multiply-adds of the first model over each other's, of each workload."""
    dense, *others = (
        shape_of(task, config, subject.counts, count_output_tokens(subject.directory))
        for subject in subjects
    )
    ratios = {}
    for load in workloads:
        inputs = (batch["input_ids"].shape for batch in load.batches)
        target = math.ceil(load.target_tokens)
        sizes = [WorkSize(rows, source, target) for rows, source in inputs]
        for subject, shape in zip(subjects[1:], others, strict=True):
            ratios[subject.name, load.batch_size] = ratio_of_multiply_adds(dense, shape, sizes)
    return ratios
