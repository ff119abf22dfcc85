"""Metric values and their draws, compared with the libraries that define them, and by hand."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics import BLEU
from scipy.stats import pearsonr, spearmanr
from seqeval import metrics as seqeval
from sklearn import metrics as sklearn

from compressor.errors import EnvironmentProblem, InputError, UsageError
from compressor.evaluation import (
    METRICS,
    compare_rows,
    require_references,
    score_rows,
    sentences,
    with_tokenizers,
)
from compressor.evaluation.significance import Pair
from compressor.tasks import TASKS, Rows, split_rows
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.metrics import compare, score_answers

RNG = random.Random(0)
Texts = Sequence[str]
Score = Callable[[Texts, Texts], float]  # of answers and references


def noisy(rows: list[list[str]], known: Sequence[str], share: float) -> list[list[str]]:
    rng = random.Random(share)
    return [[rng.choice(known) if rng.random() < share else x for x in row] for row in rows]


def columns(rows: list[list[str]], known: Sequence[str], mark: str = "") -> list[list[str]]:
    """Two models' answers and the references, of rows of words."""
    systems = noisy(rows, known, 0.2), noisy(rows, known, 0.4)
    return [[mark.join(row) for row in column] for column in (*systems, rows)]


WORDS = [(toy.sentence(RNG) + " " + toy.sentence(RNG)).split() for _ in range(40)]
FEW_CHINESE = ["我们明天早上去北京。", "他买了三本书和一支笔。", "这辆车比那辆贵。"]
CHINESE = [list(RNG.choice(FEW_CHINESE)) for _ in range(40)]
ENGLISH = ["We leave for Paris tomorrow.", "He bought three books and a pen."]
THAI = [list(RNG.choice(["เราจะไปกรุงเทพพรุ่งนี้", "อากาศดีมาก"])) for _ in range(40)]
CLASSES = [[RNG.choice("abcdef")] for _ in range(40)]
TAGS = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("per", "loc-x"))]
TAGGED = [RNG.choices(TAGS, k=RNG.randint(1, 9)) for _ in range(40)]
SETS = [["\t".join(n for n in "abcd" if RNG.random() < 0.3)] for _ in range(40)]
RIGHT = [float(RNG.randint(0, 5)) for _ in range(40)]  # with ties, also in the answers
NUMBERS = [[repr(x + round(RNG.gauss(0, width))) for x in RIGHT] for width in (2, 3, 0)]


def of_sets(average: str) -> Score:
    def score(*texts: Texts) -> float:
        found, right = (np.array([[n in x.split("\t") for n in "abcd"] for x in y]) for y in texts)
        return 100 * sklearn.f1_score(right, found, average=average)

    return score


def of_tags(score: Callable[..., float]) -> Score:
    return lambda found, right: 100 * score(*([x.split() for x in y] for y in (right, found)))


def of_numbers(correlation: Callable[..., Any]) -> Score:
    return lambda *texts: 100 * correlation(*(np.array(x, float) for x in texts)).statistic


def bleu(tokenizer: str) -> Score:
    return lambda found, right: sacrebleu.corpus_bleu(found, [right], tokenize=tokenizer).score


# Task, two models' answers and references, and for each metric what another library computes.
CASES: dict[str, tuple[str, list[list[str]], dict[str, Score]]] = {
    # One label is never gold and one is never predicted.
    "classes": ("classification", columns(CLASSES, "bcdefg"), {
        "accuracy": lambda a, b: 100 * sklearn.accuracy_score(b, a),
        "macro_f1": lambda a, b: 100 * sklearn.f1_score(b, a, average="macro", zero_division=0),
        "mcc": lambda a, b: sklearn.matthews_corrcoef(b, a)}),
    "sets": ("multilabel", columns(SETS, ["a", "b\td", ""]), {
        "micro_f1": of_sets("micro"), "macro_f1": of_sets("macro")}),
    "tags": ("token-classification", columns(TAGGED, TAGS, " "), {
        "entity_f1": of_tags(seqeval.f1_score),
        "entity_precision": of_tags(seqeval.precision_score),
        "entity_recall": of_tags(seqeval.recall_score),
        "token_accuracy": of_tags(seqeval.accuracy_score)}),
    "numbers": ("regression", NUMBERS, {
        "spearman": of_numbers(spearmanr), "pearson": of_numbers(pearsonr)}),
    "words": ("translation", columns(WORDS, ["w3", "wrong"], " "), {
        "bleu": bleu("13a"), "chrf": lambda a, b: sacrebleu.corpus_chrf(a, [b]).score}),
    "Chinese": ("translation", columns(CHINESE, "天地玄黄"), {"bleu": bleu("zh")}),
    "Thai": ("translation", columns(THAI, "รุ่งนี้"), {"bleu": bleu("char")}),
}  # fmt: skip


