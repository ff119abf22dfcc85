"""The fuzzer's cases of fixed seeds keep the promises; `fuzz.py` says which, and runs more."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest

from tests.attacks.fuzz import CaseFailed, fuzz, repeat, run_batch
from tests.attacks.fuzz_cases import Case, failing
from tests.attacks.fuzz_material import make_material
from tests.attacks.fuzz_process import Job, Judge

pytestmark = pytest.mark.attack


@pytest.fixture(scope="session")
def material(once) -> Path:
    return once("fuzzed", make_material)


@pytest.mark.parametrize(
    ("name", "failure"), [("bug", "status 70"), ("lie", "answers something else than")]
)
def test_the_fuzzer_tells_wrong_answers(name, failure, material, tmp_path):
    job = Job(**failing(material)[name].lay_out(tmp_path))
    assert failure in Judge(material).run(job)["failure"]


@pytest.mark.parametrize("kind", ["recipes", "reports"])
def test_a_case_that_failed_is_repeated_alone(kind, material):
    """A third of the cases fail; one of them is reported, and is the only one that runs again."""
    drawn: list[Case] = []

    def run(case: Case) -> None:
        drawn.append(case)
        if zlib.crc32(f"{case}{case.files}".encode()) % 3 == 0:
            raise CaseFailed(repr(case))

    found = run_batch(run, material, kind, 50, seed=7)
    blob = re.match(rf"--kind {kind} --case (\S+): ", found)
    assert blob is not None, found
    drawn.clear()
    assert repeat(run, material, kind, blob[1]) == found
    assert len(set(map(repr, drawn))) == 1


def test_a_thousand_cases_keep_the_promises(material):
    assert fuzz(1000, 2, material) == []
