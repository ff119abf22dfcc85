"""Where a metric sees nothing in a model's answers: chance, one label, text without words."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from compressor.errors import InputError
from compressor.evaluation import require_above_chance
from compressor.evaluation.metric import make_metric
from compressor.evaluation.significance import find_floor
from compressor.report import facts
from compressor.tasks import TASKS, Rows
from tests.helpers.errors import raises
from tests.helpers.metrics import compare

ROWS = 80
RNG = random.Random(0)
CLASSES = [RNG.choice("abc") for _ in range(ROWS)]
NUMBERS = [str(RNG.random()) for _ in range(ROWS)]
TAGS = [" ".join(RNG.choice(["O", "O", "B-x", "I-x"]) for _ in range(6)) for _ in range(ROWS)]
WORDS = [" ".join(x * 3 for x in RNG.sample("abcdefghijklmnop", 8)) for _ in range(ROWS)]
CHINESE = ["".join(RNG.choice("天地玄黄宇宙洪荒日月") for _ in range(9)) for _ in range(ROWS)]
ANSWERS = [json.dumps([[text[:7], 0]]) for text in WORDS]
RANKINGS = [
    json.dumps(sorted((RNG.randint(0, 2) for _ in range(6)), reverse=True)) for _ in "x" * ROWS
]
RANKINGS = [ranking for ranking in RANKINGS if max(json.loads(ranking))]


def mixed(texts: list[str], seed: int = 1) -> list[str]:
    return random.Random(seed).sample(texts, len(texts))


def mostly(texts: list[str]) -> list[str]:
    """Three of four right."""
    other = mixed(texts)
    return [other[row] if row % 4 == 0 else text for row, text in enumerate(texts)]


def shuffled(rankings: list[str]) -> list[str]:
    return [json.dumps(mixed(json.loads(x), seed)) for seed, x in enumerate(rankings)]


# Task -> references, answers that know them, and answers that do not.
CASES = {
    "classification": (CLASSES, mostly(CLASSES), mixed(CLASSES)),
    "multilabel": (CLASSES, mostly(CLASSES), ["a"] * ROWS),
    "regression": (NUMBERS, mostly(NUMBERS), mixed(NUMBERS)),
    "token-classification": (TAGS, mostly(TAGS), mixed(TAGS)),
    "question-answering": (ANSWERS, mostly([x[:7] for x in WORDS]), [""] * ROWS),
    "translation": (WORDS, mostly(WORDS), mixed(WORDS)),
    "summarization": (WORDS, mostly(WORDS), mixed(WORDS)),
}


@pytest.mark.parametrize("task", CASES)
def test_answers_that_know_nothing_are_at_the_floor_in_every_metric(task: str):
    references, knowing, ignorant = CASES[task]
    assert not [x.metric for x in compare(task, knowing, knowing, references, 100) if x.at_floor]
    for found in compare(task, ignorant, ignorant, references, 100):
        assert found.at_floor, found.metric
        assert found.floor == pytest.approx(found.dense, abs=10)
        assert facts.judge(found, 0) == "unknown"
    lost = compare(task, knowing, ignorant, references, 200)
    assert {facts.judge(x, 0) for x in lost} == {"worse"}


@pytest.mark.parametrize("metric", TASKS["reranking"].metrics)
def test_the_floor_of_rankings_is_a_random_order(metric: str):
    made = make_metric(metric, RANKINGS, {})
    assert not find_floor(made, RANKINGS, RANKINGS)[1]
    floor, is_reached = find_floor(made, shuffled(RANKINGS), RANKINGS)
    assert is_reached
    (statistics,) = made.statistics([shuffled(RANKINGS)], RANKINGS)
    score = made.score(statistics, np.ones(len(RANKINGS)))
    assert floor == pytest.approx(score, abs=6)


def test_high_accuracy_is_at_the_floor_where_labels_are_not_told_apart():
    """The most frequent label is right in 19 of 20 rows; and rows may all have the same one."""
    answers, rare = ["a"] * 100, ["a"] * 95 + ["b"] * 5
    for references in (rare, answers):
        accuracy = make_metric("accuracy", references, {})
        floor, is_reached = find_floor(accuracy, answers, references)
        assert is_reached
        assert floor >= 95
    accuracy, some = make_metric("accuracy", rare, {}), ["a"] * 95 + ["b"] * 4 + ["a"]
    assert not find_floor(accuracy, some, rare)[1]


def test_smoothing_is_not_seen_nor_text_without_spaces_but_with_its_tokenizer():
    """Right words, and never four in a row: BLEU is above 0 by smoothing alone."""
    backwards = [" ".join(reversed(text.split())) for text in WORDS]
    bleu = compare("translation", backwards, backwards, WORDS, 10)[0]
    assert bleu.dense > 0
    assert bleu.at_floor
    for tokenizer, seen in (("zh", True), ("char", True), ("13a", False)):
        bleu = make_metric("bleu", CHINESE, {"bleu": tokenizer})
        assert find_floor(bleu, CHINESE, CHINESE)[1] is not seen
    rows = Rows("translation", CHINESE, None, CHINESE, ["x.tsv"], "", tokenizers={"bleu": "13a"})
    with raises(InputError, "metric-at-floor") as caught:
        require_above_chance(rows, CHINESE, "--max-drop 0.5")
    text = str(caught.value)
    assert text.startswith("--max-drop 0.5: on 80 rows the dense model's BLEU of 0.00 is at")
    assert "give another --bleu-tokenizer" in text
    assert caught.value.exit_code == 4