@pytest.mark.parametrize(("case", "metric"), [(x, name) for x in CASES for name in CASES[x][2]])
def test_scores_their_draws_and_p_values_are_those_of_the_libraries(case: str, metric: str) -> None:
    task, (dense, pruned, gold), scores = CASES[case]
    score, quality = scores[metric], score_answers(task, dense, gold, None)
    assert tuple(quality.metrics) == TASKS[task].metrics  # what gates may be about
    assert quality.signatures.keys() == quality.metrics.keys()
    assert quality.metrics[metric] == pytest.approx(score(dense, gold))
    found = {x.metric: x for x in compare(task, dense, pruned, gold, resamples=40, seed=3)}[metric]
    differences = []
    for drawn in np.random.default_rng(3).integers(40, size=(40, 40)):
        first, second, right = ([texts[row] for row in drawn] for texts in (dense, pruned, gold))
        differences.append(score(second, right) - score(first, right))
    assert found.dense == pytest.approx(score(dense, gold))
    assert found.pruned == pytest.approx(score(pruned, gold))
    assert found.difference == pytest.approx(score(pruned, gold) - score(dense, gold))
    assert found.interval == pytest.approx(np.quantile(differences, [0.025, 0.975]))
    if found.discordant is None:
        sizes = abs(np.array(differences) - found.difference)
        extreme = sizes >= abs(found.difference) * (1 - 1e-9)
        assert found.p_value == pytest.approx((1 + extreme.sum()) / 41)
    assert not found.at_floor


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("mat cat the", "The cat sat on the mat."),
        ("Go!", "Go!"),
        ("x", "y"),
        ("x", "x"),  # of which there is one character and no pair
        ("", "y"),
        ("a b c d", "a"),
    ],
)
def test_translations_of_few_words_score_as_sacrebleu_has_them(answer: str, reference: str) -> None:
    """Where there are no matches of three or four words, or none at all; also as drawn rows."""
    given = ["w3 w4 w5 w6"], [answer], [reference]
    drawn = Pair.of([METRICS[name]() for name in ("bleu", "chrf")], *given).bootstrap(1, 0)
    quality = score_answers("translation", [answer], [reference], None)
    for name, theirs in CASES["words"][2].items():
        assert quality.metrics[name] == pytest.approx(theirs([answer], [reference]), rel=1e-12)
        assert drawn[name][1] == pytest.approx([theirs([answer], [reference])], rel=1e-12)


def test_signatures_of_translations() -> None:
    quality = score_answers("translation", ["w3"], ["w3"], None)
    version = sacrebleu.__version__
    # Spelled out by hand from sacreBLEU's documentation of its default settings.
    assert quality.signatures == {
        "bleu": f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version}",
        "chrf": f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{version}",
    }


def test_numbers_that_are_large_beside_their_spread_keep_their_correlation() -> None:
    far = [repr(1e7 + float(x)) for x in NUMBERS[0]]
    found = score_answers("regression", far, NUMBERS[2], None).metrics["pearson"]
    assert found == pytest.approx(of_numbers(pearsonr)(NUMBERS[0], NUMBERS[2]))
    with raises(InputError, "score-not-number"):
        score_answers("embedding", ["0.1", "nan"], ["1", "2"], None)


def test_correlation_is_zero_where_it_is_undefined() -> None:
    quality = score_answers("classification", ["a", "a"], ["a", "b"], ["a", "b"])
    # scikit-learn's convention; F1 of b is 0 and of a 2/3, by hand.
    assert quality.metrics == pytest.approx({"accuracy": 50.0, "macro_f1": 100 / 3, "mcc": 0.0})


def gold(*texts: str) -> str:
    return json.dumps([[text, 0] for text in texts])


