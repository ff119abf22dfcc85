"""The process that runs the fuzzer's cases, and judges the answers by what `fuzz.py` promises."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import compressor
from compressor.commands import invoke
from compressor.errors import CompressError
from tests.attacks.fuzz_cases import FAILING, KINDS, MEMORY_BYTES, Case
from tests.helpers.exports import kept_exports
from tests.helpers.runs import hashes

ADDRESS_BYTES = 6 << 30  # beyond what a process has after its imports
MOST_TOLD = 30_000  # characters of an error
START_MEMORY = 1 << 40  # bytes; what `serve` finds when it starts


@dataclass
class Fuzzer:
    """Runs cases in this process.

    Args:
        material: what `fuzz_material.make_material` made; the working directory.
    """

    seed: int
    material: Path
    kinds: list[str]
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)

    def run(self, number: int) -> dict[str, Any]:
        rng = random.Random(f"{self.seed}/{number}")
        kinds = {name: (KINDS | FAILING)[name] for name in self.kinds or KINDS}
        kind = rng.choices(list(kinds), [weight for weight, _ in kinds.values()])[0]
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="compress-tests-") as scratch:
            case = kinds[kind][1](rng, self.material, Path(scratch))
            status, said, errors = self.answer(case, Path(scratch))
            failure = self.judge(case, status, said, errors, Path(scratch))
        told = f"{kind}: {case.told}: {' '.join(map(str, case.words))}"[:600]
        if failure:
            told += f"\nstatus {status}\n{said[-1500:]}\n{errors[-3000:]}"
        return {"failure": failure, "told": told, "seconds": time.perf_counter() - began}

    def judge(self, case: Case, status: int, said: str, errors: str, scratch: Path) -> str:
        """What is wrong with an answer; empty if nothing is."""
        peak = peak_memory()
        if peak > MEMORY_BYTES + START_MEMORY:
            return f"takes {peak >> 20} MiB"
        if status not in (0, 1, 2, 3, 4, 5) or (status == 1 and case.words[0] != "gate"):
            return f"ends with status {status}"
        if status and not errors.strip() and case.words[0] != "gate":
            return f"ends with status {status} and does not say why"
        if "Exception ignored in" in errors:
            return "leaves an exception"
        # Before it stands the traceback that COMPRESS_DEBUG=1 asks for.
        message = errors.rpartition("\nerror: ")[2] if status else ""
        if len(message) > MOST_TOLD:
            return f"says why in {len(message)} characters"
        if status > 1:
            return ""
        if case.refused:
            return f"ends with status {status}"
        if case.intact is not None:
            key = " ".join(case.intact)
            if key not in self.answers:
                again = Case(case.intact, "", answer=case.answer)
                if case.answer is not None:
                    shutil.rmtree(case.answer, ignore_errors=True)
                self.answers[key] = self.answer(again, scratch)[:2]
            if (status, said) != self.answers[key]:
                return f"answers something else than {self.answers[key]}"[:1500]
        return ""

    def answer(self, case: Case, scratch: Path) -> tuple[int, str, str]:
        """Exit status, result without the names of directories, and messages."""
        with (
            _file(scratch / "stdout") as out,
            _file(scratch / "stderr") as err,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            status = _load(case.words[1]) if case.words[0] == "load" else invoke(case.words)
        said = (scratch / "stdout").read_text("utf-8")
        if case.answer is not None and status == 0:
            is_directory = case.answer.is_dir()
            said = repr(sorted(hashes(case.answer).items())) if is_directory else _scores(case)
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


def _scores(case: Case) -> str:
    assert case.answer is not None
    return json.dumps(json.loads(case.answer.read_text("utf-8"))["scores"])


def peak_memory() -> int:
    """Bytes; unlike `ru_maxrss` without those of the process that started this one."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(text.partition("VmHWM:")[2].split()[0])


def serve(seed: int, material: Path, kinds: list[str]) -> None:
    """Run the cases whose numbers come in on stdin; an answer of JSON to each."""
    global START_MEMORY
    answers = os.fdopen(os.dup(1), "w")
    # What libraries print by themselves is none of the answers.
    os.dup2(2, 1)
    os.chdir(material)
    fuzzer = Fuzzer(seed, material, kinds)
    import compressor.pipeline.single_steps
    import compressor.runtime  # noqa: F401 - the bound is on what comes after the imports

    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_BYTES, used + ADDRESS_BYTES))
    START_MEMORY = peak_memory()
    with kept_exports(material / "exports"):
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(fuzzer.run(int(line))), file=answers, flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]).resolve(), sys.argv[3:])
