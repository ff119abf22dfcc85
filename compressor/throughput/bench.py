"""The whole measurement: artifacts in, timings with limits and peak memory out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compressor.results import Throughput, Timing
from compressor.runtime.vocabulary import count_output_tokens
from compressor.tasks import TASKS, Task
from compressor.throughput.hardware import cores
from compressor.throughput.limits import Limit, WorkSize, limit_of
from compressor.throughput.machine import measure_machine
from compressor.throughput.measure import Run, Samples, measure
from compressor.throughput.memory import peak_memory
from compressor.throughput.plan import (
    Key,
    Settings,
    Subject,
    check_request,
    describe_lengths,
    generated_lengths,
    open_subject,
    plan_workloads,
    precisions_of,
)
from compressor.throughput.shapes import shape_of
from compressor.throughput.statistics import summarize
from compressor.throughput.workloads import Lengths, Workload

if TYPE_CHECKING:
    from compressor.runtime import Runtime
    from compressor.tasks.rows import Rows


def benchmark(
    subjects: Sequence[Subject],
    *,
    rows: Rows,
    config: Mapping[str, Any] | None = None,
    batch_sizes: Sequence[int] = (1, 4, 16, 64),
    lengths: Lengths = "data",
    target_length: int | None = None,
    natural: bool = False,
    num_beams: int = 1,
    device: str = "cpu",
    threads: int | None = None,
    precision: str | None = None,
    seconds: float = 3.0,
    memory: bool = True,
    samples_file: Path | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Throughput:
    """Time artifacts of one model side by side; speed-ups are relative to the first.

    Translators generate the same number of tokens for every row unless `natural` is set, so that
    shorter translations do not make a model look faster. Peak memory is that of a fresh process
    that runs each workload's largest batch.

    Args:
        subjects: artifacts, the dense one first.
        rows: the data that sentences and lengths are taken from.
        config: the checkpoint's configuration; without it there are no theoretical limits.
        batch_sizes: rows per batch; distinct.
        lengths: `data`, or the number of source tokens every row is cut or filled to.
        target_length: generated tokens per row (translation only); None takes the mean length
            of the reference's own translations of the timed rows, rounded up.
        natural: translators stop by themselves instead.
        num_beams: beam width where translators stop by themselves; forced lengths are greedy.
        device, threads, precision: as for the runtime; None means all cores this process may
            use, and the artifact's default precision.
        seconds: least time per model and batch size.
        memory: whether to measure peak memory, in a process per model and batch size.
        samples_file: a JSON file to write the raw times to.
        seed: of the choice of rows and of the bootstrap.
        progress: called with a line of text per step.

    Raises:
        UsageError: settings that contradict each other or are impossible.
        InputError: an artifact cannot be read, or there are no rows.
        EnvironmentProblem: the device is not usable, or artifacts run on different providers.
    """
    task = TASKS[rows.task]
    check_request(subjects, rows.task, target_length, natural, num_beams)
    threads = threads or cores()
    open_one = partial(
        open_subject, task=rows.task, device=device, threads=threads, precision=precision
    )
    # The workloads are made with a runtime of their own: one that has run before is slower than a
    # fresh one, because its memory arena has grown, and the reference would be at a disadvantage.
    workloads, timed = plan_workloads(
        open_one(subjects[0]), rows, batch_sizes, lengths, target_length, natural, num_beams, seed
    )
    runtimes = {subject.name: open_one(subject) for subject in subjects}
    precisions = precisions_of(
        runtimes, [s for s in subjects if (s.precision or precision) is None]
    )
    settings = Settings(device, threads, precisions, timed, num_beams)
    generated = generated_lengths(task, runtimes, workloads, timed) if natural else {}
    limits = _limits(task, subjects, config, workloads, generated, settings)
    peaks = _peaks(task, subjects, workloads, settings, progress) if memory else {}
    runs = {name: _runner(runtime, settings) for name, runtime in runtimes.items()}
    samples = measure(runs, workloads, min_seconds=seconds, progress=progress)
    if samples_file is not None:
        _write_samples(samples, workloads, samples_file)
    timings = summarize(
        samples,
        workloads,
        limits,
        target_tokens={key: float(np.mean(means)) for key, means in generated.items()},
        peak_memory_mib=peaks,
        reference=subjects[0].name,
        seed=seed,
    )
    description = describe_lengths(lengths, timed)
    return _throughput(timings, settings, runtimes[subjects[0].name].provider, description)


def _throughput(
    timings: Sequence[Timing], settings: Settings, provider: str, lengths: str
) -> Throughput:
    """The timings with the conditions they share."""
    precisions = settings.precisions
    return Throughput(
        provider=provider,
        device=settings.device,
        precision=", ".join(dict.fromkeys(precisions.values())),
        threads=settings.threads,
        lengths=lengths,
        rows=[
            row.model_copy(update={"provider": provider, "precision": precisions[row.variant]})
            for row in timings
        ],
    )


def _runner(runtime: Runtime, settings: Settings) -> Run:
    return lambda batch: runtime.compute(batch, **settings.timed.options)


def _limits(
    task: Task,
    subjects: Sequence[Subject],
    config: Mapping[str, Any] | None,
    workloads: Sequence[Workload],
    generated: Mapping[Key, list[float]],
    settings: Settings,
) -> dict[Key, Limit]:
    """Theoretical limits of the models that run in the reference's precision.

    Between precisions there is none: their kernels reach different shares of their peak rates, so
    the ratio of the peaks is no bound. Nor is there one in int8, where quantizing activations is
    work that pruning removes too, but that is not counted.
    """
    dense = subjects[0].name
    precision = settings.precisions[dense]
    alike = [s for s in subjects[1:] if settings.precisions[s.name] == precision]
    if config is None or not alike or precision == "int8":
        return {}
    machine = measure_machine(settings.device, settings.threads, precision)
    shapes = {
        subject.name: shape_of(task, config, subject.counts, count_output_tokens(subject.directory))
        for subject in (subjects[0], *alike)
    }

    def sizes(name: str, workload: Workload) -> list[WorkSize]:
        targets = generated.get((name, workload.batch_size))
        return _work_sizes(workload, targets, settings.num_beams)

    return {
        (subject.name, workload.batch_size): limit_of(
            shapes[dense],
            shapes[subject.name],
            machine,
            sizes(dense, workload),
            sizes(subject.name, workload),
        )
        for subject in alike
        for workload in workloads
    }


def _work_sizes(workload: Workload, generated: list[float] | None, beams: int) -> list[WorkSize]:
    """The size of each batch; `generated` are mean tokens per row where they are not forced."""
    sizes = []
    for batch, target in zip(
        workload.batches, generated or [workload.target_tokens] * len(workload.batches), strict=True
    ):
        rows, source = batch["input_ids"].shape
        sizes.append(WorkSize(rows, source, math.ceil(target), beams))
    return sizes


def _peaks(
    task: Task,
    subjects: Sequence[Subject],
    workloads: Sequence[Workload],
    settings: Settings,
    progress: Callable[[str], None] | None,
) -> dict[Key, float | None]:
    """Peak memory in MiB of each model at each batch size, on the largest batch."""
    if progress:
        progress("measuring peak memory in fresh processes")
    peaks: dict[Key, float | None] = {}
    for subject in subjects:
        for workload in workloads:
            peaks[subject.name, workload.batch_size] = peak_memory(
                subject.directory,
                task.runtime,
                [max(workload.batches, key=lambda batch: batch["input_ids"].size)],
                settings.timed.options,
                device=settings.device,
                precision=settings.precisions[subject.name],
                threads=settings.threads,
            )
    return peaks


def _write_samples(samples: Samples, workloads: Sequence[Workload], path: Path) -> None:
    batches = {workload.batch_size: len(workload.batches) for workload in workloads}
    data = [
        {"variant": name, "batch_size": size, "batches": batches[size], "seconds": seconds}
        for (name, size), seconds in samples.items()
    ]
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
