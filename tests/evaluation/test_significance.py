"""The paired bootstrap against sacreBLEU's and plain re-scoring, and its p-values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest
from scipy import stats
from sklearn.metrics import f1_score, matthews_corrcoef

from compressor.evaluation import DEFAULT_SEED, METRICS
from compressor.evaluation.significance import Pair
from compressor.tasks import TASKS
from tests.helpers.metrics import compare

WORDS = [f"word{number}" for number in range(40)]


def translations(rows: int = 150) -> tuple[list[str], list[str], list[str]]:
    """Dense outputs, slightly worse pruned outputs, references; sentences of 6 to 14 words."""
    rng = np.random.default_rng(0)

    def corrupt(sentence: list[str], probability: float) -> str:
        words = zip(sentence, rng.random(len(sentence)) < probability, strict=True)
        return " ".join(str(rng.choice(WORDS)) if flip else word for word, flip in words)

    gold = [list(rng.choice(WORDS, size=length)) for length in rng.integers(6, 15, size=rows)]
    dense = [corrupt(sentence, 0.30) for sentence in gold]
    pruned = [corrupt(sentence, 0.32) for sentence in gold]
    return dense, pruned, [" ".join(sentence) for sentence in gold]


def classified(rows: int = 120) -> tuple[list[str], list[str], list[str]]:
    rng = np.random.default_rng(1)
    names = np.array(["cold", "hot", "warm"])
    gold = rng.integers(0, 3, size=rows)
    dense = np.where(rng.random(rows) < 0.8, gold, rng.integers(0, 3, size=rows))
    pruned = np.where(rng.random(rows) < 0.85, dense, rng.integers(0, 3, size=rows))
    return list(names[dense]), list(names[pruned]), list(names[gold])


def test_draws_give_the_p_value_of_sacrebleu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    dense, pruned, references = translations()
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


def test_p_value_is_that_of_a_normal_distribution_on_many_rows() -> None:
    """Two-sided, from the difference and the width of its interval."""
    for found in compare("translation", *translations(), resamples=4000):
        error = (found.interval[1] - found.interval[0]) / (2 * 1.96)
        expected = 2 * stats.norm.sf(abs(found.difference) / error)
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


def test_classification_draws_equal_scikit_learn_on_the_drawn_rows() -> None:
    dense, pruned, gold = classified()
    rng = np.random.default_rng(8)
    drawn = rng.integers(len(gold), size=(30, len(gold)))
    pair = Pair.of([METRICS[x]() for x in TASKS["classification"].metrics], dense, pruned, gold)
    scores = pair.bootstrap(30, 8)
    for system, outputs in enumerate((dense, pruned)):
        predicted, right = np.array(outputs)[drawn], np.array(gold)[drawn]
        rows = list(zip(right, predicted, strict=True))
        expected = {
            "accuracy": 100 * (predicted == right).mean(axis=1),
            "macro_f1": [100 * f1_score(truth, guess, average="macro") for truth, guess in rows],
            "mcc": [matthews_corrcoef(truth, guess) for truth, guess in rows],
        }
        for metric, values in expected.items():
            np.testing.assert_allclose(scores[metric][system], values, rtol=1e-9)
