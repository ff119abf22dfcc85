"""A fuzzer: damaged files, strange options, recipes and rows, each with the promises of the README.

    python -m tests.attacks.fuzz --cases 20000 --workers 2 --seed 7
    python -m tests.attacks.fuzz --kind artifact --case 7-1234

A case fails if the command ends with status 70 or a traceback, takes more than 30 seconds, needs
more memory than a bound, kills its process, or answers with status 0 something else than it answers
for intact files, where a manifest lists the file that was changed. It is reported with the options
that repeat it alone, since a case is drawn from the seed and its number.

Cases run one after another in worker processes that are started again after a case that failed.
20,000 cases take about twenty minutes on one core, and a minute more to make the models that they
start from.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from tests.attacks.fuzz_cases import KINDS, Case

SECONDS = 30.0
START_SECONDS = 300.0  # importing, on a machine that is busy


class Worker:
    """A process that runs one case at a time."""

    def __init__(self, material: Path) -> None:
        self._material = material
        self._pipe: Connection | None = None
        self.cases = 0

    def run(self, case: Case) -> str:
        """Why the case failed, with what was changed, the words, and the answer; or nothing."""
        self.cases += 1
        with tempfile.TemporaryDirectory(prefix="compress-tests-") as scratch:
            case.lay_out(Path(scratch))
            failure, said = self._judge(case, Path(scratch))
        if failure:
            self.stop()  # the next case starts from a clean process
            words = " ".join(case.words)
            return f"{failure}; {f'{case.change}: {words}'[:600]}\n{said}"
        return ""

    def stop(self) -> None:
        if self._pipe is not None:
            self._process.kill()
            self._process.join()
            self._pipe = None

    def _judge(self, case: Case, scratch: Path) -> tuple[str, str]:
        pipe = self._pipe = self._pipe or self._start()
        pipe.send((case, scratch))
        try:
            return pipe.recv() if pipe.poll(SECONDS) else (f"took more than {SECONDS:.0f} s", "")
        except (EOFError, ConnectionError):
            self._process.join(10)
            return f"killed its process (status {self._process.exitcode})", ""

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(self._material, theirs))
        self._process.start()
        theirs.close()
        if not pipe.poll(START_SECONDS) or pipe.recv() != "ready":
            raise RuntimeError("the worker of the fuzzer does not start")
        return pipe


def _serve(material: Path, pipe: Connection) -> None:
    """What a worker's process does; PyTorch reads the environment when it is imported."""
    os.environ |= {"OMP_NUM_THREADS": "1", "COMPRESS_DEBUG": "1"}
    from tests.attacks.fuzz_process import serve

    serve(material, pipe)


def draw(kind: str, name: str, material: Path) -> Case:
    """The case of a name, as `--case` takes it."""
    return KINDS[kind][1](Random(f"{kind}/{name}"), material)


def fuzz(
    cases: int, seed: int, material: Path, kinds: Sequence[str] = (), workers: int = 1
) -> list[str]:
    """Run cases; a text for every one that failed.

    Args:
        material: directory of `fuzz_process.make_material`.
        kinds: names in `fuzz_cases.KINDS` to draw from; all if empty.
        workers: processes to run them in.
    """
    shares = {kind: share for kind, (share, _) in KINDS.items() if not kinds or kind in kinds}
    drawn = Random(seed).choices([*shares], [*shares.values()], k=cases)
    named = [(kind, f"{seed}-{number}") for number, kind in enumerate(drawn)]
    return run_cases(named, material, workers)


def run_cases(named: Sequence[tuple[str, str]], material: Path, workers: int = 1) -> list[str]:
    """Run cases by their kinds and names."""
    everyone = [Worker(material) for _ in range(workers)]
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in everyone:
        idle.put(worker)

    def run(case: tuple[str, str]) -> str:
        kind, name = case
        drawn, worker = draw(kind, name, material), idle.get()
        try:
            failure = worker.run(drawn)
        finally:
            idle.put(worker)
        if failure:
            failure = f"--kind {kind} --case {name}: {failure}"
            print(failure, file=sys.stderr, flush=True)  # now: who stops it has seen them
        return failure

    try:
        with ThreadPoolExecutor(workers) as pool:
            return [failure for failure in pool.map(run, named) if failure]
    finally:
        for worker in everyone:
            worker.stop()
        print(f"{sum(worker.cases for worker in everyone)} cases", file=sys.stderr, flush=True)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Damaged and strange input for every command.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--kind", action="append", default=[], choices=KINDS)
    parser.add_argument("--case", help="this one alone, of one kind, as the report names it")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--material", type=Path, help="directory to make models in, and to keep")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as temporary:
        material = (args.material or Path(temporary) / "material").resolve()
        if not (material / "done").exists():
            from tests.attacks.fuzz_process import make_material

            make_material(material)
            (material / "done").touch()
        if args.case:
            failures = run_cases([(*args.kind, args.case)], material)
        else:
            failures = fuzz(args.cases, args.seed, material, args.kind, args.workers)
    print("\n".join([*failures, f"{len(failures)} failed"]))
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
