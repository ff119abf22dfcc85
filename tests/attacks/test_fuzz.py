"""The fuzzer's cases of fixed seeds keep the promises; `fuzz.py` says which, and runs more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.fuzz import Worker, failures, fuzz
from tests.attacks.fuzz_cases import KINDS
from tests.attacks.fuzz_material import make_material
from tests.attacks.fuzz_process import Fuzzer

pytestmark = pytest.mark.slow
QUICK = [name for name in KINDS if name != "records"]  # which make a whole run each


@pytest.fixture(scope="session")
def small(once) -> Path:
    return once("fuzzed", lambda directory: make_material(directory, ("bert",)))


@pytest.mark.parametrize(
    ("kind", "failure"), [("bug", "status 70"), ("lie", "answers something else than")]
)
def test_the_fuzzer_tells_wrong_answers(kind, failure, small):
    assert failure in Fuzzer(0, small, [kind]).run(0)["failure"]


@pytest.mark.attack
@pytest.mark.parametrize(
    ("kind", "failure"),
    [("end", "killed its process (status 7)"), ("hang", "took more than 2 s"), ("take", " MiB")],
)
def test_the_fuzzer_tells_what_happens_to_its_process(kind, failure, small):
    worker = Worker(0, small, [kind], seconds=2)
    try:
        found = worker.run(0)
    finally:
        worker.stop()
    assert failure in found.failure
    assert len(failures([found], 0)) == 1


def test_hundreds_of_cases_keep_the_promises(small):
    assert failures(fuzz(range(200), 1, small, QUICK), 1) == []


@pytest.mark.attack
@pytest.mark.parametrize("seed", [2, 3])
def test_thousands_of_cases_keep_the_promises(once, seed):
    material = once("fuzzed-whole", make_material)
    assert failures(fuzz(range(1500), seed, material), seed) == []
