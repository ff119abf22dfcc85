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
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, TypeAdapter

from compressor import parallel
from compressor.errors import EnvironmentProblem, InputError, UsageError
from compressor.model.memory import trim_memory
from compressor.progress import Progress
from compressor.results import Variant
from compressor.storage.disk import translate_disk_errors
from compressor.storage.files import write_json
from compressor.storage.hashes import sha256_below, sha256_of, sha256_of_text
from compressor.storage.locks import lock_output
from compressor.storage.manifest import GRAPHS_FILE
from compressor.storage.staging import move_files, remove_leftovers, staging

STATE = ".compress"
_RUN = "run.json"
_LOCK = "lock"

Result = TypeVar("Result")


class Steps:
    """The steps of the run in an output directory; `open_steps` makes them."""

    def __init__(self, root: Path, identity: Mapping[str, Any], progress: Progress) -> None:
        self.root, self.state, self.progress = root, root / STATE, progress
        self.identity = json.loads(json.dumps(identity))  # which every key has in it
        self.files: dict[str, str] = {}  # path -> digest, of all steps so far
        self.doing = "beginning"  # title of the step that was begun last
        self._running: list[tuple[str, dict[str, str]]] = []  # label and files, innermost last
        self._announced: set[str] = set()

    def do(
        self,
        function: Callable[..., Result],
        *inputs: Any,
        title: str,
        shared: bool = False,
        **context: Any,
    ) -> Result:
        """The function's result for its inputs, computed once.

        Its key is made of the function's name, the run's identity and the inputs; results of other
        steps count by their contents and their files. A changed record or file is made again.

        Args:
            function: or a method, whose object is an input, too.
            inputs: positional arguments, which tell this step from others of the function.
            title: what the user reads while it runs.
            shared: all ranks take part in it; otherwise rank 0 computes it alone. All get the
                result of rank 0.
            context: more arguments of the function, always the same within a run.
        """
        encode, decode = self._forms(function)
        label, result = parallel.on_main(lambda: self._recall(function, inputs, decode, title))
        if result is None:
            files: dict[str, str] = {}
            began = time.perf_counter()
            self._running.append((label, files))
            try:
                parallel.on_main(lambda: self.begin(label, title))
                if shared:
                    computed = function(*inputs, **context)
                else:
                    computed = parallel.on_main(lambda: function(*inputs, **context))
            finally:
                self._running.pop()
            kept = parallel.on_main(lambda: self._keep(label, encode(computed), files))
            result = decode(kept)  # as it is read later, so that a stopped run gets exactly this
            took = f"  {title}: {time.perf_counter() - began:.1f} s"
            parallel.on_main(lambda: self.progress.detail(took))
            trim_memory()
        if parallel.is_main():
            shutil.rmtree(self.state / label, ignore_errors=True)
        return result

    @property
    def scratch(self) -> Path:
        """Where the running step keeps states of trainings; removed when it is finished."""
        return self.state / self._running[-1][0]

    def begin(self, label: str, title: str) -> None:
        """Announce a step."""
        self._announced.add(label)
        self.doing = title
        self.progress.message(f"{title} …")

    def _keep(self, label: str, result: Any, files: dict[str, str]) -> Any:
        self.files |= files
        record = {"result": result, "files": files}
        write_json(self.state / f"{label}.json", record | {"sha256": _digest_of_json(record)})
        return result

    def _recall(
        self,
        function: Callable[..., Result],
        inputs: Sequence[Any],
        decode: Callable[[Any], Result],
        title: str,
    ) -> tuple[str, Result | None]:
        """A step's label, and its result; None without a sound record."""
        values = [getattr(function, "__self__", None), *inputs]
        key = _digest_of_json([self.identity, self._fingerprint(values)])
        label = f"{function.__name__.strip('_')}-{key[:16]}"
        path = self.state / f"{label}.json"
        if not path.exists():
            return label, None
        try:
            record = json.loads(path.read_bytes())
            if record.pop("sha256") != _digest_of_json(record):
                raise ValueError("the record was changed")
            result, files = decode(record["result"]), record["files"]
            lost = self.lost(files)
        except (ValueError, KeyError, TypeError, AttributeError):
            lost = str(path)
        if lost:
            self.progress.message(f"{lost} is missing or changed; {title} is done again")
            return label, None
        self.files |= files
        if label not in self._announced:
            self._announced.add(label)
            self.progress.message(f"{title}: done before")
        return label, result

    def _forms(
        self, function: Callable[..., Result]
    ) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        """How a function's results become JSON and come back, by their type."""
        kind = get_type_hints(function)["return"]
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        if kind is not Variant:
            return lambda result: adapter.dump_python(result, mode="json"), adapter.validate_python
        # The output directory may be moved: a model's lies in it.
        return self._model_to_json, lambda data: adapter.validate_python(
            data | {"directory": (self.root / data["directory"]).as_posix()}
        )

    def _model_to_json(self, model: Variant) -> dict[str, Any]:
        directory = Path(model.directory).relative_to(self.root).as_posix()
        return model.model_dump(mode="json") | {"directory": directory}

    def _fingerprint(self, value: Any) -> Any:
        """JSON that differs for different inputs."""
        if isinstance(value, Variant):
            return [self._model_to_json(value), self.files_below(Path(value.directory))]
        if isinstance(value, BaseModel):
            return [type(value).__name__, value.model_dump(mode="json")]
        if isinstance(value, Path):
            return sha256_of(value)
        if hasattr(value, "sha256"):
            return value.sha256
        if is_dataclass(value):
            return [self._fingerprint(getattr(value, x.name)) for x in fields(value) if x.compare]
        if isinstance(value, Mapping):
            return {str(key): self._fingerprint(x) for key, x in value.items()}
        if isinstance(value, Set):
            return sorted(value)
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [self._fingerprint(x) for x in value]
        return value

    def files_below(self, directory: Path) -> dict[str, str]:
        """Path from a directory -> digest, of the steps' files for the user in it."""
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

    @contextmanager
    def making(self, directory: Path) -> Iterator[Path]:
        """An empty directory, whose files go to `directory` when the block ends without an error.

        Until then no file stands under its final name. All ranks get the directory of rank 0.
        """

        def move() -> None:
            hashes = sha256_below(staged)
            move_files(staged, directory, hashes, last=GRAPHS_FILE)
            for name, digest in hashes.items():
                path = directory / name
                self._note(path, _digest(path) if path.name == GRAPHS_FILE else digest)

        with self.staging() as staged:
            yield staged
            parallel.on_main(move)

    def wrote(self, path: Path) -> str:
        """Note a file that the running step wrote; its SHA-256."""
        digest = sha256_of(path)
        self._note(path, digest)
        return digest

    def _note(self, path: Path, digest: str) -> None:
        self._running[-1][1][path.relative_to(self.root).as_posix()] = digest

    def lost(self, files: Mapping[str, str]) -> str:
        """The first of some files that is missing or changed; later steps may add graphs."""
        for name, digest in files.items():
            precisions, _, _ = digest.partition(":")
            found = None
            with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
                found = _digest(self.root / name, precisions.split(","))
            if found != digest:
                return str(self.root / name)
        return ""


