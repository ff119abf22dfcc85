"""The fuzzer's cases of fixed seeds keep the promises; `fuzz.py` says which, and runs more."""

from __future__ import annotations

import re
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.attacks.fuzz import CaseFailed, fuzz, repeat, run_batch
from tests.attacks.fuzz_cases import Case
from tests.attacks.fuzz_process import Job, Judge, make_material

pytestmark = pytest.mark.attack


@pytest.fixture(scope="session")
def material(once) -> Path:
    return once("fuzzed", make_material)


def test_the_fuzzer_notices_wrong_answers(material, tmp_path):
    inspect = [["inspect", str(material / name), "--json"] for name in ("bert", "marian")]
    lie = Job(**Case(inspect[0], "", intact=inspect[1]).lay_out(tmp_path))
    assert "answers something else than" in Judge(material).run(lie)["failure"]
    bug = replace(lie, words=["gate", 5], key="")
    assert "status 70" in Judge(material).run(bug)["failure"]


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
