"""Models, settings and workloads of a measurement, determined before anything is timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.errors import EnvironmentProblem, UsageError
from compressor.runtime.artifact import GRAPH_DIRECTORY
from compressor.tasks import TASKS, Task, Timed
from compressor.throughput.hardware import cores
from compressor.throughput.workloads import Batch, Lengths, Workload, make_workloads

if TYPE_CHECKING:
    from compressor.runtime import Runtime
    from compressor.tasks.rows import Rows


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

    @property
    def source_lengths(self) -> str:
        """`source lengths from the data`, or `32 source tokens`."""
        is_data = self.lengths == "data"
        return "source lengths from the data" if is_data else f"{self.lengths} source tokens"

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


def plan_workloads(
    reference: Runtime, rows: Rows, options: BenchOptions
) -> tuple[list[Workload], Timed]:
    """The workloads in the reference's tokens, and the options of all models' runs."""
    limit = reference.artifact.max_source_tokens
    if options.lengths != "data" and options.lengths > limit:
        raise UsageError(
            f"rows of {options.lengths} tokens exceed the model's limit of {limit}; choose fewer",
            id="length-too-large",
        )
    workloads = options.workloads(reference, rows)
    largest = max(workloads, key=lambda workload: workload.batch_size)
    timed = TASKS[rows.task].timed(reference, largest.batches, options.target_length)
    return [replace(load, target_tokens=timed.target_tokens) for load in workloads], timed


def retokenized_batches(
    subjects: Sequence[Subject],
    runtimes: Mapping[str, Runtime],
    workloads: Sequence[Workload],
    rows: Rows,
    options: BenchOptions,
) -> dict[str, dict[int, Batch]]:
    """For models with another tokenizer than the first: `id` of a batch -> it in their own tokens.

    The workloads are in the first model's tokens.
    """
    tokenizers = {
        x.name: x.directory / GRAPH_DIRECTORY / runtimes[x.name].artifact.tokenizer
        for x in subjects
    }
    first = tokenizers[subjects[0].name].read_bytes()
    batches_of: dict[str, dict[int, Batch]] = {}
    for name, path in tokenizers.items():
        if path.read_bytes() != first:
            batches_of[name] = {
                id(batch): its_own
                for load, other in zip(
                    workloads, options.workloads(runtimes[name], rows), strict=True
                )
                for batch, its_own in zip(load.batches, other.batches, strict=True)
            }
    return batches_of


def precisions_of(runtimes: Mapping[str, Runtime], unnamed: Sequence[Subject]) -> dict[str, str]:
    """The precision of each model.

    Raises:
        EnvironmentProblem: in one engine the providers differ, or the default precisions of
            `unnamed`, the models without a requested precision.
    """
    precisions = {name: runtime.precision for name, runtime in runtimes.items()}
    for engine in {runtime.engine for runtime in runtimes.values()}:
        defaults = {precisions[x.name] for x in unnamed if x.engine == engine}
        providers = {x.provider for x in runtimes.values() if x.engine == engine}
        if len(defaults) > 1 or len(providers) > 1:
            raise EnvironmentProblem(
                f"the models differ in precision ({', '.join(sorted(defaults))}) or provider "
                f"({', '.join(sorted(providers))}), so their speeds cannot be compared; "
                "export them alike and name the precision",
                id="precisions-or-providers-differ",
            )
    return precisions