def _digest_of_json(value: Any) -> str:
    return sha256_of_text(json.dumps(value, sort_keys=True))


def _digest(path: Path, precisions: Sequence[str] | None = None) -> str:
    """SHA-256 of a file; of `graphs.json` names of precisions and SHA-256 of their facts.

    Later steps add precisions to it and choose the default one and engines, which do not count.

    Args:
        precisions: that count; all by default.
    """
    if path.name != GRAPHS_FILE:
        return sha256_of(path)
    data = json.loads(path.read_text(encoding="utf-8"))
    if data.pop("default_precision") not in data["precisions"]:
        raise ValueError("the default precision is not there")
    data.pop("fastest_engines", None)
    names = list(data["precisions"]) if precisions is None else precisions
    data["precisions"] = {name: data["precisions"][name] for name in names}
    made_for = {name: x for name, x in (data.pop("made_for", None) or {}).items() if name in names}
    data |= {"made_for": made_for} if made_for else {}
    return f"{','.join(names)}:{_digest_of_json(data)}"


@contextmanager
def open_steps(
    root: Path, identity: Mapping[str, Any], progress: Progress, needed: Callable[[], int]
) -> Iterator[Steps]:
    """Take an empty directory, or go on with one that holds the same run.

    No other process can open it within the block.

    Args:
        root: a directory that can be written (`files.require_directory`).
        identity: the resolved options and fingerprints of all inputs.
        needed: about how many bytes the run writes in all.

    Raises:
        InputError: the directory holds foreign files, another process works in it, or the disk is
            full, read-only or missing.
        UsageError: it holds a run with other options or other inputs.
        EnvironmentProblem: a rank does not see the directory.
    """
    steps = Steps(root, identity, progress)
    run = steps.state / _RUN

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
        parallel.on_main(lambda: _take_up(steps, run))
        seen = parallel.gather(run.exists())
        if not all(seen):
            raise EnvironmentProblem(
                f"rank {seen.index(False)} does not see {root}, where rank 0 writes; give an "
                "--output on a file system that all machines share",
                id="output-not-shared",
            )
        yield steps


def _take_up(steps: Steps, run: Path) -> None:
    """Check that an earlier run in the directory is the same, or note this one's options."""
    before = now = steps.identity
    if run.exists():
        before = None
        with suppress(ValueError):
            before = json.loads(run.read_text(encoding="utf-8"))
        if not isinstance(before, dict):
            before = now
            steps.progress.message(f"{run} cannot be read; it is written again")
    for name in {**now, **before}:
        if before.get(name) != now.get(name):
            raise UsageError(
                f"{steps.root} holds a run with {name}={before.get(name)!r}, now it is "
                f"{now.get(name)!r}; give the same options to go on, or another --output",
                id="output-of-another-run",
            )
    remove_leftovers(steps.root, recursive=True)
    write_json(run, now)
