"""The process that runs the fuzzer's cases, and judges the answers by what `fuzz.py` promises."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import resource
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import compressor
from compressor.commands import invoke
from compressor.errors import CompressError
from tests.attacks.fuzz_cases import MEMORY_BYTES
from tests.helpers.exports import kept_exports
from tests.helpers.runs import hashes

ADDRESS_BYTES = 6 << 30  # beyond what a process has after its imports
MOST_TOLD = 30_000  # characters of an error
UNKNOWN = 1 << 40  # bytes


@dataclass(frozen=True)
class Job:
    """A case as `fuzz_cases.Case.lay_out` describes it."""

    words: list[Any]
    scratch: str
    refused: bool
    intact: list[str]
    key: str
    answer: str


@dataclass
class Judge:
    """Runs cases in this process.

    Args:
        material: what `fuzz_material.make_material` made.
        start_memory: bytes that the process needed before the first case.
    """

    material: Path
    start_memory: int = UNKNOWN
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)

    def run(self, job: Job) -> dict[str, str]:
        """`failure`, which is empty if nothing is wrong, and what was `said`."""
        status, said, errors = self.answer(job, job.words)
        failure = self.failure(job, status, said, errors)
        text = f"status {status}\n{said[-1500:]}\n{errors[-3000:]}"
        return {"failure": failure, "said": text}

    def failure(self, job: Job, status: int, said: str, errors: str) -> str:
        """What is wrong with an answer."""
        peak = peak_memory()
        if peak > MEMORY_BYTES + self.start_memory:
            return f"takes {peak >> 20} MiB"
        if status not in (0, 1, 2, 3, 4, 5) or (status == 1 and job.words[0] != "gate"):
            return f"ends with status {status}"
        if status and not errors.strip() and job.words[0] != "gate":
            return f"ends with status {status} and does not say why"
        if "Exception ignored in" in errors:
            return "leaves an exception"
        # Before it stands the traceback that COMPRESS_DEBUG=1 asks for.
        message = errors.rpartition("\nerror: ")[2] if status else ""
        if len(message) > MOST_TOLD:
            return f"says why in {len(message)} characters"
        if status > 1:
            return ""
        if job.refused:
            return f"ends with status {status}"
        if job.key:
            if job.key not in self.answers:
                if job.answer:
                    shutil.rmtree(Path(job.scratch, job.answer), ignore_errors=True)
                self.answers[job.key] = self.answer(job, job.intact)[:2]
            if (status, said) != self.answers[job.key]:
                return f"answers something else than {self.answers[job.key]}"[:1500]
        return ""

    def answer(self, job: Job, words: list[Any]) -> tuple[int, str, str]:
        """Exit status, result without the names of directories, and messages."""
        scratch = Path(job.scratch)
        with (
            _file(scratch / "stdout") as out,
            _file(scratch / "stderr") as err,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            status = _load(words[1]) if words[0] == "load" else invoke(words)
        said = (scratch / "stdout").read_text("utf-8")
        if job.answer and status == 0:
            said = repr(sorted(hashes(scratch / job.answer).items()))
        for place in (scratch, self.material):
            said = re.sub(f"{re.escape(str(place))}/[a-z-]+", "DIRECTORY", said)
        return status, said, (scratch / "stderr").read_text("utf-8")


def _load(directory: str) -> int:
    try:
        model = compressor.load(directory)
    except CompressError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    values = [tensor.numpy().tobytes() for tensor in model.state_dict().values()]
    print(hashlib.sha256(b"".join(values)).hexdigest())
    return 0


def _file(path: Path) -> TextIO:
    return open(path, "w", encoding="utf-8", errors="backslashreplace")


def peak_memory() -> int:
    """Bytes; unlike `ru_maxrss` without those of the process that started this one."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(text.partition("VmHWM:")[2].split()[0])


def serve(material: Path) -> None:
    """Run the cases that come in on stdin, a line of JSON each; a line of JSON answers it."""
    answers = os.fdopen(os.dup(1), "w")
    # What libraries print by themselves is none of the answers.
    os.dup2(2, 1)
    os.chdir(material)
    import compressor.pipeline.run
    import compressor.runtime  # noqa: F401 - the bound is on what comes after the imports

    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_BYTES, used + ADDRESS_BYTES))
    judge = Judge(material, peak_memory())
    with kept_exports(material / "exports"):
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(judge.run(Job(**json.loads(line)))), file=answers, flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]).resolve())
