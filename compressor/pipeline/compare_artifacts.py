"""Measuring artifacts that are there already: `compress evaluate` and `compress bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from compressor.errors import InputError, UsageError
from compressor.evaluation import compare, score_answers
from compressor.evaluation.answers import answers
from compressor.model.configuration import read_configuration
from compressor.model.pruning_record import PRUNING_RECORD, read_pruning_record
from compressor.progress import SILENT, Progress
from compressor.results import Comparison, Quality, Throughput
from compressor.runtime.artifact import Artifact, read_artifact
from compressor.runtime.consistency import read_unchanged
from compressor.runtime.session import choose_device
from compressor.storage.manifest import read_manifest, require_unchanged
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
    test: str,
    columns: Mapping[str, Any],
    *,
    precisions: Sequence[str] | None = None,
    device: str = "auto",
    num_beams: int | None = None,
    resamples: int = 1000,
    seed: int = 0,
    progress: Progress = SILENT,
    verify: bool = True,
) -> list[Evaluated]:
    """Quality of every artifact on the same rows, each compared with the first.

    Args:
        precisions: run every artifact in each of them; None takes each artifact's default.
        verify: check the artifacts' files against their manifests first.

    Raises:
        UsageError: a precision that an artifact was not exported in.
        InputError: not an artifact, artifacts of different tasks, or malformed rows.
        EnvironmentProblem: the device is not usable.
    """
    if verify:
        _verify(directories, precisions)
    first, rows = _open(directories, test, columns)
    builds = _builds(directories, precisions)
    device = choose_device(device, [precision for _, precision in builds])
    found: list[Evaluated] = []
    reference: list[str] = []
    for directory, precision in builds:
        progress.message(f"evaluating {directory} ({precision}) on {len(rows.sources)} rows …")
        outputs = answers(directory, rows, device, num_beams, progress, precision)
        quality = score_answers(rows.task, outputs, rows.targets, first.labels)
        comparisons = []
        if found:
            comparisons = compare(
                rows.task, reference, outputs, rows.targets, resamples=resamples, seed=seed
            )
        else:
            reference = outputs
        found.append(
            Evaluated(
                directory=str(directory),
                precision=precision,
                quality=quality,
                comparisons=comparisons,
            )
        )
    return found


def bench_artifacts(
    directories: Sequence[Path],
    test: str,
    columns: Mapping[str, Any],
    *,
    precisions: Sequence[str] | None = None,
    device: str = "auto",
    progress: Progress = SILENT,
    verify: bool = True,
    **settings: Any,
) -> Throughput:
    """Interleaved throughput of artifacts, speed-ups against the first.

    Args:
        precisions: time every artifact in each of them; None takes the artifacts' default, which
            must be the same.
        verify: check the artifacts' files against their manifests first.
        settings: as for `compressor.throughput.benchmark`.

    Raises:
        InputError: not an artifact, artifacts of different tasks, or malformed rows.
        EnvironmentProblem: the device is not usable.
    """
    if verify:
        _verify(directories, precisions)
    _, rows = _open(directories, test, columns)
    builds = _builds(directories, precisions)
    device = choose_device(device, [precision for _, precision in builds])
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
        subjects, rows=rows, config=config, device=device, progress=progress.message, **settings
    )


def _verify(directories: Sequence[Path], precisions: Sequence[str] | None) -> None:
    """Check what will be opened against the manifests."""
    for directory in directories:
        read_unchanged(directory, precisions)
        listed = read_manifest(directory) or {}
        settings = (PRUNING_RECORD, "config.json")  # for limits of speed
        require_unchanged(directory, [n for n in settings if n in listed], warn=False)


def _builds(
    directories: Sequence[Path], precisions: Sequence[str] | None
) -> list[tuple[Path, str]]:
    """What to measure: every artifact in every precision, or in its default.

    Raises:
        UsageError: an artifact lacks one of them.
    """
    found = []
    for directory in directories:
        artifact = read_artifact(directory)
        for precision in precisions or [artifact.default_precision]:
            if precision not in artifact.precisions:
                raise UsageError(
                    f"{directory} has no precision {precision!r}, only "
                    f"{', '.join(sorted(artifact.precisions))}; choose one of those, or export it",
                    id="precision-not-in-artifact",
                )
            found.append((directory, precision))
    return found


def _open(
    directories: Sequence[Path], test: str, columns: Mapping[str, Any]
) -> tuple[Artifact, Rows]:
    artifacts = [read_artifact(directory) for directory in directories]
    first = artifacts[0]
    for artifact, directory in zip(artifacts, directories, strict=True):
        if (artifact.task, artifact.labels) != (first.task, first.labels):
            raise InputError(
                f"{directory} cannot be compared with {directories[0]}: task or labels differ",
                id="artifacts-not-comparable",
            )
    return first, TASKS[first.task].read_rows(test, labels=first.labels, minimum=2, **columns)


def _subjects(directories: Sequence[Path]) -> tuple[list[Subject], dict[str, Any] | None]:
    """Head counts per artifact and the configuration, for the theoretical limit.

    A directory without units.json holds the dense model, whose head counts the others know;
    where nothing tells them, there is no limit to show.
    """
    masks = {d: read_pruning_record(d).mask for d in directories if (d / PRUNING_RECORD).exists()}
    dense = next(iter(masks.values())).totals() if masks else {}
    counts = [masks[d].counts() if d in masks else dense for d in directories]
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
