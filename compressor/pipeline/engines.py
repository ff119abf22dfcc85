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
from compressor.runtime.engines import engine_class
from compressor.runtime.engines.pytorch import PyTorch
from compressor.tasks import TASKS, Task

DENSE = "dense"  # name of the model to compare with


def require_engines(names: Sequence[str], task: Task, device: str = "cpu") -> None:
    """Check, before anything long is computed, that engines run models of the task on a device."""
    for name in names:
        engine = task.engine(name)
        if engine.dense_only and not task.plain_logits:
            raise UsageError(
                f"the engine {name} runs no models for {task.name}; leave it out of --engines",
                id="engine-not-for-task",
            )
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
    """What to measure of an artifact: each engine in those of the precisions that it has.

    Args:
        precisions: None for each engine's default one.

    Raises:
        UsageError: an engine has none of the precisions, or no engine has one of them.
    """
    task = TASKS[artifact.task]
    builds, known = [], set()
    for name in engines:
        engine = task.engine(name)
        if precisions is None:
            wanted = [engine.default_precision(artifact)]
        else:
            available = engine.precisions(directory, artifact)
            known |= set(available)
            wanted = [precision for precision in precisions if precision in available]
            if not wanted:
                raise _lacking(directory, f"{precisions[0]!r} in the engine {name}", available)
        for precision in wanted:
            engine.files(directory, artifact, precision)  # raises where it has nothing to open
            builds.append(Build(directory, name, precision))
    for precision in precisions or ():
        if precision not in known:
            raise _lacking(directory, repr(precision), sorted(known))
    return builds


def _lacking(directory: Path, precision: str, available: Sequence[str]) -> UsageError:
    return UsageError(
        f"{directory} has no precision {precision}, only {', '.join(available)}; choose one of "
        "those, or export it",
        id="precision-not-in-artifact",
    )


def engines_to_measure(engines: Sequence[str], task: Task, device: str, timed: bool) -> list[str]:
    """The engines of a run: those that were asked for, and where a GPU is timed PyTorch, too.

    Without it the dense model might look slower than what a user has already.
    """
    measured = list(engines)
    rival = PyTorch.name
    if timed and device == "cuda" and rival not in measured and task.plain_logits:
        measured += [rival] * PyTorch.library().cuda.is_available()
    return measured


def delivered(engines: Sequence[str]) -> list[str]:
    """Those of the engines that run pruned models."""
    return [name for name in engines if not engine_class(name).dense_only]


def engine_builds(model: Variant, engines: Sequence[str], device: str = "cpu") -> list[Variant]:
    """An exported float32 model in the run's other engines, in all precisions to measure."""
    directory = Path(model.directory)
    artifact = read_artifact(directory)
    if model.name != DENSE:
        engines = delivered(engines)
    builds = []
    for engine in engines:
        if engine == ONNXRUNTIME:
            continue
        for precision in TASKS[artifact.task].engine(engine).measured(directory, artifact, device):
            update = {
                "name": "-".join([model.name, engine, *([precision] * (precision != BASE))]),
                "precision": precision,
                "engine": engine,
                "base": model.name,
                "default": False,
                "scoring": None,
                "checks": [],
            }
            builds.append(model.model_copy(update=update))
    return builds


def choose_device(builds: Sequence[Build], task: Task, device: str) -> str:
    """The one device that all builds run on; `auto` is the CPU if an engine runs nowhere else."""
    precisions: dict[str, list[str]] = {}
    for build in builds:
        precisions.setdefault(build.engine, []).append(build.precision)
    devices = {task.engine(name).choose_device(device, x) for name, x in precisions.items()}
    return devices.pop() if len(devices) == 1 else "cpu"
