"""The process that runs the fuzzer's cases on toy artifacts, and judges the answers.

`fuzz.py` says what they must keep.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import resource
import shutil
import sys
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TextIO
from unittest import mock

import torch

import compressor
from compressor.commands import invoke
from compressor.errors import CompressError
from compressor.pipeline.run import run
from compressor.report.schema import render_json
from tests.attacks.fuzz_cases import ARTIFACTS, MEMORY_BYTES, SCRATCH, Case
from tests.helpers import toy
from tests.helpers.exports import kept_exports
from tests.helpers.report_samples import translator_report
from tests.helpers.runs import hashes, recipe_for

ADDRESS_BYTES = 6 << 30  # beyond what a process has after its imports
LONGEST_ERROR = 30_000  # characters of an error
UNKNOWN = 1 << 40  # bytes


@dataclass
class Judge:
    """Runs cases in this process.

    Args:
        material: what `make_material` made.
        start_memory: bytes that the process needed before the first case.
    """

    material: Path
    start_memory: int = UNKNOWN
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)

    def run(self, case: Case, scratch: Path) -> tuple[str, str]:
        """What is wrong, which is empty if nothing is, and what was said."""
        status, said, errors = self.answer(case, scratch, case.words)
        text = f"status {status}\n{said[-1500:]}\n{errors[-3000:]}"
        failure = self.failure(case.words[0] == "gate", status, errors)
        if failure or status > 1:
            return failure, text
        if case.refused:
            return f"ends with status {status}", text
        if case.intact is not None:
            key = " ".join(case.intact)
            if key not in self.answers:
                if case.answer:
                    shutil.rmtree(scratch / case.answer, ignore_errors=True)
                self.answers[key] = self.answer(case, scratch, case.intact)[:2]
            if (status, said) != self.answers[key]:
                return f"answers something else than {self.answers[key]}"[:1500], text
        return "", text

    def failure(self, is_gate: bool, status: int, errors: str) -> str:
        """What is wrong with the way in which a command ended."""
        peak = peak_memory()
        if peak > MEMORY_BYTES + self.start_memory:
            return f"takes {peak >> 20} MiB"
        if status not in (0, 1, 2, 3, 4, 5) or (status == 1 and not is_gate):
            return f"ends with status {status}"
        if status and not errors.strip() and not is_gate:
            return f"ends with status {status} and does not say why"
        if "Exception ignored in" in errors:
            return "leaves an exception"
        # Before it stands the traceback that COMPRESS_DEBUG=1 asks for.
        message = errors.rpartition("\nerror: ")[2] if status else ""
        return f"says why in {len(message)} characters" if len(message) > LONGEST_ERROR else ""

    def answer(self, case: Case, scratch: Path, words: list[str]) -> tuple[int, str, str]:
        """Exit status, result without the names of directories, and messages."""
        words = [word.replace(str(SCRATCH), str(scratch)) for word in words]
        with (
            _file(scratch / "stdout") as out,
            _file(scratch / "stderr") as err,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            status = _load(words[1]) if words[0] == "load" else invoke(words)
        said = (scratch / "stdout").read_text("utf-8")
        if case.answer and status == 0:
            said = repr(sorted(hashes(scratch / case.answer).items()))
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


def make_material(directory: Path) -> None:
    """What is damaged: checkpoints, artifacts of runs, scores, reports, rows; the same every time.

    On the same machine, that is, and but for dates.
    """
    directory.mkdir(parents=True, exist_ok=True)
    seconds, threads = itertools.count(step=0.125), torch.get_num_threads()
    torch.set_num_threads(1)  # as the processes have that run the cases
    # Relative paths and made-up durations: neither is in the files, whose bytes are then the same.
    with contextlib.chdir(directory), mock.patch("time.perf_counter", seconds.__next__):
        _fill()
    torch.set_num_threads(threads)


def _fill() -> None:
    here = Path()
    toy.classifier(here / "bert")
    toy.marian_with_pieces(here / "marian")
    (here / "texts.txt").write_text("\n".join([*toy.sentences(6, 5), ""]), "utf-8")
    with kept_exports(here / "exports"):
        for name in ARTIFACTS:
            rows = here / f"{name}-rows"
            rows.mkdir()
            recipe = recipe_for(here / name, rows, bench=False, precision=["fp32"])
            run(recipe, here / f"{name}-run")
    words = ["score", "-m", "bert", "--method", "magnitude", "--prune", "both", "-o", "scores.json"]
    assert invoke([*words, "--device", "cpu", "-q"]) == 0
    # Outside of the artifacts, where no manifest lists them.
    (here / "reports").mkdir()
    sample = render_json(translator_report())
    (here / "reports" / "translator.json").write_text(sample, "utf-8")
    shutil.copy(here / "bert-run" / "report.json", here / "reports" / "bert.json")
    shutil.copy(here / "bert-run" / "recipe.yaml", here / "recipe.yaml")


def serve(material: Path, pipe: Connection) -> None:
    """Judge the cases that come in, each with its directory."""
    os.dup2(2, 1)  # what libraries print by themselves is none of the answers
    os.chdir(material)
    import compressor.pipeline.run  # noqa: F401 - the bound is on what comes after the imports
    import compressor.runtime  # noqa: F401

    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_BYTES, used + ADDRESS_BYTES))
    judge = Judge(material, peak_memory())
    with kept_exports(material / "exports"), contextlib.suppress(EOFError):
        pipe.send("ready")
        while True:
            pipe.send(judge.run(*pipe.recv()))
