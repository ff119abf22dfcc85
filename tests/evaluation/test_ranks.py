"""Spearman's and Pearson's correlation and their bootstrap, against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from compressor.errors import InputError
from tests.helpers.errors import raises
from tests.helpers.metrics import compare, score_answers


def columns(rows: int = 60) -> list[list[str]]:
    """Answers of two models and the right numbers, with ties in all of them."""
    rng = np.random.default_rng(0)
    right = rng.integers(0, 6, rows).astype(float)
    return [
        [repr(float(x)) for x in values]
        for values in ((right + rng.normal(0, 2, rows)).round(), right + rng.normal(0, 3, rows),
                       right)
    ]  # fmt: skip


def by_scipy(answers, right, correlation=spearmanr) -> float:
    return 100 * correlation(np.array(answers, float), np.array(right, float)).statistic


def test_the_correlation_is_scipys():
    for answers in columns()[:2]:
        found = score_answers("embedding", answers, columns()[2], None)
        assert found.metrics == {"spearman": pytest.approx(by_scipy(answers, columns()[2]))}
    reverse = [f"-{x}" for x in columns()[2]]
    found = score_answers("embedding", reverse, columns()[2], None)
    assert found.metrics["spearman"] == pytest.approx(-100)


def test_every_draw_is_scipys():
    dense, pruned, right = columns()
    compared = compare("regression", dense, pruned, right, resamples=40, seed=3)
    drawn = np.random.default_rng(3).integers(60, size=(40, 60))
    a, b, c = (np.array(x, float) for x in (dense, pruned, right))
    for found, by in zip(compared, (spearmanr, pearsonr), strict=True):
        change = by_scipy(b, c, by) - by_scipy(a, c, by)
        differences = np.array([by_scipy(b[i], c[i], by) - by_scipy(a[i], c[i], by) for i in drawn])
        assert found.difference == pytest.approx(change)
        assert found.interval == pytest.approx(np.quantile(differences, [0.025, 0.975]))
        extreme = np.abs(differences - found.difference) >= abs(found.difference)
        assert found.p_value == pytest.approx((1 + extreme.sum()) / 41)


def test_numbers_that_are_large_beside_their_spread_keep_their_correlation():
    answers, _, right = columns()
    far = [repr(1e7 + float(x)) for x in answers]
    found = score_answers("regression", far, right, None)
    assert found.metrics["pearson"] == pytest.approx(by_scipy(answers, right, pearsonr))


@pytest.mark.parametrize("column", [0, 1])
def test_what_is_no_number_is_refused(column: int):
    texts = [["0.1", "0.2"], ["1", "2"]]
    texts[column][1] = "nan"
    with raises(InputError, "score-not-number"):
        score_answers("embedding", *texts, None)
