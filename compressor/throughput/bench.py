"""The whole measurement: artifacts in, timings and peak memory out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.errors import EnvironmentProblem, UsageError
from compressor.runtime.artifact import GRAPH_DIRECTORY
from compressor.runtime.opening import count_output_tokens, reads_one_token
from compressor.steps.results import Throughput, Timing
from compressor.storage.names import ONNXRUNTIME
from compressor.tasks import TASKS, Timed
from compressor.throughput.hardware import cores
from compressor.throughput.measure import measure, seconds_of_pass
from compressor.throughput.memory import measure_memory
from compressor.throughput.multiply_adds import (
    ModelShape,
    WorkSize,
    encoder_share,
    ratio_of_multiply_adds,
    shape_of,
)
from compressor.throughput.statistics import against_dense, summarize
from compressor.throughput.workloads import Batch, Lengths, Workload, make_workloads

if TYPE_CHECKING:
    from compressor.runtime import Runtime
    from compressor.tasks.rows import Rows

Key = tuple[str, int]  # model, batch size


@dataclass(frozen=True)
class Subject:
    """One artifact to time."""

    name: str
    directory: Path
    counts: Mapping[str, int]  # sublayer name -> its units, to count multiply-adds
    precision: str | None = None  # of its graphs; None for that of the whole measurement
    engine: str = ONNXRUNTIME
    dense: bool = False  # whether it is the dense model, in any engine and precision


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
        config: the checkpoint's configuration; without it no multiply-adds are counted.
        progress: called with a line of text per step.
        options: fields of `Bench`.

    Returns:
        A row per model and batch size; of several engines with speed-ups over all dense builds.

    Raises:
        UsageError: settings that contradict each other or are impossible.
        InputError: an artifact cannot be read, or there are no rows.
        EnvironmentProblem: the device is not usable, or artifacts run on different providers.
    """
    bench = Bench(subjects, rows, **options)
    runtimes = bench.runtimes
    workloads = bench.workloads
    seed = bench.seed
    peaks: dict[Key, float | None] = {}
    if bench.memory:
        progress("measuring peak memory in fresh processes")
        peaks = bench.peaks()
    runs = {name: partial(bench.compute, name) for name in runtimes}
    samples = measure(runs, workloads, min_seconds=bench.seconds, progress=progress)
    first, ratios = subjects[0].name, bench.ratios(config) if config else {}
    timings = summarize(
        samples, workloads, ratios, peak_memory_mib=peaks, reference=first, seed=seed
    )
    if config:
        timings = bench.with_encoder(timings, config)
    engines = {name: runtime.engine for name, runtime in runtimes.items()}
    if len(set(engines.values())) > 1:
        dense = [subject.name for subject in subjects if subject.dense]
        timings = against_dense(timings, samples, workloads, engines, dense, seed)
    ran = {
        name: {"precision": x.precision, "engine": x.engine, "provider": x.ran_by}
        for name, x in runtimes.items()
    }
    from_data = bench.lengths == "data"
    lengths = "source lengths from the data" if from_data else f"{bench.lengths} source tokens"
    return Throughput(
        provider=runtimes[first].provider,
        device=bench.device,
        precision=", ".join(dict.fromkeys(runtime.precision for runtime in runtimes.values())),
        threads=bench.settings["threads"],
        lengths=lengths + bench.timed.description,
        rows=[row.model_copy(update=ran[row.variant]) for row in timings],
    )