@pytest.mark.parametrize(
    ("answer", "right", "exact", "f1"),
    [
        # Case, punctuation, articles and white space do not count.
        ("the  U.S. Army!", gold("US army"), 100, 100),
        ("theater", gold("ater"), 0, 0),  # an article is a word of its own
        # Two of three words are two of the reference's four: F1 = 2 * 2 / (3 + 4).
        ("big red dog", gold("red dog barked loudly"), 0, 400 / 7),
        # A word counts as often as both have it: one of two "very".
        ("very very good", gold("very bad"), 0, 40),
        # The best of several right answers.
        ("in 1890", gold("1889", "1890"), 0, 200 / 3),
        ("1890", gold("in 1890", "1890"), 100, 100),
        # No answer is right where there is none, and there alone.
        ("", gold(), 100, 100),
        ("1890", gold(), 0, 0),
        ("", gold("1890"), 0, 0),
        # A right answer without words counts only where all are like that.
        ("the", gold("..."), 100, 100),
        ("x", gold("...", "x y"), 0, 200 / 3),
    ],
)
def test_answers_by_hand(answer: str, right: str, exact: float, f1: float):
    found = score_answers("question-answering", [answer, "1"], [right, gold("1")], None).metrics
    assert found["exact_match"] == pytest.approx((exact + 100) / 2)
    assert found["answer_f1"] == pytest.approx((f1 + 100) / 2)


def test_signatures_of_answers():
    found = score_answers("question-answering", ["1"], [gold("1")], None).signatures
    assert found == dict.fromkeys(("answer_f1", "exact_match"), "definition:SQuAD 2.0|scale:0-100")


def test_a_difference_has_an_exact_test():
    """Of 8 questions the first model has 6 that the second has not: p = 2 / 2^6 by hand."""
    right = [gold(str(number)) for number in range(8)]
    dense, pruned = [str(number) for number in range(8)], ["x"] * 6 + ["6", "7"]
    f1, exact = compare("question-answering", dense, pruned, right, resamples=50)
    assert (f1.metric, f1.discordant) == ("answer_f1", None)
    assert (exact.metric, exact.discordant) == ("exact_match", (6, 0))
    assert exact.p_value == pytest.approx(2 / 2**6)
    assert f1.difference == exact.difference == -75


def rows(references: list[str], task: str = "translation") -> Rows:
    return Rows(task, list(references), None, references, ["rows.tsv"], "")


def test_rouge_by_hand():
    """Stems of the answer: two dog run in the park, 6; of the reference: two dog are run in park.

    Five words are shared; two pairs (two dog, run in) of 5 and 5. The longest common subsequence of
    the lines is two dog run in park.
    """
    answer, reference = "Two dogs run in the park", "Two dog are running in park"
    found = score_answers("summarization", [answer, "x"], [reference, "y"], None)
    pairs, words = 2 / 5, 5 / 6
    wanted = {"rouge2": 100 * pairs / 2, "rouge1": 100 * words / 2, "rougelsum": 100 * words / 2}
    assert found.metrics == pytest.approx(wanted)
    assert list(found.metrics) == ["rouge2", "rouge1", "rougelsum"]
    assert "stemmer:porter" in found.signatures["rouge2"]


def test_only_lsum_knows_lines():
    """8 and 7 words: by lines "the train … late" and "nobody … wait" are shared, on one only 3."""
    answer = "Nobody was waiting.\nThe train is late."
    reference = "The trains were late.\nNobody waited for them."
    lines, one = (
        score_answers(
            "summarization", [answer.replace("\n", end)], [reference.replace("\n", end)]
        ).metrics
        for end in ("\n", " ")
    )
    assert lines["rougelsum"] == pytest.approx(100 * 2 * 5 / 15)
    assert one["rougelsum"] == pytest.approx(100 * 2 * 3 / 15)
    assert (lines["rouge1"], lines["rouge2"]) == (one["rouge1"], one["rouge2"])


