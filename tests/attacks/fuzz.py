"""A fuzzer: damaged files, strange options, recipes and rows, each with the promises of the README.

    python -m tests.attacks.fuzz --cases 20000 --workers 2
    python -m tests.attacks.fuzz --seed 7 --case 123

A case is a number; with the seed it decides what is changed and which command sees it. A case fails
if the command ends with status 70 or a traceback, takes more than 30 seconds, needs more memory
than a bound, kills its process, or answers with status 0 something else than it answers for intact
files, where a manifest lists the file that was changed. A failure names its seed and case, and the
second line above repeats it alone.

Cases run one after another in worker processes that are started again after a case that failed.
20,000 cases take about forty minutes on one core, and a minute more to make the models that
they start from.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 30.0
START_SECONDS = 300.0  # importing, on a machine that is busy


@dataclass(frozen=True)
class Found:
    """What came of a case; `failure` is empty if it kept the promises."""

    case: int
    failure: str
    told: str
    seconds: float


class Worker:
    """A process that runs one case at a time.

    Args:
        seconds: that a case may take.
    """

    def __init__(
        self, seed: int, material: Path, kinds: Sequence[str], seconds: float = SECONDS
    ) -> None:
        self._seconds = seconds
        self._words = [sys.executable, "-m", "tests.attacks.fuzz_process", str(seed), str(material)]
        self._words += kinds
        self._process: subprocess.Popen[str] | None = None

    def run(self, case: int) -> Found:
        """Run a case; whatever happens to the process is what came of it."""
        if self._process is None:
            environment = os.environ | {"OMP_NUM_THREADS": "1", "COMPRESS_DEBUG": "1"}
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                self._words, stdin=pipe, stdout=pipe, text=True, env=environment
            )
            if self._answer(START_SECONDS) != {"ready": True}:
                raise RuntimeError("the worker of the fuzzer does not start")
        assert self._process.stdin is not None
        self._process.stdin.write(f"{case}\n")
        self._process.stdin.flush()
        answer = self._answer(self._seconds)
        if answer is None and self._process.poll() is None:
            self.stop()
            return Found(case, f"took more than {self._seconds:.0f} s", "", self._seconds)
        if answer is None:
            status = self._process.returncode
            self.stop()
            return Found(case, f"killed its process (status {status})", "", 0)
        if answer["failure"]:
            self.stop()  # the next case starts from a clean process
        return Found(case, answer["failure"], answer["told"], answer["seconds"])

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answer(self, seconds: float) -> Any:
        """The next line of JSON; None if there is none in time, or the process has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                return None
        line = self._process.stdout.readline()
        if not line:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
            return None
        return json.loads(line)


def fuzz(
    cases: Iterable[int], seed: int, material: Path, kinds: Sequence[str] = (), workers: int = 1
) -> list[Found]:
    """Run cases.

    Args:
        material: directory of `fuzz_material.make_material`.
        kinds: names in `fuzz_cases.KINDS` to draw from; all if empty.
        workers: processes to run them in.

    Returns:
        What came of every case, in the order of their numbers.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for case in cases:
        waiting.put(case)
    found: list[Found] = []
    errors: list[BaseException] = []

    def work() -> None:
        worker = Worker(seed, material, kinds)
        try:
            while not errors:
                one = worker.run(waiting.get_nowait())
                found.append(one)
                for line in failures([one], seed):  # now: who stops it has seen them
                    print(line, file=sys.stderr, flush=True)
                if len(found) % 500 == 0:
                    print(f"{len(found)} cases", file=sys.stderr, flush=True)
        except queue.Empty:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            errors.append(error)
        finally:
            worker.stop()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sorted(found, key=lambda one: one.case)


def failures(found: Iterable[Found], seed: int) -> list[str]:
    """A line with seed, case and reason for every case that failed."""
    failed = [one for one in found if one.failure]
    return [f"--seed {seed} --case {one.case}: {one.failure}; {one.told}" for one in failed]


def main() -> int:
    parser = argparse.ArgumentParser(description="Damaged and strange input for every command.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=20_000, help="how many, from the first")
    parser.add_argument("--case", type=int, help="this one alone, with what it did")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--kind", action="append", default=[], help="draw from these alone")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--material", type=Path, help="directory to make models in, and to keep")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        material = given.material or Path(temporary) / "material"
        if not (material / "done").exists():
            from tests.attacks.fuzz_material import make_material

            make_material(material)
            (material / "done").touch()
        cases = range(given.first, given.first + given.cases)
        if given.case is not None:
            cases = range(given.case, given.case + 1)
        found = fuzz(cases, given.seed, material, given.kind, given.workers)
    if given.case is not None:
        print(found[0].told)
    lines = failures(found, given.seed)
    print("\n".join(lines))
    print(f"{len(found)} cases, {len(lines)} failed, {sum(one.seconds for one in found):.0f} s")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
