"""The steps of a run: functions whose results are kept on disk, from which a stopped run goes on.

A record in `OUT/.compress` is written last and at once, so it exists exactly when the files of its
step are complete. One process at a time works in an output directory; of several ranks
(`compressor.parallel`) rank 0 has the lock and the records; the others only read files.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, TypeAdapter

from compressor import parallel
from compressor.errors import EnvironmentProblem, InputError, UsageError
from compressor.model.memory import trim_memory
from compressor.progress import Progress
from compressor.steps.results import READ, RECORDED
from compressor.storage.disk import translate_disk_errors
from compressor.storage.files import write_json
from compressor.storage.hashes import sha256_below, sha256_of, sha256_of_text
from compressor.storage.locks import lock_output
from compressor.storage.manifest import GRAPHS_FILE
from compressor.storage.staging import move_files, remove_leftovers, staging

STATE = ".compress"
_RUN = "run.json"
_LOCK = "lock"
_REWRITTEN = "rewritten.list"

Result = TypeVar("Result")


@dataclass
class _Running:
    """A step that is being computed."""

    label: str
    files: dict[str, str]  # path from the output directory -> SHA-256, of what it wrote


class Steps:
    """The steps of the run in an output directory; `open_steps` makes them."""

    def __init__(self, root: Path, identity: Mapping[str, Any], progress: Progress) -> None:
        self.root, self.state = root, root / STATE
        self.identity = json.loads(json.dumps(identity))  # which every key has in it
        self.files: dict[str, str] = {}  # path -> SHA-256, of all steps so far
        self.doing = "beginning"  # title of the step that was begun last
        self._progress = progress
        self._running: list[_Running] = []  # innermost last
        self._announced: set[str] = set()
        # Path -> SHA-256 of what steps wrote there one after the other, of files that later steps
        # wrote anew: an earlier step's file is not lost if a later step's is in its place.
        self._rewritten: dict[str, list[str]] = {}

    def do(
        self,
        function: Callable[..., Result],
        *inputs: Any,
        title: str,
        shared: bool = False,
        into: Path | None = None,
        **started_with: Any,
    ) -> Result:
        """The function's result for its inputs, computed once.

        Its key is made of the function's name, the run's identity, and the inputs with all that
        they declare: a dataclass counts with its fields (but for those that its equality leaves
        out), a pydantic model with its dump, a file by its SHA-256, a directory by the files that
        steps wrote in it. A record that is damaged, or whose files are missing or changed, is made
        again.

        Args:
            function: a function of a module, whose return type is annotated; paths in its result
                are `results.OutputPath`.
            inputs: positional arguments, results of other steps among them.
            title: what the user reads while it runs.
            shared: all ranks take part in it; otherwise rank 0 computes it alone. All get the
                result of rank 0.
            into: a directory for the function's files. It gets an empty one as `directory`, whose
                files go there when it returns: until then none stands under its final name.
            started_with: arguments that are the same in the whole run (its options, what it
                opened, its context). They do not count, since the identity stands for them.

        Raises:
            TypeError: an input declares nothing that could count.
        """
        form = _ResultForm(function, self.root)
        label, found = parallel.on_main(lambda: self._recall(function, inputs, form, title))
        if found is None:
            began = time.perf_counter()
            running = _Running(label, {})
            self._running.append(running)
            try:
                parallel.on_main(lambda: self.begin(label, title))
                recorded = self._compute(function, inputs, form, shared, into, started_with)
            finally:
                self._running.pop()
            kept = parallel.on_main(lambda: self._keep(running, recorded))
            found = (form.read(kept),)  # as it is read later, so that a stopped run gets just this
            took = f"  {title}: {time.perf_counter() - began:.1f} s"
            parallel.on_main(lambda: self._progress.detail(took))
            trim_memory()
        if parallel.is_main():
            shutil.rmtree(self.state / label, ignore_errors=True)
        return found[0]

    @property
    def scratch(self) -> Path | None:
        """Where the running step keeps states of trainings, removed when it is finished.

        None outside of steps.
        """
        return self.state / self._running[-1].label if self._running else None

    def read_rewritten(self) -> None:
        """Read what is known of files that later steps wrote anew; with the lock held."""
        path = self.state / _REWRITTEN
        try:
            noted = json.loads(path.read_text(encoding="utf-8"))
            known = {str(name): [str(x) for x in digests] for name, digests in noted.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            known = {}  # the steps whose files were written anew are done again
        self._rewritten = known

    def begin(self, label: str, title: str) -> None:
        """Announce a step."""
        self._announced.add(label)
        self.doing = title
        self._progress.message(f"{title} …")

    def files_below(self, directory: Path) -> dict[str, str]:
        """Path from a directory -> SHA-256, of the steps' files for the user in it."""
        below = directory.relative_to(self.root)
        return {
            Path(name).relative_to(below).as_posix(): digest
            for name, digest in self.files.items()
            if Path(name).is_relative_to(below)
            and (STATE in below.parts or STATE not in Path(name).parts)
        }

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """An empty directory of rank 0, removed when the block ends on all ranks."""
        with staging(self.state) if parallel.is_main() else nullcontext(self.state) as staged:
            yield parallel.agree(staged)
            parallel.gather(None)

    def _compute(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        form: _ResultForm,
        shared: bool,
        into: Path | None,
        arguments: Mapping[str, Any],
    ) -> Any:
        """The function's result as JSON; its files are moved to where they belong."""

        def call(**directory: Path) -> Any:
            if shared:
                return function(*inputs, **arguments, **directory)
            return parallel.on_main(lambda: function(*inputs, **arguments, **directory))

        if into is None:
            computed = call()
            return parallel.on_main(lambda: form.record(computed))
        with self.staging() as staged:
            computed = call(directory=staged)
            recorded = parallel.on_main(lambda: form.record(computed, staged, into))
            parallel.on_main(lambda: self._move(staged, into))
        return recorded

    def _move(self, staged: Path, directory: Path) -> None:
        """Move the files of the running step to a directory, and note them."""
        hashes = sha256_below(staged)
        written = {
            (directory / name).relative_to(self.root).as_posix(): digest
            for name, digest in hashes.items()
        }
        before = dict(self._rewritten)
        for name, digest in written.items():
            history = self._history(name)
            versions = history if history[-1:] == [digest] else [*history, digest]
            self._rewritten.pop(name, None)
            if len(versions) > 1:
                self._rewritten[name] = versions
        if self._rewritten != before:
            # Before the files, so that a process that is killed here loses none.
            write_json(self.state / _REWRITTEN, self._rewritten)
        move_files(staged, directory, hashes, last=GRAPHS_FILE)
        self._running[-1].files.update(written)

    def _history(self, name: str) -> list[str]:
        """What steps wrote to a file, up to the last of them that this process knows.

        What came after it was made from what is now made again.
        """
        if name not in self.files:
            return []
        known, last = self._rewritten.get(name, []), self.files[name]
        return known[: known.index(last) + 1] if last in known else [last]

    def _keep(self, step: _Running, result: Any) -> Any:
        self.files |= step.files
        record = {"result": result, "files": step.files}
        write_json(self.state / f"{step.label}.json", record | {"sha256": _digest_of_json(record)})
        return result

    def _recall(
        self,
        function: Callable[..., Result],
        inputs: Sequence[Any],
        form: _ResultForm,
        title: str,
    ) -> tuple[str, tuple[Result] | None]:
        """A step's label, and its result; None without a sound record."""
        name = f"{function.__module__}.{function.__qualname__}"
        key = _digest_of_json([self.identity, name, [self._fingerprint(x) for x in inputs]])
        label = f"{function.__name__.strip('_')}-{key[:16]}"
        path = self.state / f"{label}.json"
        if not path.exists():
            return label, None
        try:
            record = json.loads(path.read_bytes())
            if record.pop("sha256") != _digest_of_json(record):
                raise ValueError("the record was changed")
            result, files = form.read(record["result"]), record["files"]
            lost = self._lost(files)
        except (ValueError, KeyError, TypeError, AttributeError):
            lost = str(path)
        if lost:
            self._progress.message(f"{lost} is missing or changed; {title} is done again")
            return label, None
        self.files |= files
        if label not in self._announced:
            self._announced.add(label)
            self._progress.message(f"{title}: done before")
        return label, (result,)

    def _fingerprint(self, value: Any) -> Any:
        """JSON that differs for different inputs, of all that they declare."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, BaseModel):
            return [type(value).__qualname__, value.model_dump(mode="json")]
        if isinstance(value, Path):
            return self._fingerprint_of_files(value)
        if is_dataclass(value) and not isinstance(value, type):
            declared = {x.name: getattr(value, x.name) for x in fields(value) if x.compare}
            return [type(value).__qualname__, self._fingerprint(declared)]
        if isinstance(value, Mapping):
            return {str(key): self._fingerprint(x) for key, x in value.items()}
        if isinstance(value, Set):
            return sorted(value)
        if isinstance(value, Sequence):
            return [self._fingerprint(x) for x in value]
        raise TypeError(f"{type(value).__qualname__} declares nothing that a key could be made of")

    def _fingerprint_of_files(self, path: Path) -> Any:
        if path.is_relative_to(self.root):
            known = self.files.get(path.relative_to(self.root).as_posix())
            if known is not None:
                return known
            if path.is_dir():
                return self.files_below(path)
        return sha256_of(path)

    def _lost(self, files: Mapping[str, str]) -> str:
        """The first of some files that is missing or changed, but by later steps; empty if none."""
        for name, digest in files.items():
            found = None
            with suppress(OSError):
                found = sha256_of(self.root / name)
            known = self._rewritten.get(name, [])
            later = known[known.index(digest) + 1 :] if digest in known else []
            if found not in (digest, *later):
                return str(self.root / name)
        return ""


class _ResultForm:
    """How results of a function become JSON and come back, by the type that it returns.

    Paths are recorded relative to the output directory, which may be moved.
    """

    def __init__(self, function: Callable[..., Any], root: Path) -> None:
        kind = get_type_hints(function, include_extras=True)["return"]
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
        self._root = root

    def record(self, result: Any, staged: Path | None = None, into: Path | None = None) -> Any:
        """JSON of a result; paths in `staged` are those that the files will have in `into`."""

        def recorded(path: Path) -> Path:
            if staged is not None and into is not None and path.is_relative_to(staged):
                path = into / path.relative_to(staged)
            return path.relative_to(self._root)

        return self._adapter.dump_python(result, mode="json", context={RECORDED: recorded})

    def read(self, data: Any) -> Any:
        return self._adapter.validate_python(data, context={READ: lambda path: self._root / path})


def _digest_of_json(value: Any) -> str:
    return sha256_of_text(json.dumps(value, sort_keys=True))


@contextmanager
def open_steps(
    root: Path, identity: Mapping[str, Any], progress: Progress, needed: Callable[[], int]
) -> Iterator[Steps]:
    """Take an empty directory, or go on with one that holds the same run.

    No other process can open it within the block.

    Args:
        root: a directory that can be written (`files.require_directory`).
        identity: the resolved options and fingerprints of all inputs.
        progress: receives messages.
        needed: about how many bytes the run writes in all.

    Raises:
        InputError: the directory holds foreign files, another process works in it, or the disk is
            full, read-only or missing.
        UsageError: it holds a run with other options or other inputs.
        EnvironmentProblem: a rank does not see the directory.
    """
    steps = Steps(root, identity, progress)
    run = steps.state / _RUN
    advice = "give all ranks the same options, model and data"
    parallel.require_same(identity, advice, InputError, "ranks-differ-in-inputs")

    def require_ours() -> None:
        others = any(path.name != STATE for path in root.iterdir()) if root.exists() else False
        if others and not run.exists():
            raise InputError(
                f"{root} is not empty and holds no run; choose another --output",
                id="output-not-empty",
            )

    with translate_disk_errors(root, needed, lambda: steps.doing), ExitStack() as stack:
        parallel.on_main(require_ours)
        if parallel.is_main():
            stack.callback(lock_output(steps.state / _LOCK, root).release)
        parallel.on_main(lambda: _check_identity(steps, run, progress))
        parallel.on_main(steps.read_rewritten)
        seen = parallel.gather(run.exists())
        if not all(seen):
            raise EnvironmentProblem(
                f"rank {seen.index(False)} does not see {root}, where rank 0 writes; give an "
                "--output on a file system that all machines share",
                id="output-not-shared",
            )
        yield steps


def _check_identity(steps: Steps, run: Path, progress: Progress) -> None:
    """Check that an earlier run in the directory is the same, or note this one's options."""
    before = now = steps.identity
    if run.exists():
        before = None
        with suppress(ValueError):
            before = json.loads(run.read_text(encoding="utf-8"))
        if not isinstance(before, dict):
            before = now
            progress.message(f"{run} cannot be read; it is written again")
    for name in {**now, **before}:
        if before.get(name) != now.get(name):
            raise UsageError(
                f"{steps.root} holds a run with {name}={before.get(name)!r}, now it is "
                f"{now.get(name)!r}; give the same options to go on, or another --output",
                id="output-of-another-run",
            )
    remove_leftovers(steps.root, recursive=True)
    write_json(run, now)
