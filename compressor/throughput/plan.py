"""Models and workloads of a measurement, determined before anything is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from compressor.errors import EnvironmentProblem, UsageError
from compressor.runtime.artifact import GRAPH_DIRECTORY
from compressor.tasks import TASKS, Task, Timed
from compressor.throughput.workloads import Batch, Lengths, Workload, make_workloads

if TYPE_CHECKING:
    from compressor.runtime import Runtime
    from compressor.tasks.rows import Rows


@dataclass(frozen=True)
class Subject:
    """One artifact to time.

    Args:
        counts: sublayer name -> number of its units, to compute multiply-adds.
        precision: of its graphs; None for that of the whole measurement.
        engine: name of the engine.
        dense: whether it is the dense model, in any engine and precision.
    """

    name: str
    directory: Path
    counts: Mapping[str, int]
    precision: str | None = None
    engine: str = "onnxruntime"
    dense: bool = False


def check_request(subjects: Sequence[Subject], task: Task, target: int | None) -> None:
    """Raise UsageError for settings that contradict each other."""
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


def plan_workloads(
    reference: Runtime,
    rows: Rows,
    batch_sizes: Sequence[int],
    lengths: Lengths,
    target_length: int | None,
    seed: int,
) -> tuple[list[Workload], Timed]:
    """The workloads in the reference's tokens, and the options of all models' runs."""
    artifact = reference.artifact
    if lengths != "data" and lengths > artifact.max_source_tokens:
        raise UsageError(
            f"rows of {lengths} tokens exceed the model's limit of {artifact.max_source_tokens}; "
            "choose fewer",
            id="length-too-large",
        )
    workloads = in_tokens_of(reference, rows, batch_sizes, lengths, seed)
    largest = max(workloads, key=lambda workload: workload.batch_size)
    timed = TASKS[rows.task].timed(reference, largest.batches, target_length)
    return [replace(load, target_tokens=timed.target_tokens) for load in workloads], timed


def in_tokens_of(
    runtime: Runtime, rows: Rows, batch_sizes: Sequence[int], lengths: Lengths, seed: int
) -> list[Workload]:
    """The workloads in the tokens of a model's own tokenizer, with the same rows for all models."""
    from compressor.runtime import collate

    artifact = runtime.artifact
    return make_workloads(
        runtime.encode(rows.sources, rows.pairs),
        batch_sizes,
        lambda chosen: collate(chosen, artifact.pad_token_id, artifact.inputs),
        lengths=lengths,
        seed=seed,
    )


def own_batches(
    subjects: Sequence[Subject],
    runtimes: Mapping[str, Runtime],
    workloads: Sequence[Workload],
    make: Callable[[Runtime], list[Workload]],
) -> dict[str, dict[int, Batch]]:
    """For models with another tokenizer than the first: `id` of a batch -> it in their own tokens.

    Args:
        workloads: in the first model's tokens.
        make: makes the workloads in a model's own tokens.
    """
    texts = {x.name: _tokenizer(x, runtimes[x.name]) for x in subjects}
    batches_of = {}
    for name in (x.name for x in subjects if texts[x.name] != texts[subjects[0].name]):
        pairs = zip(workloads, make(runtimes[name]), strict=True)
        batches_of[name] = {
            id(batch): own
            for load, other in pairs
            for batch, own in zip(load.batches, other.batches, strict=True)
        }
    return batches_of


def _tokenizer(subject: Subject, runtime: Runtime) -> bytes:
    return (subject.directory / GRAPH_DIRECTORY / runtime.artifact.tokenizer).read_bytes()


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