def test_without_the_package_nothing_is_scored(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    with raises(EnvironmentProblem, "rouge-score-not-installed") as caught:
        require_references(rows(["one"], "summarization"))
    assert "pip install 'rouge-score>=" in str(caught.value)
    assert caught.value.exit_code == 3


def test_parts_of_rows_keep_the_tokenizer_of_all():
    """Of Chinese and English rows the English ones alone would be split as by 13a."""
    given = with_tokenizers(rows(FEW_CHINESE + ENGLISH * 3), report=(said := []).append)
    assert len(said) == 1
    assert "tokenizer zh, since the references' letters are" in said[0]
    assert "Han; choose another with --bleu-tokenizer" in said[0]
    for part in split_rows(given, 0):
        assert "tok:zh" in score_rows(part, part.references).signatures["bleu"]
    named = with_tokenizers(given, {"bleu": "char"}, said.append)
    assert len(said) == 1
    assert "tok:char" in score_rows(named, named.references).signatures["bleu"]
    dense, pruned, _ = columns(list(map(list, given.references)), "天地e")
    by_name = compare_rows(named, dense, pruned, 50)[0]
    asked = compare("translation", dense, pruned, given.references, 50, tokenizers={"bleu": "char"})
    assert by_name == asked[0] != compare_rows(given, dense, pruned, 50)[0]


@pytest.mark.parametrize(
    ("text", "installed", "name"),
    [
        ("日本語のテキストです", True, "ja-mecab"),
        ("日本語のテキストです", False, "char"),
        ("한국어 문장입니다", True, "ko-mecab"),
        ("我们明天早上去北京买书の", True, "zh"),  # less than a tenth is kana
        ("我们去 และไปกรุงเทพ", True, "char"),
        ("ສະບາຍດີ ຂໍໂທດ", True, "char"),
        ("Мы едем завтра", True, "13a"),
        ("Wir fahren nach 北京 morgen früh um sieben Uhr", True, "13a"),
        ("3.14 !", True, "13a"),
    ],
)
def test_the_tokenizer_follows_the_script(text: str, installed: bool, name: str, monkeypatch):
    missing = "" if installed else "a package that is not installed"
    monkeypatch.setattr(
        sentences, "_missing_package", lambda name: missing if "mecab" in name else ""
    )
    chosen, reason = sentences.Bleu().choose_tokenizer([text])
    assert chosen == name
    assert bool(reason) == (name != "13a")
    assert (missing in reason) or installed


def test_a_tokenizer_that_there_is_not_is_refused(monkeypatch):
    with raises(UsageError, "tokenizer-unknown") as caught:
        with_tokenizers(rows(ENGLISH), {"bleu": "zho"})
    assert str(caught.value).endswith("did you mean 'zh'?")

    def without(tokenize: str) -> None:
        raise RuntimeError("Please install")

    stub = SimpleNamespace(BLEU=without)
    without.TOKENIZERS = BLEU.TOKENIZERS
    monkeypatch.setattr("sacrebleu.metrics", stub, raising=False)
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", stub)
    for name, remedy in {
        "ja-mecab": "pip install 'sacrebleu[ja]'",
        "ko-mecab": "pip install 'sacrebleu[ko]'",
        "flores200": "is missing here (Please install)",
    }.items():
        with raises(EnvironmentProblem, "tokenizer-not-installed") as caught:
            with_tokenizers(rows(ENGLISH), {"bleu": name})
        assert remedy in str(caught.value)


def test_rouge_reads_words_of_every_script():
    """By hand: 3 of 4 words and 1 of 3 pairs; of Chinese 5 of 6 characters and 3 of 5 pairs."""
    scores = {
        "Поезд сегодня опоздал. Опять!": ("поезд вчера опоздал опять", 3 / 4, 1 / 3),
        "今天火车晚点": ("今天火车晚到", 5 / 6, 4 / 5),
        "Το τρένο άργησε ξανά": ("το τρένο άργησε πάλι", 3 / 4, 2 / 3),
    }
    for reference, (answer, one, two) in scores.items():
        found = score_answers("summarization", [answer], [reference], None)
        assert found.metrics["rouge1"] == pytest.approx(100 * one)
        assert found.metrics["rouge2"] == pytest.approx(100 * two)
        assert "stemmer:none" in found.signatures["rouge2"]


def test_answers_without_spaces_are_compared_by_characters():
    """Of 北京大学 and 北京: two characters are shared, F1 = 2 * 2 / (4 + 2)."""
    gold = [json.dumps([["北京大学。", 0]]), json.dumps([["三月", 0]])]
    found = score_answers("question-answering", ["北京", "三月"], gold, None)
    assert found.metrics == pytest.approx({"answer_f1": (100 * 4 / 6 + 100) / 2, "exact_match": 50})
    assert found.signatures["answer_f1"].startswith("words:characters")
    exact = score_answers("question-answering", ["「北京大学」", "三月"], gold, None)
    assert exact.metrics["exact_match"] == 100
