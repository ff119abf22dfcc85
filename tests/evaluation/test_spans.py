"""Exact match and F1 of answers, by hand after the official script of SQuAD 2.0."""

from __future__ import annotations

import json

import pytest

from tests.helpers.metrics import compare, score_answers

TASK = "question-answering"


def gold(*texts: str) -> str:
    return json.dumps([[text, 0] for text in texts])


@pytest.mark.parametrize(
    ("answer", "right", "exact", "f1"),
    [
        # Case, punctuation, articles and white space do not count.
        ("the  U.S. Army!", gold("US army"), 100, 100),
        ("theater", gold("ater"), 0, 0),  # an article is a word of its own
        # Two of three words are two of the reference's four: F1 = 2 * 2 / (3 + 4).
        ("big red dog", gold("red dog barked loudly"), 0, 400 / 7),
        # A word counts as often as both have it: one of two "very".
        ("very very good", gold("very bad"), 0, 40),
        # The best of several right answers.
        ("in 1890", gold("1889", "1890"), 0, 200 / 3),
        ("1890", gold("in 1890", "1890"), 100, 100),
        # No answer is right where there is none, and there alone.
        ("", gold(), 100, 100),
        ("1890", gold(), 0, 0),
        ("", gold("1890"), 0, 0),
        # A right answer without words counts only where all are like that.
        ("the", gold("..."), 100, 100),
        ("x", gold("...", "x y"), 0, 200 / 3),
    ],
)
def test_by_hand(answer: str, right: str, exact: float, f1: float):
    found = score_answers(TASK, [answer, "1"], [right, gold("1")], None).metrics
    assert found["exact_match"] == pytest.approx((exact + 100) / 2)
    assert found["answer_f1"] == pytest.approx((f1 + 100) / 2)


def test_a_difference_has_an_exact_test():
    """Of 8 questions the first model has 6 that the second has not: p = 2 / 2^6 by hand."""
    right = [gold(str(number)) for number in range(8)]
    dense, pruned = [str(number) for number in range(8)], ["x"] * 6 + ["6", "7"]
    f1, exact = compare(TASK, dense, pruned, right, resamples=50)
    assert (f1.metric, f1.discordant) == ("answer_f1", None)
    assert (exact.metric, exact.discordant) == ("exact_match", (6, 0))
    assert exact.p_value == pytest.approx(2 / 2**6)
    assert f1.difference == exact.difference == -75
