"""The fuzzer's cases of fixed seeds keep the promises; `fuzz.py` says which, and runs more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks import fuzz_process
from tests.attacks.fuzz import fuzz
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


def test_a_thousand_cases_keep_the_promises(material):
    assert fuzz(1000, 2, material) == []
