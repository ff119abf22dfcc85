"""Entities in the labels of words, against seqeval and by hand."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from seqeval.metrics.sequence_labeling import get_entities

from compressor.evaluation.tags import seqeval_entities
from compressor.runtime.token_classifier import entity_runs, scheme_of
from tests.helpers.metrics import score_answers

TASK = "token-classification"
SCHEMES = {
    "IOB": "O B-per I-per B-loc-x I-loc-x",
    "IOE": "O I-per E-per I-loc-x E-loc-x",
    "IOBES": "O B-per I-per E-per S-per B-loc-x I-loc-x E-loc-x S-loc-x",
    "letters": "O B I E S",
}
OTHERS = {
    "BILOU": "O B-per I-per L-per U-per B-loc I-loc L-loc U-loc",
    "BMEWO": "O B-per M-per E-per W-per B-loc M-loc E-loc W-loc",
    "no prefix": "O per loc ORG SYM INTJ .",
    "lower case": "o b-per i-per",
    "suffix": "O per-B per-I",
}


def sequences(labels: str) -> Iterator[list[str]]:
    rng = random.Random(0)
    return (rng.choices(labels.split(), k=rng.randint(1, 9)) for _ in range(400))


@pytest.mark.filterwarnings("ignore:.*seems not to be NE tag")
@pytest.mark.parametrize("name", SCHEMES | OTHERS)
def test_entities_are_seqevals_of_every_scheme(name: str):
    labels = (SCHEMES | OTHERS)[name]
    scheme = scheme_of(labels.split())
    for found in sequences(labels):
        expected = get_entities(list(found))
        assert seqeval_entities(found) == expected
        if name in SCHEMES:
            assert entity_runs(found, scheme) == expected


@pytest.mark.parametrize(("name", "letters"), [("BILOU", "LEUS"), ("BMEWO", "MIWS")])
def test_other_letters_are_read_as_those_of_iobes(name: str, letters: str):
    """seqeval reads the same entities where the labels are renamed to the letters that it knows."""
    scheme = scheme_of(OTHERS[name].split())
    known = dict(zip(letters[::2], letters[1::2], strict=True))
    for found in sequences(OTHERS[name]):
        renamed = [known.get(label[0], label[0]) + label[1:] for label in found]
        assert entity_runs(found, scheme) == get_entities(renamed)


def test_a_scheme_is_that_of_all_labels():
    """`U-` is a prefix where others begin entities, `S` alone where all labels are letters."""
    found = entity_runs(
        ["NOUN", "NOUN", "SYM", "SYM", "O", "ORG"], scheme_of(["NOUN", "SYM", "ORG"])
    )
    assert found == [("NOUN", 0, 1), ("SYM", 2, 3), ("ORG", 5, 5)]
    assert scheme_of(["U-turn", "S", "NOUN"]) == {x: ("I", x) for x in ("U-turn", "S", "NOUN")}
    assert scheme_of(["O", "ES-per", "B-per"])["ES-per"] == ("I", "ES-per")


def test_by_hand_with_a_sentence_that_was_cut():
    """One of three entities is found with its end; two labels that lack count as O."""
    gold, answer = "B-per I-per O B-loc B-loc", "B-per I-per B-loc"
    found = score_answers(TASK, [answer], [gold], None).metrics
    assert found["entity_precision"] == pytest.approx(100 / 2)
    assert found["entity_recall"] == pytest.approx(100 / 3)
    assert found["entity_f1"] == pytest.approx(100 * 2 / 5)
    assert found["token_accuracy"] == pytest.approx(100 * 2 / 5)
    assert score_answers(TASK, ["O"], ["B-loc"], None).metrics["entity_precision"] == 0
