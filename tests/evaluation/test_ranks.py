"""Correlations of numbers, and nDCG, MRR and MAP of ranked rows, against SciPy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import average_precision_score, ndcg_score

from compressor.errors import InputError
from compressor.evaluation import compare_rows, score_rows
from compressor.tasks import Rows
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


def test_what_is_no_number_is_refused():
    with raises(InputError, "score-not-number"):
        score_answers("embedding", ["0.1", "nan"], ["1", "2"], None)


def made(queries: int = 25, seed: int = 0) -> tuple[Rows, list[list[str]]]:
    """Rows of queries in no order, two of which have no relevant text, and two models' answers."""
    rng = np.random.default_rng(seed)
    rows = [
        (f"query {q}", f"text {q} {t}", str(rng.integers(0, 3) if q > 1 and t else int(q > 1)))
        for q in range(queries)
        for t in range(rng.integers(2, 16))
    ]
    rng.shuffle(rows)
    sources, pairs, targets = (list(column) for column in zip(*rows, strict=True))
    right = np.array(targets, float)
    answers = [[repr(float(x)) for x in right + rng.normal(0, s, len(right))] for s in (0.7, 1.5)]
    return Rows("reranking", sources, pairs, targets, ["x.tsv"], "0", ranked=True), answers


def values(rows: Rows, answers: list[str]) -> dict[str, list[float]]:
    """Of each query with a relevant text, in the order of their first rows."""
    found: dict[str, list[float]] = {"ndcg@10": [], "mrr@10": [], "map": []}
    for query in dict.fromkeys(rows.sources):
        mine = [i for i, source in enumerate(rows.sources) if source == query]
        grades = np.array([int(rows.targets[i]) for i in mine])
        scores = np.array([float(answers[i]) for i in mine])
        if not grades.any():
            continue
        found["ndcg@10"].append(ndcg_score([grades], [scores], k=10))
        found["map"].append(average_precision_score(grades > 0, scores))
        better = (scores > scores[grades > 0].max()).sum()
        found["mrr@10"].append(1 / (better + 1) if better < 10 else 0.0)
    return found


def test_metrics_are_scikit_learns():
    rows, both = made()
    for answers in both:
        quality = score_rows(rows, answers)
        wanted = {name: 100 * np.mean(x) for name, x in values(rows, answers).items()}
        assert quality.metrics == pytest.approx(wanted)
        assert quality.rows == 23  # queries
        assert "|ties:worst|" in quality.signatures["mrr@10"]


def test_queries_are_drawn_and_not_rows():
    rows, (dense, pruned) = made()
    found = {x.metric: x for x in compare_rows(rows, dense, pruned, resamples=60, seed=3)}
    drawn = np.random.default_rng(3).integers(23, size=(60, 23))
    before, after = values(rows, dense), values(rows, pruned)
    for name, comparison in found.items():
        difference = 100 * (np.array(after[name]) - np.array(before[name]))
        ends = np.quantile(difference[drawn].mean(1), [0.025, 0.975])
        assert comparison.interval == pytest.approx(ends)
        assert comparison.difference == pytest.approx(difference.mean())
        assert comparison.discordant is None


def test_a_model_that_tells_nothing_apart_has_the_worst_order():
    texts = [f"t{i}" for i in range(12)]
    rows = Rows(
        "reranking", ["q"] * 12, texts, ["2", "1", *["0"] * 10], ["x"], "0", ranked=True
    )  # fmt: skip
    assert score_rows(rows, ["0.5"] * 12).metrics == pytest.approx(
        {"ndcg@10": 0.0, "mrr@10": 0.0, "map": 100 * (1 / 11 + 2 / 12) / 2}
    )
    best = [str(-i) for i in range(12)]
    assert set(score_rows(rows, best).metrics.values()) == {100.0}
    # The first ten, the grades being 0, 2, 1: (2 / log2(3) + 1 / 2) / (2 + 1 / log2(3)).
    swapped = ["2", "1", "3", *["0"] * 9]
    ndcg = (2 / np.log2(3) + 1 / 2) / (2 + 1 / np.log2(3))
    assert score_rows(rows, swapped).metrics["ndcg@10"] == pytest.approx(100 * ndcg)
