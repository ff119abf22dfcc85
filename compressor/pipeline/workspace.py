"""The output directory: finished stages that a stopped run goes on from, and the manifest.

`OUT/.compress/` holds a small JSON record per finished stage (and the dense model's graphs, which
later stages compare with). A record is written last and at once, so it is there exactly when all
that the stage wrote is complete; it holds the SHA-256 of the files that the stage wrote. A record
that cannot be read, or whose files are missing or changed, counts as not there: the stage is made
again, after a message.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from compressor import __version__
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


@dataclass(frozen=True)
class Record:
    """What is kept of a finished stage.

    Args:
        stage: its name in the table of stages, or of a study.
        keys: what tells it from others of the same stage.
        result: as JSON.
        files: path from the output directory -> SHA-256, of what it wrote.
        version: of the tool that wrote it.
    """

    stage: str
    keys: dict[str, str | int]
    result: Any
    files: dict[str, str] = field(default_factory=dict)
    version: str = __version__


_RECORD = TypeAdapter(Record)


class Workspace:
    """An output directory that belongs to one run; see `open_workspace`."""

    def __init__(self, root: Path, progress: Progress) -> None:
        self.root = root
        self.state = root / STATE
        self.progress = progress
        self._announced: set[str] = set()

    def read(self, name: str, decode: Callable[[Any], Value], title: str) -> Value | None:
        """The result of a finished stage; None where there is none that can be relied on."""
        path = self.state / f"{name}.json"
        if not path.exists():
            return None
        try:
            record = _RECORD.validate_json(path.read_bytes())
            if record.version != __version__:
                raise ValueError(f"it is of version {record.version}")
            result = decode(record.result)
        except (ValueError, KeyError, TypeError, AttributeError):
            self.progress.message(f"{path} cannot be read; {title} is done again")
            return None
        lost = self._lost(record.files)
        if lost:
            self.progress.message(f"{lost} is missing or changed; {title} is done again")
            return None
        if name not in self._announced:
            self._announced.add(name)
            self.progress.message(f"{title}: done before")
        return result

    def begin(self, name: str, title: str) -> float:
        """Announce a stage; returns when it began."""
        self._announced.add(name)
        self.progress.message(f"{title} …")
        return time.perf_counter()

    def finish(self, name: str, record: Record, began: float) -> None:
        """Write the record of a stage that is complete."""
        trim_memory()
        write_json(self.state / f"{name}.json", _RECORD.dump_python(record, mode="json"))
        self.progress.detail(f"  {name}: {time.perf_counter() - began:.1f} s")

    def stage(self, name: str, title: str, compute: Callable[[], Any], check: Any = Any) -> Any:
        """The JSON value of a computation: read if it is finished, else computed and written.

        Args:
            check: the type that the value must have, for what is read.
        """
        found = self.read(name, TypeAdapter(check).validate_python, title)
        if found is not None:
            return found
        began = self.begin(name, title)
        value = compute()
        self.finish(name, Record(name, {}, value), began)
        return value

    def drop(self, wanted: Callable[[Record], bool]) -> None:
        """Remove the records of finished stages that `wanted` says; unreadable ones too."""
        for path in sorted(self.state.glob("*.json")):
            if path.name == _RUN:
                continue
            try:
                record = _RECORD.validate_json(path.read_bytes())
            except ValueError:
                path.unlink()
                continue
            if wanted(record):
                path.unlink()

    def files_below(self, directory: Path) -> dict[str, tuple[int, int]]:
        """Bytes and time of change (ns) of all files below a directory but a workspace's own."""
        found = {}
        for path in directory.rglob("*"):
            inside = path.relative_to(directory).parts
            if path.is_file() and STATE not in inside:
                facts = path.stat()
                name = path.relative_to(self.root).as_posix()
                found[name] = facts.st_size, facts.st_mtime_ns
        return found

    def hashes(self, names: Iterable[str]) -> dict[str, str]:
        """SHA-256 of files, by their path from the output directory."""
        return {name: sha256_of(self.root / name) for name in sorted(names)}

    def _lost(self, files: Mapping[str, str]) -> str:
        """The first of some files that is missing or changed; `REWRITTEN` ones may change."""
        for name, digest in files.items():
            path = self.root / name
            if not path.is_file():
                return str(path)
            if path.name not in REWRITTEN and sha256_of(path) != digest:
                return str(path)
        return ""


def open_workspace(root: Path, identity: Mapping[str, Any], progress: Progress) -> Workspace:
    """Take an empty directory, or go on with one that holds the same run.

    Args:
        root: a directory that can be written (`files.require_directory`).
        identity: the resolved options and fingerprints of all inputs.

    Raises:
        InputError: the directory holds something that is not ours.
        UsageError: it holds a run with other options or other inputs.
    """
    path = root / STATE / _RUN
    wanted = json.loads(json.dumps(identity))
    before = _read_identity(path) if path.exists() else None
    if before is not None:
        for key, old, new in _differences(before, wanted):
            raise UsageError(
                f"{root} holds a run with {key}={old!r}, now it is {new!r}; "
                "give the same options to go on, or another --output",
                id="output-of-another-run",
            )
    elif path.exists():
        progress.message(f"{path} cannot be read; the run starts again")
    elif root.exists() and any(root.iterdir()):
        raise InputError(
            f"{root} is not empty and holds no run; choose another --output", id="output-not-empty"
        )
    workspace = Workspace(root, progress)
    if before is None and path.exists():
        workspace.drop(lambda record: True)
    workspace.state.mkdir(parents=True, exist_ok=True)
    write_json(path, wanted)
    return workspace


def _differences(
    before: Mapping[str, Any], now: Mapping[str, Any], section: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Options that differ, as `section.option`, with both values."""
    for key in {**now, **before}:
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{section}{key}.")
        elif old != new:
            yield f"{section}{key}", old, new


def _read_identity(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


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
