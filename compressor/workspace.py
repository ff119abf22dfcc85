"""The output directory: finished stages that a stopped run goes on from, and the manifest.

`OUT/.compress/` holds a small JSON file per finished stage (and the dense model's graphs, which
later stages compare with). A stage's file is written last and at once, so it is there exactly
when all that the stage wrote is complete.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from compressor.errors import InputError, UsageError
from compressor.memory import give_back
from compressor.outputs import write_at_once
from compressor.talk import Talk

STATE = ".compress"
MANIFEST = "manifest.json"
_RUN = "run.json"

Value = TypeVar("Value")


class Workspace:
    """An output directory that belongs to one run; see `open_workspace`."""

    def __init__(self, root: Path, talk: Talk) -> None:
        self.root = root
        self.state = root / STATE
        self._talk = talk

    def stage(self, name: str, title: str, compute: Callable[[], Value]) -> Value:
        """The JSON value of a stage: read if it is finished, else computed and written."""
        path = self.state / f"{name}.json"
        if path.exists():
            self._talk.say(f"{title}: done before")
            return json.loads(path.read_text(encoding="utf-8"))
        self._talk.say(f"{title} …")
        began = time.perf_counter()
        value = compute()
        give_back()
        write_json(path, value)
        self._talk.detail(f"  {name}: {time.perf_counter() - began:.1f} s")
        return value


def open_workspace(root: Path, identity: Mapping[str, Any], talk: Talk) -> Workspace:
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
        raise InputError(f"{root} is not empty and is not ours; choose another --output")
    workspace = Workspace(root, talk)
    workspace.state.mkdir(parents=True, exist_ok=True)
    write_json(record, identity)
    return workspace


def write_json(path: Path, value: Any) -> None:
    """Write at once: readers see the whole file or none."""
    write_at_once(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fingerprint(paths: Iterable[Path]) -> str:
    """One SHA-256 over the names and contents of several files."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.name}:{sha256_of(path)}\n".encode())
    return digest.hexdigest()


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
