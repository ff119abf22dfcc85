"""The fuzzer's cases of fixed seeds keep the promises; `fuzz.py` says which, and runs more."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest

from tests.attacks.fuzz import CaseFailed, Worker, batches, fuzz, repeat, run_batch
from tests.attacks.fuzz_cases import KINDS, Case, failing
from tests.attacks.fuzz_material import make_material
from tests.attacks.fuzz_process import Job, Judge

pytestmark = pytest.mark.slow
QUICK = [name for name in KINDS if name != "records"]  # which make a whole run each


@pytest.fixture(scope="session")
def small(once) -> Path:
    return once("fuzzed", lambda directory: make_material(directory, ("bert",)))


@pytest.mark.parametrize(
    ("name", "failure"), [("bug", "status 70"), ("lie", "answers something else than")]
)
def test_the_fuzzer_tells_wrong_answers(name, failure, small, tmp_path):
    job = Job(**failing(small)[name].lay_out(tmp_path))
    assert failure in Judge(small).run(job)["failure"]


@pytest.mark.attack
@pytest.mark.parametrize(
    ("name", "failure", "seconds"),
    [
        ("end", "killed its process (status 7)", 300),
        ("hang", "took more than 2 s", 2),
        ("take", " MiB", 300),  # a machine that is busy takes its time to fill memory
    ],
)
def test_the_fuzzer_tells_what_happens_to_its_process(name, failure, seconds, small):
    worker = Worker(small, seconds=seconds)
    try:
        with pytest.raises(CaseFailed) as caught:
            worker.run(failing(small)[name])
    finally:
        worker.stop()
    assert failure in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_that_failed_is_repeated_alone(kind, small):
    """A third of the cases fail; one of them is reported, and is the only one that runs again."""
    drawn: list[Case] = []

    def run(case: Case) -> None:
        drawn.append(case)
        if zlib.crc32(f"{case}{case.files}".encode()) % 3 == 0:
            raise CaseFailed(repr(case))

    found = run_batch(run, small, kind, 50, seed=7)
    blob = re.match(rf"--kind {kind} --case (\S+): ", found)
    assert blob is not None, found
    drawn.clear()
    assert repeat(run, small, kind, blob[1]) == found
    assert len(set(map(repr, drawn))) == 1


def test_batches_have_all_cases_and_kinds():
    sizes = [size for _, _, size in batches(20_000)]
    assert sum(sizes) == pytest.approx(20_000, abs=len(KINDS))
    assert {kind for kind, *_ in batches(200)} == set(KINDS)


def test_hundreds_of_cases_keep_the_promises(small):
    assert fuzz(100, 1, small, QUICK) == []


@pytest.mark.attack
def test_a_thousand_cases_keep_the_promises(once):
    assert fuzz(1000, 2, once("fuzzed-whole", make_material)) == []
