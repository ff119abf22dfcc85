"""How metrics split texts of other scripts, against sacreBLEU itself and by hand."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import pytest
from sacrebleu.metrics import BLEU

from compressor.errors import EnvironmentProblem, UsageError
from compressor.evaluation import compare_rows, score_rows, with_tokenizers
from compressor.evaluation import sentences as bleu
from compressor.tasks import Rows, split_rows
from tests.helpers.errors import raises
from tests.helpers.metrics import compare, score_answers

CHINESE = [
    "我们明天早上去北京。",
    "他买了三本书和一支笔。",
    "天气很好，我想出去走走。",
    "这辆车比那辆贵。",
]
ENGLISH = ["We leave for Paris tomorrow.", "He bought three books and a pen."]


def rows(references: list[str], task: str = "translation") -> Rows:
    return Rows(task, list(references), None, references, ["rows.tsv"], "")


def spoilt(texts: list[str], seed: int, share: float = 0.15) -> list[str]:
    """Texts of which some characters are others of the same texts."""
    rng = random.Random(seed)
    known = sorted(set("".join(texts)))
    return ["".join(rng.choice(known) if rng.random() < share else x for x in t) for t in texts]


def test_parts_of_rows_keep_the_tokenizer_of_all():
    """Of Chinese and English rows the English ones alone would be split as by 13a."""
    given = with_tokenizers(rows(CHINESE + ENGLISH * 3), report=(said := []).append)
    assert len(said) == 1
    assert "tokenizer zh, since the references' letters are" in said[0]
    assert "Han; choose another with --bleu-tokenizer" in said[0]
    for part in split_rows(given, 0):
        assert "tok:zh" in score_rows(part, part.references).signatures["bleu"]
    named = with_tokenizers(given, {"bleu": "char"}, said.append)
    assert len(said) == 1
    assert "tok:char" in score_rows(named, named.references).signatures["bleu"]
    dense, pruned = spoilt(given.references, 0), spoilt(given.references, 1)
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
    monkeypatch.setattr(bleu, "_missing_package", lambda name: missing if "mecab" in name else "")
    chosen, reason = bleu.Bleu().choose_tokenizer([text])
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
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu.metrics", stub)
    with raises(EnvironmentProblem, "tokenizer-not-installed") as caught:
        with_tokenizers(rows(ENGLISH), {"bleu": "ja-mecab"})
    assert "pip install 'sacrebleu[ja]'" in str(caught.value)


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
