"""A fuzzer: damaged files, strange options, recipes and rows, each with the promises of the README.

    python -m tests.attacks.fuzz --cases 20000 --workers 2 --seed 7
    python -m tests.attacks.fuzz --kind artifact --case AXicY2...

A case fails if the command ends with status 70 or a traceback, takes more than 30 seconds, needs
more memory than a bound, kills its process, or answers with status 0 something else than it answers
for intact files, where a manifest lists the file that was changed.

Hypothesis draws the cases of a kind in batches, each with a seed of its own, and makes a case that
fails simpler before it is reported with the line that repeats it alone; a batch ends there. Cases
run one after another in worker processes that are started again after a case that failed. 20,000
cases take about forty minutes on one core, and a minute more to make the models that they start
from.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import queue
import re
import selectors
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, given, reproduce_failure, settings

from tests.attacks.fuzz_cases import KINDS, Case

SECONDS = 30.0
START_SECONDS = 300.0  # importing, on a machine that is busy
BATCH = 100  # cases at most
DRAWN = settings(
    database=None, deadline=None, print_blob=True, report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
    verbosity=Verbosity.quiet,
)  # fmt: skip


class CaseFailed(AssertionError):
    """A case broke a promise; says what was changed, the words, and the answer."""


class Worker:
    """A process that runs one case at a time."""

    def __init__(self, material: Path) -> None:
        self._words = [sys.executable, "-m", "tests.attacks.fuzz_process", str(material)]
        self._process: subprocess.Popen[str] | None = None
        self.cases = 0

    def run(self, case: Case) -> None:
        """Run a case; raises `CaseFailed`."""
        self.cases += 1
        with tempfile.TemporaryDirectory(prefix="compress-tests-") as scratch:
            failure, said = self._judge(case.lay_out(Path(scratch)))
        if failure:
            self.stop()  # the next case starts from a clean process
            words = " ".join(map(str, case.words))
            raise CaseFailed(f"{failure}; {f'{case.change}: {words}'[:600]}\n{said}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _judge(self, job: dict[str, Any]) -> tuple[str, str]:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        answer = _answer(process, SECONDS)
        if answer is not None:
            return answer["failure"], answer["said"]
        if process.poll() is None:
            return f"took more than {SECONDS:.0f} s", ""
        return f"killed its process (status {process.returncode})", ""

    def _start(self) -> subprocess.Popen[str]:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "COMPRESS_DEBUG": "1"}
        pipe = subprocess.PIPE
        process = subprocess.Popen(self._words, stdin=pipe, stdout=pipe, text=True, env=environment)
        if _answer(process, START_SECONDS) != {"ready": True}:
            raise RuntimeError("the worker of the fuzzer does not start")
        return process


def _answer(process: subprocess.Popen[str], seconds: float) -> Any:
    """The next line of JSON; None if there is none in time, or the process has ended."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(seconds):
            return None
    line = process.stdout.readline()
    if not line:
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        return None
    return json.loads(line)


def run_batch(
    run: Callable[[Case], object], material: Path, kind: str, size: int, seed: int
) -> str:
    """Draw cases of a kind and run so many different ones.

    Returns:
        If one failed, the options that repeat the simplest that does, and why; else nothing.
    """
    passed: set[bytes] = set()
    most: float = size

    def run_new(case: Case) -> None:
        """A case that passed is drawn again, and must pass again: up to half of them are."""
        nonlocal most
        digest = hashlib.sha256(f"{case}{case.files}".encode()).digest()
        if digest in passed or len(passed) >= most:
            return
        try:
            run(case)
        except CaseFailed:
            most = math.inf  # for simpler ones
            raise
        passed.add(digest)

    test = given(KINDS[kind][1](material))(run_new)
    return _failure(hypothesis.seed(seed)(settings(DRAWN, max_examples=2 * size)(test)), kind)


def repeat(run: Callable[[Case], object], material: Path, kind: str, blob: str) -> str:
    """Run the case that `run_batch` named with `--case BLOB`; returns the same."""
    test = DRAWN(given(KINDS[kind][1](material))(lambda case: run(case)))
    again = reproduce_failure(hypothesis.__version__, blob.encode())(test)
    return _failure(again, kind, blob)


def _failure(test: Callable[[], object], kind: str, blob: str = "") -> str:
    def text(error: BaseException) -> str:
        parts = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
        return "\n".join([str(error), *map(text, parts)])

    try:
        test()
    except (CaseFailed, BaseExceptionGroup) as error:  # a group, if it did not fail again
        notes = "\n".join(getattr(error, "__notes__", ()))
        named = re.search(r"@reproduce_failure\('[^']*', b'([^']*)'\)", notes)
        return f"--kind {kind} --case {named[1] if named else blob}: {text(error)}"
    return ""


def fuzz(
    cases: int, seed: int, material: Path, kinds: Sequence[str] = (), workers: int = 1
) -> list[str]:
    """Run cases; a text for every batch in which one failed.

    Args:
        material: directory of `fuzz_process.make_material`.
        kinds: names in `fuzz_cases.KINDS` to draw from; all if empty.
        workers: processes to run them in.
    """
    shares = {kind: share for kind, (share, _) in KINDS.items() if not kinds or kind in kinds}
    batches = []
    for kind, share in shares.items():
        total = max(1, round(cases * share / sum(shares.values())))
        sizes = [min(BATCH, total - first) for first in range(0, total, BATCH)]
        batches += [(number, kind, size) for number, size in enumerate(sizes)]
    everyone = [Worker(material) for _ in range(workers)]
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in everyone:
        idle.put(worker)

    def run(batch: tuple[int, str, int]) -> str:
        number, kind, size = batch
        worker = idle.get()
        own_seed = zlib.crc32(f"{seed}/{kind}/{number}".encode())
        failure = run_batch(worker.run, material, kind, size, own_seed)
        idle.put(worker)
        if failure:
            print(failure, file=sys.stderr, flush=True)  # now: who stops it has seen them
        return failure

    try:
        with ThreadPoolExecutor(workers) as pool:
            failures = list(pool.map(run, sorted(batches)))  # of all kinds, if it is stopped
    finally:
        for worker in everyone:
            worker.stop()
    print(f"{sum(worker.cases for worker in everyone)} cases", file=sys.stderr, flush=True)
    return [failure for failure in failures if failure]


def main() -> int:
    parser = argparse.ArgumentParser(description="Damaged and strange input for every command.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--kind", action="append", default=[], choices=KINDS)
    parser.add_argument("--case", help="this one alone, of one kind, as the report names it")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--material", type=Path, help="directory to make models in, and to keep")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        material = (args.material or Path(temporary) / "material").resolve()
        if not (material / "done").exists():
            from tests.attacks.fuzz_process import make_material

            make_material(material)
            (material / "done").touch()
        if args.case:
            worker = Worker(material)
            failures = [repeat(worker.run, material, *args.kind, args.case)]
            worker.stop()
            print(failures[0])
        else:
            failures = fuzz(args.cases, args.seed, material, args.kind, args.workers)
            print("\n".join([*failures, f"{len(failures)} failed"]))
    return any(failures)


if __name__ == "__main__":
    sys.exit(main())
