"""Engines that artifacts are exported for and run in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compressor.errors import UsageError
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.precision_names import BASE
from compressor.results import Variant
from compressor.runtime.artifact import Artifact, read_artifact
from compressor.tasks import TASKS, Task


def require_engines(names: Sequence[str], task: Task, device: str = "cpu") -> None:
    """Check, before anything long is computed, that engines can be used.

    Raises:
        UsageError: one does not run models of the task, or not on the device.
        EnvironmentProblem: its package is missing or too old.
    """
    for name in names:
        engine = task.engine(name)
        if name != ONNXRUNTIME:
            engine.library()
            engine.choose_device(device)


@dataclass(frozen=True)
class Build:
    """An artifact in one precision of one engine."""

    directory: Path
    engine: str
    precision: str


def builds_of(
    directory: Path, artifact: Artifact, engines: Sequence[str], precisions: Sequence[str] | None
) -> list[Build]:
    """What to measure of an artifact.

    Args:
        precisions: each engine computes in those of them that it has; None: in its default one.

    Raises:
        UsageError: an engine does not run the artifact, or has none of the precisions; or no engine
            has one of them.
        EnvironmentProblem: a package is missing or too old.
    """
    task = TASKS[artifact.task]
    builds = []
    for name in engines:
        engine = task.engine(name)
        if precisions is None:
            wanted = [engine.default_precision(artifact)]
        else:
            available = engine.precisions(directory, artifact)
            wanted = [precision for precision in precisions if precision in available]
            if not wanted:
                raise _lacking(directory, f"{precisions[0]!r} in the engine {name}", available)
        for precision in wanted:
            engine.files(directory, artifact, precision)  # raises where it has nothing to open
            builds.append(Build(directory, name, precision))
    for precision in precisions or ():
        if precision not in {build.precision for build in builds}:
            known = (task.engine(name).precisions(directory, artifact) for name in engines)
            raise _lacking(directory, repr(precision), sorted(set().union(*known)))
    return builds


def _lacking(directory: Path, precision: str, available: Sequence[str]) -> UsageError:
    return UsageError(
        f"{directory} has no precision {precision}, only {', '.join(available)}; choose one of "
        "those, or export it",
        id="precision-not-in-artifact",
    )


def engine_builds(model: Variant, engines: Sequence[str]) -> list[Variant]:
    """A model in every other engine that a run measures, in all precisions it computes in here.

    Args:
        model: an exported float32 model.
    """
    directory = Path(model.directory)
    artifact = read_artifact(directory)
    return [
        model.model_copy(
            update={
                "name": "-".join([model.name, name, *([precision] * (precision != BASE))]),
                "precision": precision,
                "engine": name,
                "base": model.name,
                "default": False,
                "scoring": None,
                "checks": [],
            }
        )
        for name in engines
        if name != ONNXRUNTIME
        for precision in TASKS[artifact.task].engine(name).precisions(directory, artifact)
    ]


def choose_device(builds: Sequence[Build], task: Task, device: str) -> str:
    """The one device that all builds run on; `auto` is the CPU if an engine runs nowhere else.

    Raises:
        UsageError: an engine does not run on the device that was named.
        EnvironmentProblem: the device is not usable.
    """
    wanted = {
        build.engine: [x.precision for x in builds if x.engine == build.engine] for build in builds
    }
    found = {task.engine(name).choose_device(device, names) for name, names in wanted.items()}
    return found.pop() if len(found) == 1 else "cpu"
