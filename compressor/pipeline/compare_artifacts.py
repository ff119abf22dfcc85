"""Measuring artifacts that are there already: `compress evaluate` and `compress bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from compressor.errors import InputError, UsageError
from compressor.evaluation import compare
from compressor.evaluation.answers import answers
from compressor.model.configuration import read_configuration
from compressor.model.pruning_record import PRUNING_RECORD, read_pruning_record
from compressor.pipeline.evaluate import measure
from compressor.progress import SILENT, Progress
from compressor.request.recipe import BenchRequest, EvaluateRequest
from compressor.results import Comparison, Quality, Throughput
from compressor.runtime.artifact import Artifact, read_artifact
from compressor.runtime.consistency import read_unchanged
from compressor.runtime.session import choose_device
from compressor.storage.manifest import require_unchanged
from compressor.tasks import TASKS, Rows
from compressor.throughput import Subject, benchmark


class Evaluated(BaseModel, frozen=True):
    """Quality of one artifact, and its difference from the first one."""

    directory: str
    precision: str
    quality: Quality
    comparisons: list[Comparison] = []


def evaluate_artifacts(
    directories: Sequence[Path],
    request: EvaluateRequest,
    precisions: Sequence[str] | None = None,
    progress: Progress = SILENT,
) -> list[Evaluated]:
    """Quality of every artifact on the same rows, each compared with the first.

    Args:
        precisions: run every artifact in each of them; None takes each artifact's default.

    Raises:
        UsageError: a precision that an artifact was not exported in.
        InputError: not an artifact, artifacts of different tasks, or malformed rows.
        EnvironmentProblem: the device is not usable.
    """
    rows, builds, device = _open(directories, request, precisions)
    settings = request.evaluation
    keys = {f"{directory} ({precision})": (directory, precision) for directory, precision in builds}
    first, *others = keys

    def answer(name: str) -> list[str]:
        directory, precision = keys[name]
        progress.message(f"evaluating {name} on {rows.count} rows …")
        return answers(directory, rows, device, settings.num_beams, progress, precision)

    def compared(name: str, base: str, outputs: Mapping[str, list[str]]) -> list[Comparison]:
        return compare(
            rows.task, outputs[base], outputs[name], rows.targets,
            resamples=settings.resamples, seed=request.seed,
        )  # fmt: skip

    measured = measure(rows, {first: []} | {name: [first] for name in others}, answer, compared)
    return [
        Evaluated(
            directory=str(keys[name][0]),
            precision=keys[name][1],
            quality=found.quality,
            comparisons=found.comparisons.get(first, []),
        )
        for name, found in measured.items()
    ]


def bench_artifacts(
    directories: Sequence[Path],
    request: BenchRequest,
    precisions: Sequence[str] | None = None,
    progress: Progress = SILENT,
    memory: bool = True,
) -> Throughput:
    """Interleaved throughput of artifacts, speed-ups against the first.

    Args:
        precisions: time every artifact in each of them; None takes the artifacts' default, which
            must be the same.
        memory: measure peak memory, too.

    Raises:
        InputError: not an artifact, artifacts of different tasks, or malformed rows.
        EnvironmentProblem: the device is not usable.
    """
    rows, _, device = _open(directories, request, precisions)
    subjects, config = _subjects(directories)
    if precisions is not None:
        subjects = [
            replace(
                subject,
                name=subject.name if len(precisions) == 1 else f"{subject.name}-{precision}",
                precision=precision,
            )
            for subject in subjects
            for precision in precisions
        ]
    return benchmark(
        subjects, rows=rows, config=config, device=device, memory=memory,
        progress=progress.message, **request.throughput.settings(),
    )  # fmt: skip


def _open(
    directories: Sequence[Path],
    request: EvaluateRequest | BenchRequest,
    precisions: Sequence[str] | None,
) -> tuple[Rows, list[tuple[Path, str]], str]:
    """The rows, what to measure (artifact and precision), and the device."""
    if request.verify:
        _verify(directories, precisions)
    artifacts = [read_artifact(directory) for directory in directories]
    first = artifacts[0]
    for artifact, directory in zip(artifacts, directories, strict=True):
        if (artifact.task, artifact.labels) != (first.task, first.labels):
            raise InputError(
                f"{directory} cannot be compared with {directories[0]}: task or labels differ",
                id="artifacts-not-comparable",
            )
    data = request.data
    rows = TASKS[first.task].read_rows(
        data.test, labels=first.labels, minimum=2, limit=data.test_rows, **data.columns()
    )
    builds = _builds(directories, artifacts, precisions)
    return rows, builds, choose_device(request.device, [precision for _, precision in builds])


def _verify(directories: Sequence[Path], precisions: Sequence[str] | None) -> None:
    """Check what will be opened against the manifests."""
    for directory in directories:
        read_unchanged(directory, precisions)
        settings = (PRUNING_RECORD, "config.json")  # for limits of speed
        there = [name for name in settings if (directory / name).exists()]
        require_unchanged(directory, there, warn=False)


def _builds(
    directories: Sequence[Path], artifacts: Sequence[Artifact], precisions: Sequence[str] | None
) -> list[tuple[Path, str]]:
    """What to measure: every artifact in every precision, or in its default.

    Raises:
        UsageError: an artifact lacks one of them.
    """
    builds = []
    for directory, artifact in zip(directories, artifacts, strict=True):
        for precision in precisions or [artifact.default_precision]:
            if precision not in artifact.precisions:
                raise UsageError(
                    f"{directory} has no precision {precision!r}, only "
                    f"{', '.join(sorted(artifact.precisions))}; choose one of those, or export it",
                    id="precision-not-in-artifact",
                )
            builds.append((directory, precision))
    return builds


def _subjects(directories: Sequence[Path]) -> tuple[list[Subject], dict[str, Any] | None]:
    """Head counts per artifact and the configuration, for the theoretical limit.

    A directory without units.json holds the dense model, whose head counts the others know;
    where nothing tells them, there is no limit to show.
    """
    masks = {d: read_pruning_record(d).mask for d in directories if (d / PRUNING_RECORD).exists()}
    dense = next(iter(masks.values())).totals() if masks else {}
    counts = [masks[d].of_layers_left().counts() if d in masks else dense for d in directories]
    names = [
        "dense" if d not in masks and len(masks) < len(directories) else d.name for d in directories
    ]
    if len(set(names)) < len(names):
        names = [d.as_posix() for d in directories]
    config = None
    if masks:
        config = read_configuration(next(iter(masks)), trust_remote_code=False).to_dict()
    subjects = [Subject(n, d, c) for n, d, c in zip(names, directories, counts, strict=True)]
    return subjects, config
