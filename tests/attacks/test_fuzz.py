"""The fuzzer's cases of fixed seeds keep the promises; `fuzz.py` says which, and runs more."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from tests.attacks import fuzz_process
from tests.attacks.fuzz import Worker, fuzz, main
from tests.attacks.fuzz_cases import Case
from tests.attacks.fuzz_process import Judge, make_material

pytestmark = pytest.mark.attack


@pytest.fixture(scope="session")
def material(once) -> Path:
    return once("fuzzed", make_material)


def test_the_fuzzer_notices_wrong_answers(material, tmp_path, monkeypatch):
    inspect = [["inspect", str(material / name), "--json"] for name in ("bert", "marian")]
    lie = Case(inspect[0], "", intact=inspect[1])
    assert "answers something else than" in Judge(material).run(lie, tmp_path)[0]
    monkeypatch.setattr(fuzz_process, "invoke", lambda words: 70)
    assert "status 70" in Judge(material).run(lie, tmp_path)[0]


def test_a_case_that_failed_is_repeated_alone(material, monkeypatch, capsys):
    """A third of the cases fail, by their contents; each repeats itself by its name."""

    def run(worker: Worker, case: Case) -> str:
        contents = f"{case}{case.files}"
        return contents if zlib.crc32(contents.encode(errors="replace")) % 3 == 0 else ""

    monkeypatch.setattr(Worker, "run", run)
    found = fuzz(200, 7, material)
    assert 30 < len(found) < 110
    (material / "done").touch()
    for failure in (found[0], found[-1]):
        words = failure.partition(": ")[0].split()
        assert main(["--material", str(material), *words]) == 1
        assert capsys.readouterr().out == f"{failure}\n1 failed\n"


def test_a_thousand_cases_keep_the_promises(material):
    assert fuzz(1000, 2, material) == []
