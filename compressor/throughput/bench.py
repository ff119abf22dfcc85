"""The whole measurement: artifacts in, timings and peak memory out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.errors import EnvironmentProblem, UsageError
from compressor.results import Throughput
from compressor.runtime.artifact import GRAPH_DIRECTORY, count_output_tokens
from compressor.tasks import TASKS, Task, Timed
from compressor.throughput.hardware import cores
from compressor.throughput.measure import Batch, Lengths, Workload, make_workloads, measure
from compressor.throughput.memory import measure_memory
from compressor.throughput.multiply_adds import WorkSize, ratio_of_multiply_adds, shape_of
from compressor.throughput.statistics import against_dense, summarize

if TYPE_CHECKING:
    from compressor.runtime import Runtime
    from compressor.tasks.rows import Rows

Key = tuple[str, int]  # model, batch size
Batches = Mapping[str, Mapping[int, Batch]]  # model -> `id` of a workload's batch -> its own


@dataclass(frozen=True)
class Subject:
    """One artifact to time."""

    name: str
    directory: Path
    counts: Mapping[str, int]  # sublayer name -> its units, to count multiply-adds
    precision: str | None = None  # of its graphs; None for that of the whole measurement
    engine: str = "onnxruntime"
    dense: bool = False  # whether it is the dense model, in any engine and precision


@dataclass(frozen=True)
class BenchOptions:
    """How models are timed."""

    batch_sizes: Sequence[int] = (1, 4, 16, 64)  # rows per batch; distinct
    lengths: Lengths = "data"  # or the number of source tokens every row is cut or filled to
    # Generated tokens per row, of tasks that generate; None takes the mean length of the
    # reference's own answers to the timed rows, rounded up.
    target_length: int | None = None
    device: str = "cpu"
    threads: int | None = None  # None means all cores this process may use
    cuda_graphs: bool = True
    precision: str | None = None  # None means the artifact's default
    seconds: float = 3.0  # least time per model and batch size
    memory: bool = True  # whether to measure peak memory, in a process per model and batch size
    seed: int = 0  # of the choice of rows and of the bootstrap

    @property
    def runtime(self) -> dict[str, Any]:
        """Settings that runtimes of all models are opened with."""
        threads = self.threads or cores()
        return {"device": self.device, "threads": threads, "cuda_graphs": self.cuda_graphs}

    def open(self, subject: Subject, task: Task) -> Runtime:
        precision = subject.precision or self.precision
        return task.open(
            subject.directory, precision=precision, engine=subject.engine, **self.runtime
        )

    def workloads(self, runtime: Runtime, rows: Rows) -> list[Workload]:
        """The same rows for all models, in the tokens of one model's own tokenizer."""
        from compressor.runtime import collate

        artifact = runtime.artifact
        return make_workloads(
            runtime.encode(rows.sources, rows.pairs),
            self.batch_sizes,
            lambda chosen: collate(chosen, artifact.pad_token_id, artifact.inputs),
            lengths=self.lengths,
            seed=self.seed,
        )


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
    workloads, timed = _plan(subjects, task, rows, chosen)
    runtimes = {subject.name: chosen.open(subject, task) for subject in subjects}
    retokenized = _retokenized(subjects, runtimes, workloads, rows, chosen)
    _require_comparable(subjects, runtimes, chosen)
    ratios = {} if config is None else _ratios(task, subjects, config, workloads)
    peaks: dict[Key, float | None] = {}
    if chosen.memory:
        progress("measuring peak memory in fresh processes")
        peaks = _peaks(task, subjects, workloads, runtimes, retokenized, timed.options, chosen)

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
    from_data = chosen.lengths == "data"
    lengths = "source lengths from the data" if from_data else f"{chosen.lengths} source tokens"
    return Throughput(
        provider=runtimes[first].provider,
        device=chosen.device,
        precision=", ".join(dict.fromkeys(runtime.precision for runtime in runtimes.values())),
        threads=chosen.runtime["threads"],
        lengths=lengths + timed.description,
        rows=[row.model_copy(update=ran[row.variant]) for row in timings],
    )


