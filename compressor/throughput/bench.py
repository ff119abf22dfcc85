"""The whole measurement: artifacts in, timings with limits and peak memory out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compressor.errors import EnvironmentProblem, UsageError
from compressor.results import Throughput, Timing
from compressor.runtime.artifact import TranslationArtifact
from compressor.runtime.vocabulary import count_output_tokens
from compressor.tasks import get_task
from compressor.throughput.hardware import cores
from compressor.throughput.limits import Limit, WorkSize, limit_of
from compressor.throughput.machine import measure_machine
from compressor.throughput.measure import Run, Samples, measure
from compressor.throughput.memory import peak_memory
from compressor.throughput.shapes import head_dim_of, shape_of
from compressor.throughput.statistics import summarize
from compressor.throughput.workloads import Lengths, Workload, make_workloads

if TYPE_CHECKING:
    from compressor.runtime import Classifier, Translator
    from compressor.tasks.rows import Rows

_Key = tuple[str, int]  # model, batch size


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
    _check(subjects, rows.task, target_length, natural, num_beams)
    threads = threads or cores()
    open_subject = partial(
        _open, task=rows.task, device=device, threads=threads, precision=precision
    )
    # The workloads are made with a runtime of their own: one that has run before is slower than a
    # fresh one, because its memory arena has grown, and the reference would be at a disadvantage.
    workloads, forced = _plan(
        open_subject(subjects[0]), rows, batch_sizes, lengths, target_length, natural, seed
    )
    runtimes = {subject.name: open_subject(subject) for subject in subjects}
    precisions = _precisions(runtimes, [s for s in subjects if (s.precision or precision) is None])
    settings = Settings(device, threads, precisions, forced, num_beams)
    generated = _generated(runtimes, workloads, settings) if natural else {}
    limits = _limits(subjects, config, workloads, generated, settings)
    peaks = _peaks(subjects, rows.task, workloads, settings, progress) if memory else {}
    runs = {name: _runner(runtime, settings) for name, runtime in runtimes.items()}
    samples = measure(runs, workloads, min_seconds=seconds, progress=progress)
    if samples_file is not None:
        _write_samples(samples, workloads, samples_file)
    timings = summarize(
        samples,
        workloads,
        limits,
        target_tokens={key: float(np.mean(found)) for key, found in generated.items()},
        peak_memory_mib=peaks,
        reference=subjects[0].name,
        seed=seed,
    )
    described = _described_lengths(lengths, settings, target_length, natural)
    return _throughput(timings, settings, runtimes[subjects[0].name].provider, described)


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


def _check(
    subjects: Sequence[Subject], task: str, target: int | None, natural: bool, beams: int
) -> None:
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


def _open(
    subject: Subject, task: str, device: str, threads: int, precision: str | None
) -> Classifier | Translator:
    from compressor import runtime

    kind = runtime.Translator if get_task(task).generates else runtime.Classifier
    chosen = subject.precision or precision
    return kind(subject.directory, device=device, threads=threads, precision=chosen)


def _plan(
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


def _precisions(
    runtimes: Mapping[str, Classifier | Translator], unnamed: Sequence[Subject]
) -> dict[str, str]:
    """The precision of each model.

    Raises:
        EnvironmentProblem: the providers differ, or the default precisions of `unnamed`, the models
            for which no precision was asked.
    """
    precisions = {name: runtime.precision for name, runtime in runtimes.items()}
    found = {precisions[subject.name] for subject in unnamed}
    providers = {runtime.provider for runtime in runtimes.values()}
    if len(found) > 1 or len(providers) > 1:
        raise EnvironmentProblem(
            f"the models differ in precision ({', '.join(sorted(found))}) or provider "
            f"({', '.join(sorted(providers))}), so their speeds cannot be compared; "
            "export them alike and name the precision",
            id="precisions-or-providers-differ",
        )
    return precisions


def _runner(runtime: Any, settings: Settings) -> Run:
    if hasattr(runtime, "generate"):
        return lambda batch: runtime.generate(batch, **settings.generation)
    return lambda batch: runtime.run(batch)


def _forced_length(
    runtime: Classifier | Translator, workloads: Sequence[Workload], asked: int | None
) -> int | None:
    """Tokens every row generates: as many as asked, or the mean of the model's translations."""
    if asked is not None or not hasattr(runtime, "generate"):
        return asked
    largest = max(workloads, key=lambda workload: workload.batch_size)
    found = [len(row) for batch in largest.batches for row in runtime.generate(batch)]
    return math.ceil(sum(found) / len(found))


def _generated(
    runtimes: Mapping[str, Any], workloads: Sequence[Workload], settings: Settings
) -> dict[_Key, list[float]]:
    """Mean tokens per row of each batch, for translators that stop by themselves."""
    return {
        (name, workload.batch_size): [
            float(np.mean([len(row) for row in runtime.generate(batch, **settings.generation)]))
            for batch in workload.batches
        ]
        for name, runtime in runtimes.items()
        for workload in workloads
    }


def _limits(
    subjects: Sequence[Subject],
    config: Mapping[str, Any] | None,
    workloads: Sequence[Workload],
    generated: Mapping[_Key, list[float]],
    settings: Settings,
) -> dict[_Key, Limit]:
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
    head_dim = head_dim_of(config)
    shapes = {
        subject.name: shape_of(
            config, subject.counts, head_dim, count_output_tokens(subject.directory)
        )
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
    subjects: Sequence[Subject],
    task: str,
    workloads: Sequence[Workload],
    settings: Settings,
    progress: Callable[[str], None] | None,
) -> dict[_Key, float | None]:
    if progress:
        progress("measuring peak memory in fresh processes")
    found: dict[_Key, float | None] = {}
    for subject in subjects:
        for workload in workloads:
            found[subject.name, workload.batch_size] = peak_memory(
                subject.directory,
                task,
                [max(workload.batches, key=lambda batch: batch["input_ids"].size)],
                forced_length=settings.forced_length,
                num_beams=settings.generation["num_beams"],
                device=settings.device,
                precision=settings.precisions[subject.name],
                threads=settings.threads,
            )
    return found


def _write_samples(samples: Samples, workloads: Sequence[Workload], path: Path) -> None:
    batches = {workload.batch_size: len(workload.batches) for workload in workloads}
    data = [
        {"variant": name, "batch_size": size, "batches": batches[size], "seconds": seconds}
        for (name, size), seconds in samples.items()
    ]
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _described_lengths(
    lengths: Lengths, settings: Settings, target_length: int | None, natural: bool
) -> str:
    source = "source lengths from the data" if lengths == "data" else f"{lengths} source tokens"
    if natural:
        beams = "greedy" if settings.num_beams == 1 else f"{settings.num_beams} beams"
        return f"{source}; translations as long as each model makes them, {beams}"
    if settings.forced_length is None:
        return source
    origin = "" if target_length else ", the mean of the reference model's own translations"
    return f"{source}; {settings.forced_length} generated tokens for every row{origin}"
