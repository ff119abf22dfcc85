"""The paired bootstrap and its p-values, and bounds that prove a model not worse.

Against sacreBLEU, likelihoods and the normal approximation.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest
from scipy.optimize import minimize_scalar
from scipy.stats import binom, norm

from compressor.evaluation import DEFAULT_SEED, METRICS, lower_bound
from compressor.evaluation.bounds import rows_for_score_bound, score_bound
from compressor.evaluation.significance import Pair
from compressor.tasks import TASKS
from tests.helpers.metrics import classified, compare
from tests.helpers.toy import sentence

ALPHA = 0.025


def spoilt(texts: list[str], share: float, seed: int) -> list[str]:
    """Texts in which some words are wrong."""
    rng = random.Random(seed)
    return [
        " ".join("wrong" if rng.random() < share else word for word in text.split())
        for text in texts
    ]


def translated(rows: int, changed: float) -> Sequence[list[str]]:
    """Dense answers, pruned ones with more wrong words, and references."""
    rng = random.Random(5)
    references = [f"{sentence(rng)} {sentence(rng)}" for _ in range(rows)]
    dense = spoilt(references, 0.2, seed=6)
    return dense, spoilt(dense, changed, seed=7), references


def independent() -> Sequence[list[str]]:
    """As `translated`, with other wrong words in the pruned answers."""
    dense, _, references = translated(150, 0)
    return dense, spoilt(references, 0.24, seed=8), references


def test_draws_give_the_p_value_of_sacrebleu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    dense, pruned, references = independent()
    _, reference = PairedTest(
        [("dense", dense), ("pruned", pruned)],
        {"BLEU": BLEU(), "chrF": CHRF()},
        [references],
        test_type="bs",
    )()
    pair = Pair.of([METRICS[x]() for x in TASKS["translation"].metrics], dense, pruned, references)
    scores = pair.bootstrap(1000, DEFAULT_SEED)
    assert scores.keys() == {"bleu", "chrf"}
    for name, theirs in (("bleu", reference["BLEU"][1]), ("chrf", reference["chrF2"][1])):
        assert 0.001 < theirs.p_value < 1  # a case where counting errors would show
        observed = pair.points(name)[1] - pair.points(name)[0]
        sizes = np.abs(scores[name][1] - scores[name][0])
        p_value = (1 + np.count_nonzero(sizes - sizes.mean() > abs(observed))) / 1001
        # The same draws; sacreBLEU works in float32, so one draw may fall on the other side.
        assert p_value == pytest.approx(theirs.p_value, abs=1.5 / 1001)
        assert pair.points(name)[1] == theirs.score


def test_draws_in_parts_are_those_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of seven draws, the last of one."""
    metrics = [METRICS[name]() for name in ("bleu", "chrf")]
    pair = Pair.of(metrics, *translated(40, 0.1))
    whole = pair.bootstrap(50, 1)
    monkeypatch.setattr("compressor.evaluation.metric.DRAWS_PER_CHUNK", 7 * 40)
    parts = pair.bootstrap(50, 1)
    for name in ("bleu", "chrf"):
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-12)


def test_p_value_is_that_of_a_normal_distribution_on_many_rows() -> None:
    """Two-sided, from the difference and the width of its interval."""
    for found in compare("translation", *independent(), resamples=4000):
        error = (found.interval[1] - found.interval[0]) / (2 * 1.96)
        expected = 2 * norm.sf(abs(found.difference) / error)
        assert 0.001 < expected < 0.9
        assert found.p_value == pytest.approx(expected, abs=0.03)


def test_p_value_of_accuracy_is_mcnemars_exact_one() -> None:
    gold = ["a"] * 60
    for lost, won in ((3, 0), (12, 3), (5, 5), (0, 7)):
        dense = ["b"] * won + ["a"] * (60 - won)
        pruned = ["a"] * (60 - lost) + ["b"] * lost
        accuracy = compare("classification", dense, pruned, gold, resamples=100)[0]
        rows = lost + won
        tail = sum(math.comb(rows, k) for k in range(max(lost, won), rows + 1)) / 2**rows
        expected = min(1.0, 2 * tail)  # a fair coin, at least as uneven in either direction
        assert accuracy.p_value == pytest.approx(expected, rel=1e-9)


