"""Measuring finished artifacts: `compress evaluate` and `compress bench`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from compressor.evaluation import (
    compare_rows,
    require_references,
    score_rows,
    with_lengths,
    with_tokenizers,
)
from compressor.evaluation.answers import answers
from compressor.export.engine_names import split_engines
from compressor.export.precision_names import named_precisions
from compressor.model.configuration import read_configuration
from compressor.model.pruning_record import PRUNING_RECORD, read_pruning_record
from compressor.options.requests import BenchRequest, EvaluateRequest
from compressor.options.validate import check_options
from compressor.progress import SILENT, Progress
from compressor.steps.results import Comparison, Quality, Throughput
from compressor.storage.names import ONNXRUNTIME
from compressor.tasks import TASKS, Rows
from compressor.tasks.builds import Build, builds_of, read_artifacts, require_build_unchanged
from compressor.throughput import Subject, benchmark


class Evaluated(BaseModel, frozen=True):
    """Quality of one build, and its difference from the first one."""

    directory: str
    precision: str
    engine: str = ONNXRUNTIME
    quality: Quality
    comparisons: list[Comparison] = []


def evaluate_artifacts(
    directories: Sequence[Path], request: EvaluateRequest, progress: Progress = SILENT
) -> list[Evaluated]:
    """Quality of every artifact on the same rows, each compared with the first.

    Raises:
        UsageError: a precision that an artifact does not have, or an engine that does not run it.
        InputError: not an artifact, artifacts of different tasks, or malformed rows.
        EnvironmentProblem: the device or an engine is not usable.
    """
    rows, builds, device = _open(directories, request, progress)
    TASKS[rows.task].require_answers(rows)
    require_references(rows)
    rows = with_tokenizers(rows, request.evaluation.tokenizers, progress.message)
    settings, outputs = request.evaluation, list[list[str]]()
    for build in builds:
        how = build.precision, build.engine
        progress.message(f"evaluating {build.directory} ({', '.join(how)}) on {rows.count} rows …")
        outputs.append(answers(build.directory, rows, device, settings.num_beams, progress, *how))
    first, resamples = outputs[0], settings.resamples
    seed = request.seed
    return [
        Evaluated(
            directory=str(build.directory),
            precision=build.precision,
            engine=build.engine,
            quality=with_lengths(score_rows(rows, texts), rows, texts, first if number else None),
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
    compared with, in its own engine and in the fastest. Multiply-adds are compared where an
    artifact records its units (`units.json`); a directory without holds the dense model.
    Without precisions it takes the artifacts' default, which must be the same.

    Raises:
        UsageError, InputError, EnvironmentProblem: as `evaluate_artifacts`.
    """
    rows, builds, device = _open(directories, request, progress)
    precisions = named_precisions(request.builds.precision)
    several_engines = len({build.engine for build in builds}) > 1
    masks = {d: read_pruning_record(d).mask for d in directories if (d / PRUNING_RECORD).exists()}
    config, dense = None, dict[str, int]()
    if masks:
        first = next(iter(masks))
        config, dense = read_configuration(first, trust_remote_code=False), masks[first].totals()
    names = {d: d.name if d in masks else "dense" for d in directories}
    if len(set(names.values())) < len(directories):
        names = {d: d.as_posix() for d in directories}
    subjects = []
    for build in builds:
        parts, mask = [names[build.directory]], masks.get(build.directory)
        if several_engines:
            parts.append(build.engine)
        if precisions is not None and len(precisions) > 1:
            parts.append(build.precision)
        counts = dense if mask is None else mask.of_layers_left().counts()
        precision = None if precisions is None else build.precision
        is_dense = build.directory == directories[0]
        subjects.append(
            Subject("-".join(parts), build.directory, counts, precision, build.engine, is_dense)
        )
    return benchmark(
        subjects,
        rows=rows,
        config=config and config.to_dict(),
        device=device,
        memory=memory,
        progress=progress.message,
        **request.throughput.settings(),
    )


def _open(
    directories: Sequence[Path], request: EvaluateRequest | BenchRequest, progress: Progress
) -> tuple[Rows, list[Build], str]:
    """The rows, what to measure, and the device; files are checked against the manifests."""
    artifacts = read_artifacts(directories, request.verify)
    first = artifacts[directories[0]]
    task = TASKS[first.task]
    if isinstance(request, EvaluateRequest):
        check_options([request.evaluation], task, str(directories[0]))
    precisions = named_precisions(request.builds.precision)
    engines = split_engines(request.builds.engine)
    builds = [
        build
        for directory in directories
        for build in builds_of(directory, artifacts[directory], engines, precisions)
    ]
    for build in builds if request.verify else ():
        require_build_unchanged(build, artifacts[build.directory])
    rows = task.read_rows(
        request.data.test,
        labels=first.labels,
        languages=first.direction,
        minimum=2,
        limit=request.data.test_rows,
        progress=lambda done: progress.update("rows read", done, None),
        **request.data.columns(),
    )
    progress.message(rows.said)
    # The one device that all builds run on; `auto` is the CPU if an engine runs nowhere else.
    devices = {
        task.engine(name).choose_device(
            request.device, [build.precision for build in builds if build.engine == name]
        )
        for name in engines
    }
    return rows, builds, devices.pop() if len(devices) == 1 else "cpu"