@dataclass
class Bench:
    """Artifacts that are opened side by side, and the work that all of them do."""

    subjects: Sequence[Subject]
    rows: Rows
    batch_sizes: Sequence[int] = (1, 4, 16, 64)  # rows per batch; distinct
    lengths: Lengths = "data"  # or the number of source tokens every row is cut or filled to
    # Generated tokens per row, of tasks that generate; None takes the mean length of the
    # reference's own answers to the timed rows, rounded up.
    target_length: int | None = None
    device: str = "cpu"
    threads: int | None = None  # None means all cores this process may use
    cuda_graphs: bool = True
    precision: str | None = None  # None means the artifact's default
    seconds: float = 3.0  # least time per model and batch size, in the mean over the models
    memory: bool = True  # whether to measure peak memory, in a process per model and batch size
    seed: int = 0  # of the choice of rows and of the bootstrap

    def __post_init__(self) -> None:
        self.task, threads = TASKS[self.rows.task], self.threads or cores()
        self.settings: dict[str, Any] = {
            "device": self.device,
            "threads": threads,
            "cuda_graphs": self.cuda_graphs,
        }
        self.workloads, self.timed = self._plan()
        self.runtimes = {subject.name: self._open(subject) for subject in self.subjects}
        self._require_comparable()
        self.own_batches = self._own_batches()

    def compute(self, name: str, batch: Batch) -> object:
        """Run a model on a batch of a workload, in the model's own tokens."""
        return self.runtimes[name].compute(self.own_batches[name][id(batch)], **self.timed.options)

    def peaks(self) -> dict[Key, float | None]:
        """Peak memory in MiB of a fresh process that runs each workload's largest batch."""
        peaks = {}
        for subject in self.subjects:
            for load in self.workloads:
                largest = max(load.batches, key=lambda batch: batch["input_ids"].size)
                peaks[subject.name, load.batch_size] = measure_memory(
                    subject.directory,
                    self.task.runtime,
                    [self.own_batches[subject.name][id(largest)]],
                    self.timed.options,
                    engine=subject.engine,
                    precision=self.runtimes[subject.name].precision,
                    **self.settings,
                )
        return peaks

    def ratios(self, config: Mapping[str, Any]) -> dict[Key, float]:
        """Multiply-adds of the first model over those of each other one, for each workload.

        Args:
            config: the checkpoint's configuration.

        Returns:
            (model, batch size) -> ratio; infinite for a model that does no work.
        """
        dense, *others = (self._shape(subject, config) for subject in self.subjects)
        ratios = {}
        for load in self.workloads:
            sizes = _sizes(load)
            for subject, shape in zip(self.subjects[1:], others, strict=True):
                ratios[subject.name, load.batch_size] = ratio_of_multiply_adds(dense, shape, sizes)
        return ratios

    def with_encoder(self, timings: Sequence[Timing], config: Mapping[str, Any]) -> list[Timing]:
        """Timings with the share of the first model's encoder, where it runs apart on a CPU.

        Args:
            timings: of all models.
            config: the checkpoint's configuration.
        """
        first = self.subjects[0]
        encode = self.runtimes[first.name].encode_batch
        if encode is None or self.device != "cpu":  # a GPU computes on after it returns
            return list(timings)
        shape, loads = self._shape(first, config), {x.batch_size: x for x in self.workloads}

        def completed(row: Timing) -> Timing:
            if row.variant != first.name:
                return row
            load = loads[row.batch_size]
            whole = load.batch_size * len(load.batches) / row.sentences_per_second
            found = {
                "encoder_time": seconds_of_pass(encode, load.batches) / whole,
                "encoder_macs": encoder_share(shape, _sizes(load)),
            }
            return row.model_copy(update=found)

        return [completed(row) for row in timings]

    def _shape(self, subject: Subject, config: Mapping[str, Any]) -> ModelShape:
        return shape_of(
            self.task,
            config,
            subject.counts,
            count_output_tokens(subject.directory),
            one_token=reads_one_token(subject.directory),
        )

    def _open(self, subject: Subject) -> Runtime:
        precision, engine = subject.precision or self.precision, subject.engine
        return self.task.open(
            subject.directory, precision=precision, engine=engine, **self.settings
        )

    def _plan(self) -> tuple[list[Workload], Timed]:
        """The workloads in the first model's tokens, and the options of all models' runs."""
        names = [subject.name for subject in self.subjects]
        if not names or len(set(names)) < len(names):
            raise UsageError(
                f"the models to time need distinct names, not {names}", id="names-not-distinct"
            )
        if self.target_length is not None and "--target-length" not in self.task.options:
            raise UsageError(
                f"models for {self.task.name} generate no tokens; leave the target length out",
                id="target-length-without-generation",
            )
        # A runtime of their own: one that has run before is slower than a fresh one, because its
        # memory arena has grown, and the reference would be at a disadvantage.
        reference = self._open(self.subjects[0])
        limit = reference.artifact.max_source_tokens
        if self.lengths != "data" and self.lengths > limit:
            raise UsageError(
                f"rows of {self.lengths} tokens exceed the model's limit of {limit}; choose fewer",
                id="length-too-large",
            )
        workloads = self._workloads(reference)
        largest = max(workloads, key=lambda workload: workload.batch_size)
        timed = self.task.timed(reference, largest.batches, self.target_length)
        return [replace(load, target_tokens=timed.target_tokens) for load in workloads], timed

    def _workloads(self, runtime: Runtime) -> list[Workload]:
        """The same rows for all models, in the tokens of one model's own tokenizer."""
        from compressor.runtime import collate

        artifact = runtime.artifact
        return make_workloads(
            runtime.encode(self.rows.sources, self.rows.pairs),
            self.batch_sizes,
            lambda chosen: collate(chosen, artifact.pad_token_id, artifact.inputs),
            lengths=self.lengths,
            seed=self.seed,
        )

    def _require_comparable(self) -> None:
        """Raise EnvironmentProblem if models of an engine differ in provider or precision."""
        for engine in {runtime.engine for runtime in self.runtimes.values()}:
            models = {name: x for name, x in self.runtimes.items() if x.engine == engine}
            named = [x.name for x in self.subjects if x.precision or self.precision]
            defaults = {model.precision for name, model in models.items() if name not in named}
            providers = {model.provider for model in models.values()}
            if len(defaults) > 1 or len(providers) > 1:
                raise EnvironmentProblem(
                    f"the models differ in precision ({', '.join(sorted(defaults))}) or provider "
                    f"({', '.join(sorted(providers))}), so their speeds cannot be compared; "
                    "export them alike and name the precision",
                    id="precisions-or-providers-differ",
                )

    def _own_batches(self) -> dict[str, dict[int, Batch]]:
        """Model -> `id` of a workload's batch -> the same rows in the model's own tokens."""
        tokenized: dict[bytes, list[Workload]] = {}  # by the contents of the tokenizer
        batches = {}
        for subject in self.subjects:
            runtime = self.runtimes[subject.name]
            path = subject.directory / GRAPH_DIRECTORY / runtime.artifact.tokenizer
            contents = path.read_bytes()
            if contents not in tokenized:
                tokenized[contents] = self._workloads(runtime) if tokenized else self.workloads
            batches[subject.name] = {
                id(batch): its_own
                for load, other in zip(self.workloads, tokenized[contents], strict=True)
                for batch, its_own in zip(load.batches, other.batches, strict=True)
            }
        return batches


def _sizes(load: Workload) -> list[WorkSize]:
    """The sizes of a workload's batches."""
    inputs = (batch["input_ids"].shape for batch in load.batches)
    target = math.ceil(load.target_tokens)
    return [WorkSize(rows, source, target) for rows, source in inputs]
