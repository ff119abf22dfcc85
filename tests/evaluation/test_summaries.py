"""ROUGE by hand, and what it cannot score."""

from __future__ import annotations

import sys

import pytest

from compressor.errors import EnvironmentProblem, InputError
from compressor.evaluation import require_references
from compressor.tasks import Rows
from tests.helpers.errors import raises
from tests.helpers.metrics import score_answers

TASK = "summarization"
REFERENCES = [
    "The trains were late.\nNobody waited for them.",
    "Two dogs are running in the park",
    "Rain, and then more rain!",
]
ANSWERS = ["Nobody was waiting.\nThe train is late.", "a dog runs in the park with two dogs", ""]


def rows(references: list[str]) -> Rows:
    return Rows(TASK, list(references), None, references, ["rows.tsv"], "")


def test_by_hand():
    """Stems of the answer: two dog run in the park, 6; of the reference: two dog are run in park.

    Five words are shared; two pairs (two dog, run in) of 5 and 5. The longest common subsequence of
    the lines is two dog run in park.
    """
    answer, reference = "Two dogs run in the park", "Two dog are running in park"
    found = score_answers(TASK, [answer, "x"], [reference, "y"], None)
    pairs, words = 2 / 5, 5 / 6
    wanted = {"rouge2": 100 * pairs / 2, "rouge1": 100 * words / 2, "rougelsum": 100 * words / 2}
    assert found.metrics == pytest.approx(wanted)
    assert list(found.metrics) == ["rouge2", "rouge1", "rougelsum"]
    assert "stemmer:porter" in found.signatures["rouge2"]


def test_only_lsum_knows_lines():
    """8 and 7 words: by lines "the train … late" and "nobody … wait" are shared, on one only 3."""
    lines, one = (
        score_answers(TASK, [x.replace("\n", end)], [y.replace("\n", end)], None).metrics
        for end in ("\n", " ")
        for x, y in [(ANSWERS[0], REFERENCES[0])]
    )
    assert lines["rougelsum"] == pytest.approx(100 * 2 * 5 / 15)
    assert one["rougelsum"] == pytest.approx(100 * 2 * 3 / 15)
    assert (lines["rouge1"], lines["rouge2"]) == (one["rouge1"], one["rouge2"])


def test_references_that_rouge_cannot_read_are_refused():
    require_references(rows(["это", "?!"]))
    with raises(InputError, "rouge-reads-nothing"):
        require_references(rows(["...", "?!"]))


def test_without_the_package_nothing_is_scored(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    with raises(EnvironmentProblem, "rouge-score-not-installed") as caught:
        require_references(rows(REFERENCES))
    assert "pip install 'rouge-score>=" in str(caught.value)
    assert caught.value.exit_code == 3
