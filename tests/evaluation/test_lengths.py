"""What is said of long sources and of lengths, beside sacreBLEU and counts made here."""

from __future__ import annotations

import random

import pytest
import sacrebleu

from compressor.evaluation import score_rows, with_lengths
from compressor.evaluation.metric import with_tokenizers
from compressor.tasks import Rows
from tests.helpers import toy

RNG = random.Random(4)
LENGTHS = [20, 21] * 19 + [22, 7, 19, 40]  # of sources, in words; 19 + 2 of them are long


def sentence(words: int) -> str:
    """So many words, and two punctuation marks, which are none."""
    text: list[str] = []
    while len(text) < words:
        text += toy.sentence(RNG).split()
    return f"{' '.join(text[: words - 1])}, {text[words - 1]} ."


SOURCES = [sentence(count) for count in LENGTHS]
TARGETS = [sentence(count) for count in LENGTHS]
DENSE = [" ".join(text.split()[1:]) for text in TARGETS]


def quality_of(outputs, dense, sources=SOURCES, targets=TARGETS, task="translation"):
    rows = with_tokenizers(Rows(task, sources, None, targets, [], ""))
    return with_lengths(score_rows(rows, outputs), rows, outputs, dense)


def test_long_sources_are_scored_apart():
    """Rows with more than 20 words, filtered here, by sacreBLEU itself."""
    assert [len(text.split()) - 1 for text in SOURCES] == LENGTHS
    long = [n for n, count in enumerate(LENGTHS) if count > 20]
    pruned = [text if n % 3 else text[::-1] for n, text in enumerate(DENSE)]
    for outputs, dense in ((DENSE, None), (pruned, DENSE)):
        found = quality_of(outputs, dense)
        whole = sacrebleu.corpus_bleu(outputs, [TARGETS])
        apart = sacrebleu.corpus_bleu([outputs[n] for n in long], [[TARGETS[n] for n in long]])
        assert found.metrics["bleu"] == pytest.approx(whole.score)
        assert (found.long_sources.words, found.long_sources.rows) == (20, len(long))
        assert found.long_sources.score == pytest.approx(apart.score)
        assert abs(apart.score - whole.score) > 0.1


@pytest.mark.parametrize(("rows", "scored"), [(19, False), (20, True)])
def test_few_long_sources_are_counted_and_not_scored(rows, scored):
    long = [sentence(30) for _ in range(rows)]
    found = quality_of(DENSE[:3] + long, None, ["short"] * 3 + long, TARGETS[:3] + long)
    assert found.long_sources.rows == rows
    assert (found.long_sources.score == pytest.approx(100)) if scored else (
        found.long_sources.score is None
    )  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "is_other"),
    [("a" + " a" * 9, False), ("a" + " a" * 12, False), ("a" + " a" * 13, True),
     ("a" + " a" * 6, False), ("a" + " a" * 5, True), ("", True), ("a, b; " * 5, False)],
    ids=["as long", "30 % more", "over 30 % more", "30 % less", "over 30 % less", "empty",
         "other marks"],
)  # fmt: skip
def test_a_length_is_another_if_it_differs_by_over_thirty_percent(answer, is_other):
    """The dense model answers with ten words."""
    dense = ["b " * 10] * 4
    answers = [answer, *dense[1:]]
    found = quality_of(answers, dense, ["c"] * 4, dense)
    assert found.other_lengths == (0.25 if is_other else 0.0)


def test_what_loops_is_longer_also_in_a_script_without_spaces():
    dense, looped = "我们明天早上去北京。", "我们明天早上早上早上早上去北京。"
    found = quality_of([looped, dense], [dense] * 2, [dense] * 2, [dense] * 2)
    assert found.other_lengths == 0.5
    assert quality_of([dense] * 2, None, [dense] * 2, [dense] * 2).other_lengths is None


def test_other_tasks_have_no_long_sources():
    found = quality_of(DENSE, DENSE, targets=DENSE, task="classification")
    assert found.metrics["accuracy"] == 100.0
    assert found.long_sources is found.other_lengths is None
