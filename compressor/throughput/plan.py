"""What a measurement runs, settled before anything is timed: models, workloads, lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compressor.errors import EnvironmentProblem, UsageError
from compressor.runtime.artifact import TranslationArtifact
from compressor.tasks import get_task
from compressor.throughput.workloads import Lengths, Workload, make_workloads

if TYPE_CHECKING:
    from compressor.runtime import Classifier, Translator
    from compressor.tasks.rows import Rows

Key = tuple[str, int]  # model, batch size


@dataclass(frozen=True)
class Subject:
    """One artifact to time.

    Args:
        counts: sublayer name -> units it has; its theoretical limit follows from them.
        precision: of its graphs; None means that of the whole measurement.
    """

    name: str
    directory: Path
    counts: Mapping[str, int]
    precision: str | None = None


@dataclass(frozen=True)
class Settings:
    """How the models are run: the arguments of `benchmark` with all defaults resolved."""

    device: str
    threads: int
    precisions: Mapping[str, str]  # of each model
    forced_length: int | None  # tokens every row generates; None: models stop by themselves
    num_beams: int

    @property
    def generation(self) -> dict[str, int | None]:
        """Arguments of `Translator.generate`."""
        beams = self.num_beams if self.forced_length is None else None
        return {"forced_length": self.forced_length, "num_beams": beams}


def check_request(
    subjects: Sequence[Subject], task: str, target: int | None, natural: bool, beams: int
) -> None:
    """Raise UsageError for settings that contradict each other."""
    names = [subject.name for subject in subjects]
    if not names or len(set(names)) < len(names):
        raise UsageError(
            f"the models to time need distinct names, not {names}", id="names-not-distinct"
        )
    if not get_task(task).generates and (target is not None or natural):
        raise UsageError(
            "classifiers generate no tokens; leave the target length out",
            id="target-length-without-generation",
        )
    if target is not None and (target < 1 or natural):
        raise UsageError(
            f"target length {target} must be at least 1, and cannot be given for translations that "
            "stop by themselves",
            id="target-length-invalid",
        )
    if beams != 1 and not natural:
        raise UsageError(
            f"{beams} beams need translations that stop by themselves; forced lengths are greedy",
            id="beams-with-forced-length",
        )


def open_subject(
    subject: Subject, task: str, device: str, threads: int, precision: str | None
) -> Classifier | Translator:
    """The runtime of an artifact; `precision` is that of the whole measurement."""
    from compressor import runtime

    kind = runtime.Translator if get_task(task).generates else runtime.Classifier
    chosen = subject.precision or precision
    return kind(subject.directory, device=device, threads=threads, precision=chosen, verify=False)


def plan_workloads(
    reference: Classifier | Translator,
    rows: Rows,
    batch_sizes: Sequence[int],
    lengths: Lengths,
    target_length: int | None,
    natural: bool,
    seed: int,
) -> tuple[list[Workload], int | None]:
    """The workloads, and how many tokens every row generates (None where that is not forced)."""
    if target_length is not None and isinstance(reference.artifact, TranslationArtifact):
        reference.artifact.generation.with_length(target_length)  # raises if it is too long
    workloads = _workloads(reference, rows, batch_sizes, lengths, seed)
    forced = None if natural else _forced_length(reference, workloads, target_length)
    if forced is not None:
        workloads = [replace(workload, target_tokens=float(forced)) for workload in workloads]
    return workloads, forced


def _workloads(
    reference: Classifier | Translator,
    rows: Rows,
    batch_sizes: Sequence[int],
    lengths: Lengths,
    seed: int,
) -> list[Workload]:
    """Workloads in the reference's tokens; all artifacts of a model share the tokenizer."""
    from compressor.runtime import Translator, collate

    artifact = reference.artifact
    if lengths != "data" and lengths > artifact.max_source_tokens:
        raise UsageError(
            f"rows of {lengths} tokens are longer than the {artifact.max_source_tokens} that the "
            "model can read; ask for fewer",
            id="length-too-large",
        )
    if isinstance(reference, Translator):
        encoded = reference.encode(rows.sources)
    else:
        encoded = reference.encode(rows.sources, rows.pairs)
    return make_workloads(
        encoded,
        batch_sizes,
        lambda chosen: collate(chosen, artifact.pad_token_id, artifact.inputs),
        lengths=lengths,
        seed=seed,
    )


def precisions_of(
    runtimes: Mapping[str, Classifier | Translator], unnamed: Sequence[Subject]
) -> dict[str, str]:
    """The precision of each model.

    Raises:
        EnvironmentProblem: the providers differ, or the default precisions of `unnamed`, the models
            for which no precision was asked.
    """
    precisions = {name: runtime.precision for name, runtime in runtimes.items()}
    defaults = {precisions[subject.name] for subject in unnamed}
    providers = {runtime.provider for runtime in runtimes.values()}
    if len(defaults) > 1 or len(providers) > 1:
        raise EnvironmentProblem(
            f"the models differ in precision ({', '.join(sorted(defaults))}) or provider "
            f"({', '.join(sorted(providers))}), so their speeds cannot be compared; "
            "export them alike and name the precision",
            id="precisions-or-providers-differ",
        )
    return precisions


def _forced_length(
    runtime: Classifier | Translator, workloads: Sequence[Workload], asked: int | None
) -> int | None:
    """Tokens every row generates: as many as asked, or the mean of the model's translations."""
    if asked is not None or not hasattr(runtime, "generate"):
        return asked
    largest = max(workloads, key=lambda workload: workload.batch_size)
    lengths = [len(row) for batch in largest.batches for row in runtime.generate(batch)]
    return math.ceil(sum(lengths) / len(lengths))


def generated_lengths(
    runtimes: Mapping[str, Any], workloads: Sequence[Workload], settings: Settings
) -> dict[Key, list[float]]:
    """Mean tokens per row of each batch, for translators that stop by themselves."""
    return {
        (name, workload.batch_size): [
            float(np.mean([len(row) for row in runtime.generate(batch, **settings.generation)]))
            for batch in workload.batches
        ]
        for name, runtime in runtimes.items()
        for workload in workloads
    }


def describe_lengths(
    lengths: Lengths, settings: Settings, target_length: int | None, natural: bool
) -> str:
    """Where the source and target lengths come from, for the report."""
    source = "source lengths from the data" if lengths == "data" else f"{lengths} source tokens"
    if natural:
        beams = "greedy" if settings.num_beams == 1 else f"{settings.num_beams} beams"
        return f"{source}; translations as long as each model makes them, {beams}"
    if settings.forced_length is None:
        return source
    origin = "" if target_length else ", the mean of the reference model's own translations"
    return f"{source}; {settings.forced_length} generated tokens for every row{origin}"