def bound(metric: str, answers: Sequence[list[str]], limit: float, alpha: float = ALPHA):
    options = {"limit": limit, "alpha": alpha, "resamples": 1000, "seed": 0}
    return lower_bound(METRICS[metric](), *answers, **options)


def score_statistic(lost: int, won: int, rows: int, loss: float) -> float:
    """Tango's z, its nuisance parameter found by maximizing the likelihood numerically."""

    def unlikely(share: float) -> float:
        shares = (share + loss, share, 1 - 2 * share - loss)
        counts = (lost, won, rows - lost - won)
        return -sum(n * math.log(max(p, 1e-300)) for n, p in zip(counts, shares, strict=True) if n)

    share = minimize_scalar(
        unlikely,
        bounds=(max(0.0, -loss), (1 - loss) / 2),
        method="bounded",
        options={"xatol": 1e-12},
    ).x
    return (lost - won - rows * loss) / math.sqrt(rows * (2 * share + loss - loss**2))


@pytest.mark.parametrize("counts", [(1, 0, 150), (3, 1, 150), (11, 0, 300), (40, 31, 900)])
@pytest.mark.parametrize("alpha", [0.025, 0.0125])
def test_accuracys_bound_is_where_the_score_test_rejects(counts, alpha):
    lost, won, rows = counts
    loss = score_bound(lost, won, rows, alpha)
    assert score_statistic(lost, won, rows, loss) == pytest.approx(-norm.isf(alpha), abs=1e-3)


def test_rows_without_any_change_leave_the_wilson_bound():
    """Without discordant rows the score test is the one of a single share (Wilson 1927)."""
    z2 = norm.isf(ALPHA) ** 2
    assert score_bound(0, 0, 150, ALPHA) == pytest.approx(z2 / (150 + z2))
    assert rows_for_score_bound(0, 0, 150, 0.01, ALPHA) == math.ceil(z2 * 0.99 / 0.01)
    found = bound("accuracy", classified(0, 0, 150), limit=1)
    assert found.value == pytest.approx(-100 * z2 / (150 + z2))
    (accuracy,) = (
        c for c in compare("classification", *classified(0, 0, 150)) if c.metric == "accuracy"
    )
    assert accuracy.interval == (0, 0)  # which the bootstrap alone would call proven


def test_a_drop_at_the_limit_is_proven_by_no_number_of_rows():
    assert rows_for_score_bound(10, 0, 1000, 0.01, ALPHA) is None
    assert rows_for_score_bound(0, 0, 1000, 0.0, ALPHA) is None
    answers = translated(100, 0.1)
    drop = -compare("translation", *answers)[0].difference
    assert drop > 1
    assert bound("bleu", answers, limit=drop).rows is None
    assert bound("bleu", answers, limit=drop / 2).rows is None


def test_bleus_bound_is_the_quantile_of_the_bootstrap():
    answers = translated(400, 0.05)
    (bleu, _) = compare("translation", *answers, resamples=1000, seed=0)
    limit = 1 - bleu.difference
    found = bound("bleu", answers, limit)
    assert found.value == pytest.approx(bleu.interval[0])
    # A share of the error in both tails, by the normal approximation.
    spread = (bleu.interval[1] - bleu.interval[0]) / 2 / norm.isf(0.025)
    wider = bound("bleu", answers, limit, alpha=0.0125)
    assert bleu.difference - wider.value == pytest.approx(norm.isf(0.0125) * spread, rel=0.15)
    needed = 400 * (norm.isf(0.025) * spread / 1) ** 2
    assert found.rows == pytest.approx(needed, rel=0.2)


def test_bleu_of_equal_answers_is_not_proven_by_few_rows():
    """With p = alpha ** (1 / n), n rows show nothing of what strikes 1 - p of all rows."""
    dense, _, references = translated(40, 0.05)
    answers = (dense, dense, references)
    score = compare("translation", *answers)[0].dense
    found = bound("bleu", answers, limit=1)
    assert found.value == pytest.approx(-score * (1 - 0.025 ** (1 / 40)))
    assert binom.pmf(0, found.rows, 1 / score) == pytest.approx(0.025, rel=0.02)
    assert bound("bleu", answers, limit=100).rows == 1
