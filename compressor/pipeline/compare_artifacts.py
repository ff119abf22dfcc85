"""Measuring finished artifacts: `compress evaluate` and `compress bench`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from compressor.errors import InputError
from compressor.evaluation import compare_rows, require_references, score_rows, with_tokenizers
from compressor.evaluation.answers import answers
from compressor.export.engine_names import ONNXRUNTIME, split_engines
from compressor.export.precision_names import named_precisions
from compressor.model.configuration import read_configuration
from compressor.model.pruning_record import PRUNING_RECORD, read_pruning_record
from compressor.pipeline.engines import Build, builds_of, choose_device
from compressor.progress import SILENT, Progress
from compressor.request.recipe import BenchRequest, EvaluateRequest
from compressor.request.validate import check_options
from compressor.results import Comparison, Quality, Throughput
from compressor.runtime.artifact import read_artifact
from compressor.runtime.consistency import read_description, require_files
from compressor.storage.manifest import require_unchanged
from compressor.tasks import TASKS, Rows, Task
from compressor.throughput import Subject, benchmark


class Evaluated(BaseModel, frozen=True):
    """Quality of one artifact, and its difference from the first one."""

    directory: str
    precision: str
    engine: str = ONNXRUNTIME
    quality: Quality
    comparisons: list[Comparison] = []


def evaluate_artifacts(
    directories: Sequence[Path],
    request: EvaluateRequest,
    progress: Progress = SILENT,
) -> list[Evaluated]:
    """Quality of every artifact on the same rows, each compared with the first.

    Raises:
        UsageError: a precision that an artifact was not exported in, or an engine that does not
            run it.
        InputError: not an artifact, artifacts of different tasks, or malformed rows.
        EnvironmentProblem: the device or an engine is not usable.
    """
    rows, builds, device = _open(directories, request, progress)
    engines = {build.engine for build in builds}
    settings, outputs = request.evaluation, list[list[str]]()
    for build in builds:
        how = f"{build.engine}, {build.precision}" if len(engines) > 1 else build.precision
        name = f"{build.directory} ({how})"
        progress.message(f"evaluating {name} on {rows.count} rows …")
        outputs.append(
            answers(
                build.directory, rows, device, settings.num_beams, progress, build.precision,
                build.engine,
            )
        )  # fmt: skip
    first, resamples, seed = outputs[0], settings.resamples, request.seed
    return [
        Evaluated(
            directory=str(build.directory),
            precision=build.precision,
            engine=build.engine,
            quality=score_rows(rows, texts),
            comparisons=compare_rows(rows, first, texts, resamples, seed) if number else [],
        )
        for number, (build, texts) in enumerate(zip(builds, outputs, strict=True))
    ]


def bench_artifacts(
    directories: Sequence[Path],
    request: BenchRequest,
    progress: Progress = SILENT,
    memory: bool = True,
) -> Throughput:
    """Interleaved throughput of artifacts, speed-ups against the first.

    With several engines the first artifact is also taken for the dense model that every build is
    compared with, in its own engine and in the fastest.

    Args:
        request: without precisions it takes the artifacts' default, which must be the same.
        memory: measure peak memory, too.

    Raises:
        UsageError, InputError: as `evaluate_artifacts`.
        EnvironmentProblem: the device or an engine is not usable.
    """
    rows, builds, device = _open(directories, request, progress)
    engines = {build.engine for build in builds}
    precisions = named_precisions(request.builds.precision)
    subjects, config = _subjects(directories)
    by_directory = dict(zip(directories, subjects, strict=True))

    def timed(build: Build) -> Subject:
        subject = by_directory[build.directory]
        parts = [subject.name]
        parts += [build.engine] * (len(engines) > 1)
        parts += [build.precision] * (precisions is not None and len(precisions) > 1)
        precision = None if precisions is None else build.precision
        return replace(
            subject,
            name="-".join(parts),
            precision=precision,
            engine=build.engine,
            dense=build.directory == directories[0],
        )

    return benchmark(
        [timed(build) for build in builds], rows=rows, config=config, device=device, memory=memory,
        progress=progress.message, **request.throughput.settings(),
    )  # fmt: skip


def _open(
    directories: Sequence[Path],
    request: EvaluateRequest | BenchRequest,
    progress: Progress,
) -> tuple[Rows, list[Build], str]:
    """The rows, what to measure, and the device."""
    artifacts = [read_description(directory, request.verify) for directory in directories]
    first = artifacts[0]
    for artifact, directory in zip(artifacts, directories, strict=True):
        if (artifact.task, artifact.labels) != (first.task, first.labels):
            raise InputError(
                f"{directory} cannot be compared with {directories[0]}: task or labels differ",
                id="artifacts-not-comparable",
            )
    task = TASKS[first.task]
    if isinstance(request, EvaluateRequest):
        check_options([request.evaluation], task, str(directories[0]))
    precisions = named_precisions(request.builds.precision)
    engines = split_engines(request.builds.engine)
    builds = [
        build
        for directory, artifact in zip(directories, artifacts, strict=True)
        for build in builds_of(directory, artifact, engines, precisions)
    ]
    if request.verify:
        _verify(builds, task)
    data = request.data
    rows = task.read_rows(
        data.test,
        labels=first.labels,
        minimum=2,
        limit=data.test_rows,
        progress=lambda done: progress.update("rows read", done, None),
        **data.columns(),
    )
    if isinstance(request, EvaluateRequest):
        task.require_answers(rows)
        require_references(rows)
        rows = with_tokenizers(rows, request.evaluation.tokenizers, progress.message)
    return rows, builds, choose_device(builds, task, request.device)


def _verify(builds: Sequence[Build], task: Task) -> None:
    """Check what will be opened against the manifests."""
    for build in builds:
        artifact = read_artifact(build.directory)
        require_files(build.directory, artifact, task.engine(build.engine), [build.precision])
        settings = (PRUNING_RECORD, "config.json")  # multiply-adds follow from them
        present = [name for name in settings if (build.directory / name).exists()]
        require_unchanged(build.directory, present, warn=False)


def _subjects(directories: Sequence[Path]) -> tuple[list[Subject], dict[str, Any] | None]:
    """Head counts per artifact and the configuration, from which multiply-adds are counted.

    A directory without units.json holds the dense model, whose head counts the others know;
    where nothing tells them, there are no multiply-adds to compare.
    """
    masks = {d: read_pruning_record(d).mask for d in directories if (d / PRUNING_RECORD).exists()}
    dense = next(iter(masks.values())).totals() if masks else {}
    counts = [masks[d].of_layers_left().counts() if d in masks else dense for d in directories]
    names = [d.name if d in masks else "dense" for d in directories]
    if len(set(names)) < len(names):
        names = [d.as_posix() for d in directories]
    config = None
    if masks:
        config = read_configuration(next(iter(masks)), trust_remote_code=False).to_dict()
    subjects = [Subject(n, d, c) for n, d, c in zip(names, directories, counts, strict=True)]
    return subjects, config