def _plan(
    subjects: Sequence[Subject], task: Task, rows: Rows, options: BenchOptions
) -> tuple[list[Workload], Timed]:
    """The workloads in the first model's tokens, and the options of all models' runs."""
    names = [subject.name for subject in subjects]
    if not names or len(set(names)) < len(names):
        raise UsageError(
            f"the models to time need distinct names, not {names}", id="names-not-distinct"
        )
    if options.target_length is not None and "--target-length" not in task.options:
        raise UsageError(
            f"models for {task.name} generate no tokens; leave the target length out",
            id="target-length-without-generation",
        )
    # A runtime of their own: one that has run before is slower than a fresh one, because its memory
    # arena has grown, and the reference would be at a disadvantage.
    reference = options.open(subjects[0], task)
    limit = reference.artifact.max_source_tokens
    if options.lengths != "data" and options.lengths > limit:
        raise UsageError(
            f"rows of {options.lengths} tokens exceed the model's limit of {limit}; choose fewer",
            id="length-too-large",
        )
    workloads = options.workloads(reference, rows)
    largest = max(workloads, key=lambda workload: workload.batch_size)
    timed = task.timed(reference, largest.batches, options.target_length)
    return [replace(load, target_tokens=timed.target_tokens) for load in workloads], timed


def _retokenized(
    subjects: Sequence[Subject],
    runtimes: Mapping[str, Runtime],
    workloads: Sequence[Workload],
    rows: Rows,
    options: BenchOptions,
) -> Batches:
    """The workloads' batches in the tokens of models with another tokenizer than the first."""
    tokenizers = {
        x.name: x.directory / GRAPH_DIRECTORY / runtimes[x.name].artifact.tokenizer
        for x in subjects
    }
    first = tokenizers[subjects[0].name].read_bytes()
    batches: dict[str, dict[int, Batch]] = {}
    for name, path in tokenizers.items():
        if path.read_bytes() != first:
            others = options.workloads(runtimes[name], rows)
            batches[name] = {
                id(batch): its_own
                for load, other in zip(workloads, others, strict=True)
                for batch, its_own in zip(load.batches, other.batches, strict=True)
            }
    return batches


def _require_comparable(
    subjects: Sequence[Subject], runtimes: Mapping[str, Runtime], options: BenchOptions
) -> None:
    """Raise EnvironmentProblem where within an engine providers or default precisions differ."""
    for engine in {runtime.engine for runtime in runtimes.values()}:
        models = {x.name: runtimes[x.name] for x in subjects if runtimes[x.name].engine == engine}
        unnamed = [x.name for x in subjects if (x.precision or options.precision) is None]
        defaults = {model.precision for name, model in models.items() if name in unnamed}
        providers = {model.provider for model in models.values()}
        if len(defaults) > 1 or len(providers) > 1:
            raise EnvironmentProblem(
                f"the models differ in precision ({', '.join(sorted(defaults))}) or provider "
                f"({', '.join(sorted(providers))}), so their speeds cannot be compared; "
                "export them alike and name the precision",
                id="precisions-or-providers-differ",
            )


def _peaks(
    task: Task,
    subjects: Sequence[Subject],
    workloads: Sequence[Workload],
    runtimes: Mapping[str, Runtime],
    retokenized: Batches,
    run: Mapping[str, Any],
    options: BenchOptions,
) -> dict[Key, float | None]:
    """Peak memory in MiB of a fresh process that runs each workload's largest batch."""
    peaks = {}
    for subject in subjects:
        for load in workloads:
            largest = max(load.batches, key=lambda batch: batch["input_ids"].size)
            largest = retokenized.get(subject.name, {}).get(id(largest), largest)
            use = measure_memory(
                subject.directory, task.runtime, [largest], run, engine=subject.engine,
                precision=runtimes[subject.name].precision, **options.runtime,
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
