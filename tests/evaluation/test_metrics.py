"""Metric values, compared with sacreBLEU's public functions, with scikit-learn, and by hand."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import sacrebleu
from sklearn import metrics as sklearn_metrics

from compressor.errors import EnvironmentProblem
from compressor.evaluation import require_references
from compressor.tasks import TASKS, Rows
from tests.helpers.errors import raises
from tests.helpers.metrics import compare, score_answers

REFERENCES = [
    "The cat sat on the mat.",
    "Tom doesn't want to go home yet.",
    "Where did you buy this book?",
    "It has been raining since last Monday.",
]
HYPOTHESES = [
    "The cat is sitting on the mat.",
    "Tom does not want to go home yet.",
    "",
    "It has rained since last Monday.",
]


def test_translation_scores_are_sacrebleus_and_signatures_name_all_that_changes_them() -> None:
    quality = score_answers("translation", HYPOTHESES, REFERENCES, None)
    signatures = quality.signatures
    # Also of a few words alone, where there are no matches of three or four, or none at all.
    few = [("mat cat the", REFERENCES[0]), ("Go!", "Go!"), ("x", "y"), ("", "y"), ("a b c d", "a")]
    for hypotheses, references in [(HYPOTHESES, REFERENCES), *(([x], [y]) for x, y in few)]:
        found = score_answers("translation", hypotheses, references, None).metrics
        bleu = sacrebleu.corpus_bleu(hypotheses, [references]).score
        assert found["bleu"] == pytest.approx(bleu, rel=1e-12)
        chrf = sacrebleu.corpus_chrf(hypotheses, [references]).score
        assert found["chrf"] == pytest.approx(chrf, rel=1e-12)
    assert tuple(quality.metrics) == TASKS["translation"].metrics  # what gates may be about
    assert quality.rows == 4
    version = sacrebleu.__version__
    # Spelled out by hand from sacreBLEU's documentation of its default settings.
    assert signatures["bleu"] == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version}"
    assert signatures["chrf"] == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{version}"


def test_classification_scores_are_scikit_learns() -> None:
    labels, rng = 7, np.random.default_rng(7)
    names = [f"label {number}" for number in range(labels)]
    # One label is never gold and one is never predicted.
    gold = [names[code] for code in rng.integers(0, labels - 1, size=200)]
    predicted = [
        name if keep else names[code]
        for name, keep, code in zip(
            gold, rng.random(200) < 0.6, rng.integers(1, labels, size=200), strict=True
        )
    ]
    quality = score_answers("classification", predicted, gold, names)
    f1 = sklearn_metrics.f1_score(gold, predicted, average="macro", zero_division=0)
    assert quality.metrics == pytest.approx(
        {
            "accuracy": 100 * sklearn_metrics.accuracy_score(gold, predicted),
            "macro_f1": 100 * f1,
            "mcc": sklearn_metrics.matthews_corrcoef(gold, predicted),
        },
        rel=1e-12,
    )
    assert quality.signatures.keys() == quality.metrics.keys()
    assert tuple(quality.metrics) == TASKS["classification"].metrics


def test_correlation_is_zero_where_it_is_undefined() -> None:
    quality = score_answers("classification", ["a", "a"], ["a", "b"], ["a", "b"])
    # scikit-learn's convention; F1 of b is 0 and of a 2/3, by hand.
    assert quality.metrics == pytest.approx({"accuracy": 50.0, "macro_f1": 100 / 3, "mcc": 0.0})


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
def test_answers_by_hand(answer: str, right: str, exact: float, f1: float):
    found = score_answers("question-answering", [answer, "1"], [right, gold("1")], None).metrics
    assert found["exact_match"] == pytest.approx((exact + 100) / 2)
    assert found["answer_f1"] == pytest.approx((f1 + 100) / 2)


def test_a_difference_has_an_exact_test():
    """Of 8 questions the first model has 6 that the second has not: p = 2 / 2^6 by hand."""
    right = [gold(str(number)) for number in range(8)]
    dense, pruned = [str(number) for number in range(8)], ["x"] * 6 + ["6", "7"]
    f1, exact = compare("question-answering", dense, pruned, right, resamples=50)
    assert (f1.metric, f1.discordant) == ("answer_f1", None)
    assert (exact.metric, exact.discordant) == ("exact_match", (6, 0))
    assert exact.p_value == pytest.approx(2 / 2**6)
    assert f1.difference == exact.difference == -75


def rows(references: list[str]) -> Rows:
    return Rows("summarization", list(references), None, references, ["rows.tsv"], "")


def test_rouge_by_hand():
    """Stems of the answer: two dog run in the park, 6; of the reference: two dog are run in park.

    Five words are shared; two pairs (two dog, run in) of 5 and 5. The longest common subsequence of
    the lines is two dog run in park.
    """
    answer, reference = "Two dogs run in the park", "Two dog are running in park"
    found = score_answers("summarization", [answer, "x"], [reference, "y"], None)
    pairs, words = 2 / 5, 5 / 6
    wanted = {"rouge2": 100 * pairs / 2, "rouge1": 100 * words / 2, "rougelsum": 100 * words / 2}
    assert found.metrics == pytest.approx(wanted)
    assert list(found.metrics) == ["rouge2", "rouge1", "rougelsum"]
    assert "stemmer:porter" in found.signatures["rouge2"]


def test_only_lsum_knows_lines():
    """8 and 7 words: by lines "the train … late" and "nobody … wait" are shared, on one only 3."""
    answer = "Nobody was waiting.\nThe train is late."
    reference = "The trains were late.\nNobody waited for them."
    lines, one = (
        score_answers(
            "summarization", [answer.replace("\n", end)], [reference.replace("\n", end)]
        ).metrics
        for end in ("\n", " ")
    )
    assert lines["rougelsum"] == pytest.approx(100 * 2 * 5 / 15)
    assert one["rougelsum"] == pytest.approx(100 * 2 * 3 / 15)
    assert (lines["rouge1"], lines["rouge2"]) == (one["rouge1"], one["rouge2"])


def test_without_the_package_nothing_is_scored(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    with raises(EnvironmentProblem, "rouge-score-not-installed") as caught:
        require_references(rows(["one"]))
    assert "pip install 'rouge-score>=" in str(caught.value)
    assert caught.value.exit_code == 3
