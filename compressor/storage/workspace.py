"""The output directory: finished stages that a stopped run goes on from, and the manifest.

`OUT/.compress/` holds a small JSON record per finished stage (and the dense model's graphs, which
later stages compare with). A record is written last and at once, so it is there exactly when all
that the stage wrote is complete; it holds the SHA-256 of the files that the stage wrote. A record
that cannot be read, or whose files are missing or changed, counts as not there: the stage is made
again, after a message. The manifest takes the hashes from the records, so a file that was damaged
since does not get a new one.

Stages write into a directory in `OUT/.compress`, whose files are moved when they are complete. One
process at a time works in a workspace; a lock says which. Of several ranks of a run
(`compressor.parallel`) rank 0 has the lock, writes and reads records; the others only read files.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter

from compressor import parallel
from compressor.errors import EnvironmentProblem, InputError, UsageError
from compressor.progress import Progress
from compressor.storage.files import write_json
from compressor.storage.hashes import sha256_below, sha256_of
from compressor.storage.locks import lock_output
from compressor.storage.manifest import GRAPHS_FILE
from compressor.storage.staging import move_files, remove_leftovers, staging
from compressor.storage.version import __version__

STATE = ".compress"
_RUN = "run.json"
_LOCK = "lock"

Value = TypeVar("Value")


@dataclass(frozen=True)
class StageRecord:
    """What is kept of a finished stage.

    Args:
        stage: its name in the table of stages.
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


_RECORD = TypeAdapter(StageRecord)


class Workspace:
    """An output directory that belongs to one run; see `open_workspace`.

    In a `with` block no other process can open it; it ends with the block.

    Args:
        root, progress: see `open_workspace`.
    """

    def __init__(self, root: Path, progress: Progress) -> None:
        self.root = root
        self.state = root / STATE
        self.progress = progress
        self.files: dict[str, str] = {}  # path -> SHA-256, of all stages that were read or made
        self.doing = "reading inputs"  # the stage that was begun last, in words
        self._announced: set[str] = set()
        self._made: dict[str, str] = {}
        main = parallel.is_main()
        self._lock = lock_output(self.state / _LOCK, root) if main else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other processes open it."""
        if self._lock is not None:
            self._lock.release()

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """An empty directory, removed when the block ends; of several ranks that of rank 0.

        The others wait at the end, until all need it no longer.
        """
        with staging(self.state) if parallel.is_main() else nullcontext(self.state) as staged:
            yield parallel.agree(staged)
            parallel.gather(None)

    @contextmanager
    def making(self, directory: Path) -> Iterator[Path]:
        """An empty directory, whose files go to `directory` when the block ends without an error.

        Until then nothing of what is made stands under its final name. Of several ranks all get
        the directory of rank 0.
        """
        with self.staging() as staged:
            yield staged
            parallel.on_main(lambda: self._take(staged, directory))

    def _take(self, staged: Path, directory: Path) -> None:
        hashes = sha256_below(staged)
        move_files(staged, directory, hashes, last=GRAPHS_FILE)
        for name, digest in hashes.items():
            path = directory / name
            if path.name == GRAPHS_FILE:
                digest = _graphs_digest(path)
            self._made[path.relative_to(self.root).as_posix()] = digest

    def made(self) -> dict[str, str]:
        """Path from the root -> SHA-256, of the files of `making` since this was asked last."""
        made, self._made = self._made, {}
        return made

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
        lost = self.lost(record.files)
        if lost:
            self.progress.message(f"{lost} is missing or changed; {title} is done again")
            return None
        self.files |= record.files
        if name not in self._announced:
            self._announced.add(name)
            self.progress.message(f"{title}: done before")
        return result

    def begin(self, name: str, title: str) -> float:
        """Announce a stage; returns when it began."""
        self._announced.add(name)
        self.doing = title
        self.progress.message(f"{title} …")
        return time.perf_counter()

    def finish(self, name: str, record: StageRecord, began: float) -> None:
        """Write the record of a stage that is complete."""
        self.files |= record.files
        write_json(self.state / f"{name}.json", _RECORD.dump_python(record, mode="json"))
        self.progress.detail(f"  {name}: {time.perf_counter() - began:.1f} s")

    def drop(self, wanted: Callable[[StageRecord], bool]) -> None:
        """Remove the records of finished stages that `wanted` says; unreadable ones too."""
        for path in sorted(self.state.glob("*.json")):
            if path.name == _RUN:
                continue
            try:
                record = _RECORD.validate_json(path.read_bytes())
            except FileNotFoundError:  # another process of the run was faster
                continue
            except ValueError:
                path.unlink(missing_ok=True)
                continue
            if wanted(record):
                path.unlink(missing_ok=True)

    def lost(self, files: Mapping[str, str]) -> str:
        """The first of some files that is missing or changed; later stages may add graphs."""
        for name, digest in files.items():
            path = self.root / name
            if not path.is_file() or not _holds(path, digest):
                return str(path)
        return ""


def _holds(path: Path, digest: str) -> bool:
    if path.name != GRAPHS_FILE:
        return sha256_of(path) == digest
    precisions, _, _ = digest.partition(":")
    try:
        return _graphs_digest(path, precisions.split(",")) == digest
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def _graphs_digest(path: Path, precisions: Sequence[str] | None = None) -> str:
    """What `graphs.json` says of some precisions, all by default: their names and a SHA-256.

    Later stages add precisions and choose the default one and engines, without which it is
    computed.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    if data.pop("default_precision") not in data["precisions"]:
        raise ValueError("the default precision is not there")
    data.pop("fastest_engines", None)
    names = list(data["precisions"]) if precisions is None else precisions
    data["precisions"] = {name: data["precisions"][name] for name in names}
    made_for = {name: x for name, x in (data.pop("made_for", None) or {}).items() if name in names}
    data |= {"made_for": made_for} if made_for else {}
    text = json.dumps(data, sort_keys=True)
    return f"{','.join(names)}:{hashlib.sha256(text.encode()).hexdigest()}"


