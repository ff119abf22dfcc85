"""Whether the files of artifacts are what was written, and whether their graphs can be opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from compressor.errors import EnvironmentProblem, InputError
from compressor.progress import Progress
from compressor.runtime.artifact import (
    CTRANSLATE2_DIRECTORY,
    CTRANSLATE2_FILES,
    GRAPH_DIRECTORY,
    Artifact,
)
from compressor.runtime.opening import read_artifact
from compressor.steps.store import STATE
from compressor.storage import manifest
from compressor.storage.names import BASE
from compressor.tasks import TASKS

# Of an artifact, whose other directories are artifacts.
MODEL_DIRECTORIES = (GRAPH_DIRECTORY, CTRANSLATE2_DIRECTORY)


def listed_files(directory: Path) -> dict[str, manifest.Listed]:
    """The files that a manifest lists; `InputError` without one."""
    listed = manifest.read_manifest(directory)
    if listed is None:
        raise InputError(
            f"{directory} has no {manifest.MANIFEST} of compress; give what compress wrote",
            id="manifest-missing",
        )
    return dict(listed)


def listed_artifacts(directory: Path, listed: Mapping[str, manifest.Listed]) -> list[Path]:
    """The directory, and those below it that are artifacts by what the manifest lists."""
    artifacts = {directory}
    for name in listed:
        top, *rest = Path(name).parts
        if rest and top not in MODEL_DIRECTORIES and not fnmatchcase(name, manifest.MODULES):
            artifacts.add(directory / top)
    return sorted(artifacts)


def _read_files(directory: Path) -> Iterator[Path]:
    """The files of an artifact that this tool, or optimum, would read."""
    yield from (directory / name for name in manifest.checkpoint_files(directory))
    yield from directory.glob("*.onnx*")
    yield directory / manifest.REPORT
    yield directory / GRAPH_DIRECTORY / manifest.GRAPHS_FILE
    with suppress(InputError):  # reported when it is opened
        artifact = read_artifact(directory)
        for precision in artifact.precisions:
            for name in artifact.used_files(precision):
                yield from (directory / name, directory / f"{name}_data")
        yield from (directory / CTRANSLATE2_DIRECTORY / name for name in CTRANSLATE2_FILES)


def require_as_listed(
    directory: Path,
    listed: Mapping[str, manifest.Listed],
    progress: Progress,
) -> list[str]:
    """Check every listed file; returns the others, of which none may be one that is read.

    Raises:
        InputError: a file is missing, damaged, of another artifact, or not listed.
    """
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
    read = {
        path for artifact in listed_artifacts(directory, listed) for path in _read_files(artifact)
    }
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


def described(directory: Path) -> Artifact | None:
    """What an artifact's graphs are described as; None without graphs."""
    has_graphs = (directory / GRAPH_DIRECTORY / manifest.GRAPHS_FILE).exists()
    return read_artifact(directory) if has_graphs else None


def open_graphs(directory: Path, artifact: Artifact, progress: Progress) -> list[str]:
    """Open the graphs of an artifact in all precisions and engines; returns what was opened."""
    task, opened = TASKS[artifact.task], list[str]()
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
            opened.append(f"{directory} {precision}")
    if (directory / CTRANSLATE2_DIRECTORY).exists():
        task.open(directory, precision=BASE, engine=CTRANSLATE2_DIRECTORY)  # of that name
        opened.append(f"{directory} {CTRANSLATE2_DIRECTORY}")
    return opened
