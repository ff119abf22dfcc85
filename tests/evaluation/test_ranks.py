"""nDCG, MRR and MAP of ranked rows, against scikit-learn and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, ndcg_score

from compressor.evaluation import compare_rows, score_rows
from compressor.tasks import Rows


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
