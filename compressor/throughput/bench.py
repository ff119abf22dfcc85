"""The whole measurement: artifacts in, timings and peak memory out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from compressor.results import Throughput, Timing
from compressor.runtime.vocabulary import count_output_tokens
from compressor.tasks import TASKS, Task
from compressor.throughput.hardware import cores
from compressor.throughput.measure import Samples, measure
from compressor.throughput.memory import measure_memory
from compressor.throughput.multiply_adds import WorkSize, ratio_of_multiply_adds
from compressor.throughput.plan import (
    Subject,
    check_request,
    in_tokens_of,
    own_batches,
    plan_workloads,
    precisions_of,
)
from compressor.throughput.shapes import shape_of
from compressor.throughput.statistics import against_dense, summarize
from compressor.throughput.workloads import Batch, Lengths, Workload

if TYPE_CHECKING:
    from compressor.runtime import Runtime
    from compressor.tasks.rows import Rows

Key = tuple[str, int]  # model, batch size
OwnBatches = Mapping[int, Batch]  # `id` of a batch -> it in a model's own tokens


@dataclass(frozen=True)
class BenchOptions:
    """How models are timed.

    Args:
        batch_sizes: rows per batch; distinct.
        lengths: `data`, or the number of source tokens every row is cut or filled to.
        target_length: generated tokens per row, of tasks that generate; None takes the mean length
            of the reference's own answers to the timed rows, rounded up.
        device, threads, cuda_graphs, precision: as for the runtime; None means all cores this
            process may use, and the artifact's default precision.
        seconds: least time per model and batch size.
        memory: whether to measure peak memory, in a process per model and batch size.
        seed: of the choice of rows and of the bootstrap.
    """

    batch_sizes: Sequence[int] = (1, 4, 16, 64)
    lengths: Lengths = "data"
    target_length: int | None = None
    device: str = "cpu"
    threads: int | None = None
    cuda_graphs: bool = True
    precision: str | None = None
    seconds: float = 3.0
    memory: bool = True
    seed: int = 0

    @property
    def runtime(self) -> dict[str, Any]:
        """What runtimes of all models are opened with."""
        threads = self.threads or cores()
        return {"device": self.device, "threads": threads, "cuda_graphs": self.cuda_graphs}

    def opened(self, subject: Subject, task: Task) -> Runtime:
        named = subject.precision or self.precision
        return task.open(subject.directory, precision=named, engine=subject.engine, **self.runtime)

    def workloads(self, runtime: Runtime, rows: Rows) -> list[Workload]:
        """In the tokens of one model."""
        return in_tokens_of(runtime, rows, self.batch_sizes, self.lengths, self.seed)


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
    not make a model look faster. Peak memory is that of a fresh process that runs each workload's
    largest batch.

    Args:
        subjects: artifacts, the dense one first.
        rows: the data that sentences and lengths are taken from.
        config: the checkpoint's configuration; without it multiply-adds are not counted.
        progress: called with a line of text per step.
        options: fields of `BenchOptions`.

    Raises:
        UsageError: settings that contradict each other or are impossible.
        InputError: an artifact cannot be read, or there are no rows.
        EnvironmentProblem: the device is not usable, or artifacts run on different providers.
    """
    task, chosen = TASKS[rows.task], BenchOptions(**options)
    check_request(subjects, task, chosen.target_length)
    # The workloads are made with a runtime of their own: one that has run before is slower than a
    # fresh one, because its memory arena has grown, and the reference would be at a disadvantage.
    workloads, timed = plan_workloads(
        chosen.opened(subjects[0], task), rows, chosen.batch_sizes, chosen.lengths,
        chosen.target_length, chosen.seed,
    )  # fmt: skip
    runtimes = {subject.name: chosen.opened(subject, task) for subject in subjects}
    own = own_batches(subjects, runtimes, workloads, lambda x: chosen.workloads(x, rows))
    unnamed = [subject for subject in subjects if (subject.precision or chosen.precision) is None]
    precisions = precisions_of(runtimes, unnamed)
    ratios = {} if config is None else _ratios(task, subjects, config, workloads)
    peaks: dict[Key, float | None] = {}
    if chosen.memory:
        progress("measuring peak memory in fresh processes")
        peaks = _peaks(task, subjects, workloads, precisions, timed.options, chosen.runtime, own)
    runs = _runs(runtimes, timed.options, own)
    samples = measure(runs, workloads, min_seconds=chosen.seconds, progress=progress)
    timings = _timings(samples, workloads, ratios, peaks, subjects, runtimes, chosen.seed)
    return Throughput(
        provider=runtimes[subjects[0].name].provider,
        device=chosen.device,
        precision=", ".join(dict.fromkeys(precisions.values())),
        threads=chosen.runtime["threads"],
        lengths=_describe(chosen.lengths) + timed.description,
        rows=[_say_what_ran(row, runtimes[row.variant]) for row in timings],
    )


