"""Entities and words with the right label, against seqeval and by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest
from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score

from compressor.errors import InputError
from compressor.evaluation import compare, score_answers
from compressor.runtime.entities import entity_runs, first_tokens
from tests.helpers.errors import raises

TASK = "token-classification"
SCORES = {
    "entity_f1": f1_score,
    "entity_precision": precision_score,
    "entity_recall": recall_score,
    "token_accuracy": accuracy_score,
}
LABELS = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("per", "loc-x"))]


def drawn(rows: int, seed: int) -> tuple[list[str], list[str], list[str]]:
    """Answers of two models, and references that share many labels with them."""
    rng = random.Random(seed)
    gold = [rng.choices(LABELS, k=rng.randint(1, 9)) for _ in range(rows)]
    noisy = [
        [[x if rng.random() < share else rng.choice(LABELS) for x in row] for row in gold]
        for share in (0.8, 0.6)
    ]
    return tuple([" ".join(row) for row in column] for column in (*noisy, gold))


@pytest.mark.parametrize("metric", SCORES)
def test_scores_and_their_draws_are_seqevals(metric: str):
    dense, pruned, gold = drawn(40, 0)
    split = [[row.split() for row in column] for column in (dense, pruned, gold)]
    expected = 100 * SCORES[metric](split[2], split[0])
    assert score_answers(TASK, dense, gold, None).metrics[metric] == pytest.approx(expected)
    found = {x.metric: x for x in compare(TASK, dense, pruned, gold, resamples=40, seed=3)}[metric]
    differences = []
    for rows in np.random.default_rng(3).integers(40, size=(40, 40)):
        first, second, right = ([column[row] for row in rows] for column in split)
        differences.append(100 * (SCORES[metric](right, second) - SCORES[metric](right, first)))
    assert found.interval == pytest.approx(np.quantile(differences, [0.025, 0.975]))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        # From seqeval's documentation.
        ("B-PER I-PER O B-LOC", [("PER", 0, 1), ("LOC", 3, 3)]),
        ("O O O B-MISC I-MISC I-MISC O", [("MISC", 3, 5)]),
        # As the CoNLL-2003 script counts: an entity may start with I, or at a change of type.
        ("I-PER I-PER B-PER I-LOC", [("PER", 0, 1), ("PER", 2, 2), ("LOC", 3, 3)]),
        ("S-PER S-PER I-PER E-PER I-PER", [("PER", 0, 0), ("PER", 1, 1), ("PER", 2, 3),
                                           ("PER", 4, 4)]),
        ("NOUN NOUN VERB O B I", [("NOUN", 0, 1), ("VERB", 2, 2), ("_", 4, 5)]),
        ("O", []),
    ],
)  # fmt: skip
def test_entities(labels: str, expected: list[tuple[str, int, int]]):
    assert entity_runs(labels.split()) == expected


def test_by_hand_with_a_sentence_that_was_cut():
    """One of three entities is found with its end; two labels that lack count as O."""
    gold, answer = "B-per I-per O B-loc B-loc", "B-per I-per B-loc"
    found = score_answers(TASK, [answer], [gold], None).metrics
    assert found["entity_precision"] == pytest.approx(100 / 2)
    assert found["entity_recall"] == pytest.approx(100 / 3)
    assert found["entity_f1"] == pytest.approx(100 * 2 / 5)
    assert found["token_accuracy"] == pytest.approx(100 * 2 / 5)
    assert score_answers(TASK, ["O"], ["O"], None).metrics["entity_f1"] == 0
    with raises(InputError, "tags-do-not-match-words"):
        score_answers(TASK, ["O O"], ["O"], None)


def test_the_first_token_of_each_word():
    offsets = [(0, 0), (0, 2), (2, 4), (4, 5), (5, 8), (9, 9), (0, 0)]
    assert first_tokens(offsets, [(0, 4), (5, 8), (9, 10)]) == [1, 4, None]
