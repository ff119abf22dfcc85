"""The output directory: finished stages that a stopped run goes on from, and the manifest.

`OUT/.compress/` holds a small JSON file per finished stage (and the dense model's graphs, which
later stages compare with). A stage's file is written last and at once, so it is there exactly
when all that the stage wrote is complete. Stages that make files for the user note their names and
sizes in `NAME.files` beside it, and are done again if one of them is missing or has another size.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from compressor.errors import InputError, UsageError
from compressor.files import sha256_of, write_json
from compressor.model.memory import trim_memory
from compressor.progress import Progress
from compressor.runtime.artifact import GRAPHS_FILE

STATE = ".compress"
MANIFEST = "manifest.json"
REWRITTEN = (GRAPHS_FILE,)  # by later stages, which add what they made
_RUN = "run.json"

Value = TypeVar("Value")


class Workspace:
    """An output directory that belongs to one run; see `open_workspace`."""

    def __init__(self, root: Path, progress: Progress) -> None:
        self.root = root
        self.state = root / STATE
        self._progress = progress
        self._told: set[str] = set()  # stages that were named already

    def stage(self, name: str, title: str, compute: Callable[[], Value]) -> Value:
        """The JSON value of a stage: read if it is finished, else computed and written."""
        path = self._record(name)
        told = name in self._told
        self._told.add(name)
        if path.exists():
            if not told:
                self._progress.message(f"{title}: done before")
            return json.loads(path.read_text(encoding="utf-8"))
        self._progress.message(f"{title} …")
        began = time.perf_counter()
        value = compute()
        trim_memory()
        write_json(path, value)
        self._progress.detail(f"  {name}: {time.perf_counter() - began:.1f} s")
        return value

    def build(
        self,
        name: str,
        title: str,
        compute: Callable[[], Value],
        directory: Path,
        later: Sequence[str],
    ) -> Value:
        """A stage that writes files to `directory`; done again if one of them was lost.

        Args:
            later: stages that hold only for these files: they are done again too, so that nothing
                is reported that was measured on others.
        """
        files = self.state / f"{name}.files"
        if self._record(name).exists() and not _unchanged(files, directory):
            self._progress.message(
                f"files in {directory} are missing or changed; they are made again"
            )
            for stale in (*later, name):  # this one last, or a stop between would keep the others
                self._record(stale).unlink(missing_ok=True)

        def compute_and_note() -> Value:
            before = _sizes_and_times(directory)
            value = compute()
            made = _sizes_and_times(directory)
            # What was there before and is not written anew belongs to others, unless it was noted.
            own = json.loads(files.read_text(encoding="utf-8")) if files.exists() else {}
            own |= {n: found for n, found in made.items() if before.get(n) != found}
            write_json(files, {n: made[n][0] for n in own if n in made})
            return value

        return self.stage(name, title, compute_and_note)

    def _record(self, name: str) -> Path:
        return self.state / f"{name}.json"


def _sizes_and_times(directory: Path) -> dict[str, tuple[int, int]]:
    """Bytes and time of change (ns) of all files below a directory but a workspace's own."""
    found = {}
    for path in directory.rglob("*"):
        if path.is_file() and STATE not in path.relative_to(directory).parts:
            facts = path.stat()
            found[path.relative_to(directory).as_posix()] = facts.st_size, facts.st_mtime_ns
    return found


def _unchanged(files: Path, directory: Path) -> bool:
    """Whether all files of a note are there, in their size; `REWRITTEN` ones in any size."""
    if not files.exists():
        return False
    noted = json.loads(files.read_text(encoding="utf-8"))
    there = _sizes_and_times(directory)
    return all(
        name in there and (size == there[name][0] or Path(name).name in REWRITTEN)
        for name, size in noted.items()
    )


def open_workspace(root: Path, identity: Mapping[str, Any], progress: Progress) -> Workspace:
    """Take an empty directory, or go on with one that holds the same run.

    Args:
        root: a directory that can be written (`outputs.require_directory`).
        identity: the resolved options and fingerprints of all inputs.

    Raises:
        InputError: the directory holds something that is not ours.
        UsageError: it holds a run with other options or other inputs.
    """
    record = root / STATE / _RUN
    if record.exists():
        before = json.loads(record.read_text(encoding="utf-8"))
        changed = [
            key for key in identity if before.get(key) != json.loads(json.dumps(identity[key]))
        ]
        if changed:
            key = changed[0]
            raise UsageError(
                f"{root} holds a run with {key}={before.get(key)!r}, now it is {identity[key]!r}; "
                "give the same options to go on, or another --output"
            )
    elif root.exists() and any(root.iterdir()):
        raise InputError(f"{root} is not empty and holds no run; choose another --output")
    workspace = Workspace(root, progress)
    workspace.state.mkdir(parents=True, exist_ok=True)
    write_json(record, identity)
    return workspace


def write_manifest(directory: Path, facts: Mapping[str, Any]) -> None:
    """List every file of an artifact with its size and SHA-256, beside how it came to be."""
    files = {
        path.relative_to(directory).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": sha256_of(path),
        }
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != MANIFEST and STATE not in path.parts
    }
    write_json(directory / MANIFEST, {"schema": 1, **facts, "files": files})
