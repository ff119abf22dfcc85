"""Metric values, compared with sacreBLEU's public functions and with scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF
from sklearn import metrics as sklearn_metrics

from compressor.evaluation.sentences import Bleu, Chrf
from compressor.tasks import TASKS
from tests.helpers.metrics import score_answers

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

    assert quality.metrics["bleu"] == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert quality.metrics["chrf"] == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert tuple(quality.metrics) == TASKS["translation"].metrics  # what gates may be about
    assert quality.rows == 4
    version = sacrebleu.__version__
    # Spelled out by hand from sacreBLEU's documentation of its default settings.
    assert signatures["bleu"] == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version}"
    assert signatures["chrf"] == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{version}"


def test_vectorized_bleu_equals_sacrebleus_formula() -> None:
    """On sums as BLEU can produce them, with zero matches, short and empty outputs among them."""
    rng = np.random.default_rng(4)
    output = rng.integers(0, 12, size=400)
    total = np.maximum(output[:, None] - np.arange(4), 0)
    correct = np.minimum.accumulate(rng.integers(0, total + 1), axis=1)
    reference = rng.integers(1, 14, size=400)
    sums = np.column_stack([output, reference, correct, total]).astype(float)

    expected = [
        BLEU.compute_bleu(
            correct=[int(x) for x in row[2:6]],
            total=[int(x) for x in row[6:]],
            sys_len=int(row[0]),
            ref_len=int(row[1]),
            smooth_method="exp",
        ).score
        for row in sums
    ]

    assert sum(score == 0 for score in expected) > 10  # the special cases do occur
    np.testing.assert_allclose(Bleu().from_sums(sums), expected, rtol=1e-12, atol=1e-12)


def test_vectorized_chrf_equals_sacrebleus_formula() -> None:
    rng = np.random.default_rng(5)
    output = np.maximum(rng.integers(0, 10, size=(300, 1)) - np.arange(6), 0)
    reference = np.maximum(rng.integers(0, 10, size=(300, 1)) - np.arange(6), 0)
    match = rng.integers(0, np.minimum(output, reference) + 1)
    sums = np.stack([output, reference, match], axis=2).reshape(300, 18).astype(float)

    metric = CHRF()
    expected = [metric._compute_f_score([int(x) for x in row]) for row in sums]

    assert 0 < sum(score == 0 for score in expected) < 300
    np.testing.assert_allclose(Chrf().from_sums(sums), expected, rtol=1e-12, atol=1e-12)


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
