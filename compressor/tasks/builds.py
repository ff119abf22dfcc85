"""The builds of artifacts: each in one precision of one engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compressor.errors import InputError, UsageError
from compressor.model.pruning_record import PRUNING_RECORD
from compressor.runtime.artifact import Artifact
from compressor.runtime.opening import read_description, require_files
from compressor.storage.manifest import require_unchanged
from compressor.tasks import TASKS


@dataclass(frozen=True)
class Build:
    """An artifact in one precision of one engine."""

    directory: Path
    engine: str
    precision: str


def read_artifacts(directories: Sequence[Path], verify: bool) -> dict[Path, Artifact]:
    """The descriptions of artifacts that can be compared.

    Args:
        directories: of artifacts.
        verify: whether they are checked against the manifests.

    Raises:
        InputError: not an artifact, or artifacts of different tasks.
    """
    artifacts = {directory: read_description(directory, verify) for directory in directories}
    first = artifacts[directories[0]]
    for directory, artifact in artifacts.items():
        if (artifact.task, artifact.labels) != (first.task, first.labels):
            raise InputError(
                f"{directory} cannot be compared with {directories[0]}: task or labels differ",
                id="artifacts-not-comparable",
            )
    return artifacts


def require_build_unchanged(build: Build, artifact: Artifact) -> None:
    """Check the files of a build against the manifest."""
    engine = TASKS[artifact.task].engine(build.engine)
    require_files(build.directory, engine.files(build.directory, artifact, build.precision))
    settings = (PRUNING_RECORD, "config.json")  # multiply-adds follow from them
    present = [name for name in settings if (build.directory / name).exists()]
    require_unchanged(build.directory, present, warn=False)


def builds_of(
    directory: Path, artifact: Artifact, engines: Sequence[str], precisions: Sequence[str] | None
) -> list[Build]:
    """What to measure of an artifact: each engine in those of the precisions that it has.

    Args:
        directory: of the artifact.
        artifact: its description.
        engines: names.
        precisions: None for each engine's default one.

    Raises:
        UsageError: an engine has none of the precisions, or no engine has one of them.
    """
    task, builds = TASKS[artifact.task], list[Build]()
    for name in engines:
        engine = task.engine(name)
        wanted = [engine.default_precision(artifact)]
        if precisions is not None:
            offered = engine.precisions(directory, artifact)
            wanted = [precision for precision in precisions if precision in offered]
        for precision in wanted:
            engine.files(directory, artifact, precision)  # raises where it has nothing to open
            builds.append(Build(directory, name, precision))
    made = {x for build in builds for x in (build.engine, build.precision)}
    for name in (*engines, *(precisions or ())):
        if name not in made:
            offered = task.engine(engines[0]).precisions(directory, artifact)
            raise UsageError(
                f"{directory} has no build for {name}; export it, or choose {', '.join(offered)} "
                f"in {engines[0]}",
                id="precision-not-in-artifact",
            )
    return builds