def open_workspace(root: Path, identity: Mapping[str, Any], progress: Progress) -> Workspace:
    """Take an empty directory, or go on with one that holds the same run.

    Args:
        root: a directory that can be written (`files.require_directory`).
        identity: the resolved options and fingerprints of all inputs.

    Raises:
        InputError: the directory holds something that is not ours, or another process works there.
        UsageError: it holds a run with other options or other inputs.
        EnvironmentProblem: a rank does not see the directory.
    """
    parallel.on_main(lambda: _require_own(root))
    workspace = Workspace(root, progress)
    try:
        parallel.on_main(lambda: _take_up(workspace, json.loads(json.dumps(identity))))
        seen = parallel.gather((workspace.state / _RUN).exists())
        if not all(seen):
            raise EnvironmentProblem(
                f"rank {seen.index(False)} does not see {root}, where rank 0 writes; give an "
                "--output on a file system that all machines share",
                id="output-not-shared",
            )
    except BaseException:
        workspace.close()
        raise
    return workspace


def _require_own(root: Path) -> None:
    """Raise `InputError` for a directory that holds something else than a run."""
    is_new = not (root / STATE / _RUN).exists()
    if is_new and root.exists() and any(path.name != STATE for path in root.iterdir()):
        raise InputError(
            f"{root} is not empty and holds no run; choose another --output", id="output-not-empty"
        )


def _take_up(workspace: Workspace, wanted: Mapping[str, Any]) -> None:
    """Check that what is there belongs to the same run, and note its options if nothing is."""
    path = workspace.state / _RUN
    before = _read_identity(path) if path.exists() else None
    if before is not None:
        for key, old, new in _differences(before, wanted):
            raise UsageError(
                f"{workspace.root} holds a run with {key}={old!r}, now it is {new!r}; "
                "give the same options to go on, or another --output",
                id="output-of-another-run",
            )
    elif path.exists():
        workspace.progress.message(f"{path} cannot be read; the run starts again")
        workspace.drop(lambda record: True)
    remove_leftovers(workspace.root, recursive=True)
    if before is None:
        write_json(path, wanted)


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
        identity = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return identity if isinstance(identity, dict) else None
