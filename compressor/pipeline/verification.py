"""Whether a directory still holds what this tool wrote: `compress verify`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from compressor.errors import EnvironmentProblem, InputError
from compressor.export.precision_names import BASE
from compressor.export.task_graphs import Network, require_same_weights
from compressor.model.checkpoint import open_checkpoint
from compressor.model.location import INDEX, WEIGHTS
from compressor.pipeline.inputs import random_check_batches
from compressor.progress import SILENT, Progress
from compressor.report.formats import JSON
from compressor.results import Check
from compressor.runtime.artifact import CTRANSLATE2_DIRECTORY, CTRANSLATE2_FILES, GRAPH_DIRECTORY
from compressor.runtime.opening import open_output_tokens, read_artifact
from compressor.steps import STATE
from compressor.storage import manifest
from compressor.tasks import TASKS

# Of an artifact, whose other directories are artifacts.
MODEL_DIRECTORIES = (GRAPH_DIRECTORY, CTRANSLATE2_DIRECTORY)


@dataclass(frozen=True)
class Verified:
    """What was checked."""

    directory: str
    files: int  # listed, and as they were written
    unlisted: list[str] = field(default_factory=list)  # that nothing reads
    checks: list[Check] = field(default_factory=list)  # of graphs against weights, in float32
    opened: list[str] = field(default_factory=list)  # artifact and precision of all graphs


def verify_directory(directory: Path, progress: Progress = SILENT) -> Verified:
    """Check all files against the manifest, graphs against their description, against weights.

    Raises:
        InputError: a file is missing, damaged, of another artifact, or not listed.
        VerificationError: the graphs do not answer as the weights do.
    """
    listed = manifest.read_manifest(directory)
    if listed is None:
        raise InputError(
            f"{directory} has no {manifest.MANIFEST} of compress; give what compress wrote",
            id="manifest-missing",
        )
    artifacts = {directory}
    for name in listed:
        top, *rest = Path(name).parts
        if rest and top not in MODEL_DIRECTORIES and not fnmatchcase(name, manifest.MODULES):
            artifacts.add(directory / top)
    unlisted = _require_files(directory, listed, sorted(artifacts), progress)
    verified = Verified(str(directory), len(listed), unlisted)
    for artifact in sorted(artifacts):
        _verify_artifact(artifact, verified, progress)
    return verified


def _read_files(directory: Path) -> Iterator[Path]:
    """The files of an artifact that this tool, or optimum, would read."""
    yield from (directory / name for name in manifest.checkpoint_files(directory))
    yield from directory.glob("*.onnx*")
    yield directory / JSON.file
    yield directory / GRAPH_DIRECTORY / manifest.GRAPHS_FILE
    with suppress(InputError):  # reported when it is opened
        artifact = read_artifact(directory)
        for precision in artifact.precisions:
            for name in artifact.used_files(precision):
                yield from (directory / name, directory / f"{name}_data")
        yield from (directory / CTRANSLATE2_DIRECTORY / name for name in CTRANSLATE2_FILES)


def _require_files(
    directory: Path,
    listed: Mapping[str, manifest.Listed],
    artifacts: Sequence[Path],
    progress: Progress,
) -> list[str]:
    """Check every listed file; returns the others, of which none may be one that is read."""
    manifest.require_no_links_out(directory, listed)
    problems = []
    for number, (name, expected) in enumerate(listed.items(), 1):
        change = manifest.find_change(directory, name, expected)
        if change:
            problems.append(f"{directory / name} {change}")
        progress.update("files", number, len(listed))
    on_disk = {
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_file() and path.name != manifest.MANIFEST
    }
    unlisted = sorted(n for n in on_disk - set(listed) if STATE not in Path(n).parts)
    read = {path for artifact in artifacts for path in _read_files(artifact)}
    problems += [
        f"{directory / name} is not listed in {manifest.MANIFEST}, and would be read"
        for name in unlisted
        if directory / name in read
    ]
    for problem in problems:
        progress.message(problem)
    if problems:
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InputError(
            f"{problems[0]}{more}; make the directory again, or copy it again",
            id="artifact-damaged",
        )
    return unlisted


def _verify_artifact(directory: Path, verified: Verified, progress: Progress) -> None:
    """Graphs by themselves, the checkpoint by itself, and one against the other."""
    has_graphs = (directory / GRAPH_DIRECTORY / manifest.GRAPHS_FILE).exists()
    has_weights = any((directory / name).exists() for name in (WEIGHTS, INDEX))
    if has_graphs:
        artifact = read_artifact(directory)
        task = TASKS[artifact.task]
        for precision in artifact.precisions:
            device = artifact.only_device(precision)
            progress.message(f"opening {directory} in {precision} …")
            try:
                task.open(directory, precision=precision, device=device or "cpu")
            except EnvironmentProblem as problem:
                if device is None:
                    raise
                progress.message(f"the {precision} graphs are not opened: {problem}")
            else:
                verified.opened.append(f"{directory} {precision}")
        if (directory / CTRANSLATE2_DIRECTORY).exists():
            task.open(directory, precision=BASE, engine=CTRANSLATE2_DIRECTORY)  # of that name
            verified.opened.append(f"{directory} {CTRANSLATE2_DIRECTORY}")
    if has_weights:
        progress.message(f"loading the checkpoint in {directory} …")
        named = artifact.task if has_graphs else None
        auto_class = task.auto_class if has_graphs else None
        checkpoint = open_checkpoint(
            str(directory), task=named, auto_class=auto_class, verify=False
        )
    if has_graphs and has_weights:
        inputs = [batch.inputs() for batch in random_check_batches(checkpoint, task)]
        scored = None
        if artifact.scored and artifact.scored[1]:
            scored = open_output_tokens(directory, artifact).ids.tolist()
        network = Network(checkpoint, checkpoint.model, checkpoint.mask, scored)
        require_same_weights(task.graphs, network, artifact, directory)
        verified.checks.extend(task.graphs.check(checkpoint.model, directory, inputs))
        verified.checks.extend(task.graphs.verify_engines(network, directory, inputs))