def _timings(
    samples: Samples,
    workloads: Sequence[Workload],
    ratios: Mapping[Key, float],
    peaks: Mapping[Key, float | None],
    subjects: Sequence[Subject],
    runtimes: Mapping[str, Runtime],
    seed: int,
) -> list[Timing]:
    """Speed-ups over the first model; with several engines also over the fastest dense one."""
    timings = summarize(
        samples, workloads, ratios, peak_memory_mib=peaks, reference=subjects[0].name, seed=seed
    )
    engines = {name: runtime.engine for name, runtime in runtimes.items()}
    if len(set(engines.values())) == 1:
        return timings
    dense = [subject.name for subject in subjects if subject.dense]
    return against_dense(timings, samples, workloads, engines, dense, seed)


def _peaks(
    task: Task,
    subjects: Sequence[Subject],
    workloads: Sequence[Workload],
    precisions: Mapping[str, str],
    timed: Mapping[str, Any],
    options: Mapping[str, Any],
    own: Mapping[str, OwnBatches],
) -> dict[Key, float | None]:
    """Peak memory in MiB of a fresh process for each model and workload.

    Args:
        timed: options of `Runtime.compute`.
        options: device and threads.
        own: batches of models with a tokenizer of their own, see `own_batches`.
    """
    peaks = {}
    for subject in subjects:
        for load in workloads:
            largest = max(load.batches, key=lambda batch: batch["input_ids"].size)
            largest = own.get(subject.name, {}).get(id(largest), largest)
            use = measure_memory(
                subject.directory, task.runtime, [largest], timed,
                precision=precisions[subject.name], engine=subject.engine, **options,
            )  # fmt: skip
            peaks[subject.name, load.batch_size] = use.peak_mib(options["device"])
    return peaks


def _runs(
    runtimes: Mapping[str, Runtime], options: Mapping[str, Any], own: Mapping[str, OwnBatches]
) -> dict[str, Callable[[Batch], object]]:
    """How each model runs a batch: in its own tokens, where its tokenizer is another.

    Args:
        options: of `Runtime.compute`.
    """

    def run(runtime: Runtime, batches: OwnBatches, batch: Batch) -> object:
        return runtime.compute(batches.get(id(batch), batch), **options)

    return {name: partial(run, runtimes[name], own.get(name, {})) for name in runtimes}


def _say_what_ran(row: Timing, runtime: Runtime) -> Timing:
    found = {name: getattr(runtime, name) for name in ("precision", "engine")}
    return row.model_copy(update=found | {"provider": runtime.ran_by})


def _describe(lengths: Lengths) -> str:
    return "source lengths from the data" if lengths == "data" else f"{lengths} source tokens"


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
    return {
        (subject.name, load.batch_size): ratio_of_multiply_adds(dense, shape, _work_sizes(load))
        for subject, shape in zip(subjects[1:], others, strict=True)
        for load in workloads
    }


def _work_sizes(workload: Workload) -> list[WorkSize]:
    shapes = (batch["input_ids"].shape for batch in workload.batches)
    return [WorkSize(rows, source, math.ceil(workload.target_tokens)) for rows, source in shapes]
