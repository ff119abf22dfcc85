"""Malformed rows, and options that do not fit them: errors that name the file and the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compressor.errors import InputError, UsageError
from compressor.tasks import TASKS
from tests.helpers.errors import raises
from tests.helpers.heads import TAGS
from tests.helpers.rows import LABELS, PAIRS, tsv, write

LABELS_OF = {
    "classification": LABELS,
    "multilabel": ["a", "b", "c", "d"],
    "token-classification": TAGS,
}


def question(**changes: Any) -> str:
    asked = {"question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]} | changes
    return json.dumps({"data": [{"paragraphs": [{"context": "Ada came.", "qas": [asked]}]}]})


def flat(answers: Any) -> str:
    return json.dumps({"question": "Who?", "context": "Ada came.", "answers": answers}) + "\n"


PLACE = ": data[0].paragraphs[0].qas[0]"
S = "sentence1\tsentence2\tscore\n"
Q = "query\ttext\tlabel\n"
# Task -> file name, content, id of the error, and where it is in the file.
REFUSED: dict[str, list[tuple[str, str | bytes, str, str]]] = {
    "translation": [
        ("a.tsv", "en\tde\na\tb\nc\n", "cell-count-differs", ":3:"),
        ("a.tsv", "en\tde\na\tb\n \tb\n", "cell-empty", ":3: 'en'"),
        ("a.csv", 'en,de\n"one\ntwo\n\nthree",b\nc,\n', "cell-empty", ":6: 'de'"),
        ("a.csv", 'en,de\na,b\n"c,d\ne,f\n', "csv-malformed", ":3:"),
        ("a.tsv", "A boy.\tEin Junge.\nNo.\tNein.\n", "header-missing", ":1:"),
        ("a.tsv", "en\na\n", "too-few-columns", ":1:"),
        ("a.tsv", "en\ten\na\tb\n", "column-repeated", ":1:"),
        ("a.tsv", "en\tde\na\tb\nyou\tfür\n".encode("latin-1"), "file-not-utf8", ":3:"),
        ("a.tsv", "en\tde\na\tb\n".encode("utf-16"), "file-not-utf8", ":1: this is UTF-16"),
        ("a.tsv", "en\tde\na\tb\nc\0\td\n", "file-not-text", ":3:"),
        ("a.csv", "en;de\na;b\n", "separator-unexpected", ":1:"),
        ("a.tsv", "", "file-empty", ""),
        ("a.tsv", "en\tde\n", "too-few-rows", ""),
        ("a.xlsx", "en\tde\n", "format-unknown", ""),
        ("a.txt", "a\n", "parallel-file-missing", ""),
        ("a.jsonl", '{"en": "a", "de": "b"}\n{"en": \n', "json-malformed", ":2:"),
        ("a.jsonl", "[" * 100_000, "json-malformed", ":1:"),
        ("a.jsonl", '{"en": ' + "9" * 5000 + "}", "json-malformed", ":1:"),
        ("a.jsonl", "NaN\n", "json-not-object", ":1:"),
        ("a.jsonl", '{"en": 5, "de": "b"}\n', "cell-not-text", ":1: 'en'"),
        ("a.jsonl", '{"en": "a", "de": "b"}\n{"en": "c"}', "cell-missing", ":2:"),
    ],
    "classification": [
        ("a.tsv", "text\tlabel\nx\t\n", "cell-empty", ":2:"),
        ("a.tsv", "text\tlabel\nx\t3\n", "label-unknown", ":2:"),
        ("a.tsv", "id\ttext\tclass\na\tb\tc\n", "column-not-named", ": nothing says which column"),
    ],
    "multilabel": [
        ("a.tsv", "text\tlabel\nx\ta\nx\ta|e\n", "label-unknown", ":3:"),
        ("a.jsonl", '{"text": "x", "label": [["a"]]}', "cell-not-text", ":1:"),
    ],
    "embedding": [
        ("a.tsv", f"{Q}a\tb\tyes\n", "relevance-not-whole", ":2: the relevance 'yes'"),
        ("a.tsv", f"{S}a\tb\t1\na\tb\tx\n", "score-not-number", ":3: the score 'x'"),
        ("a.txt", "a\n\nb\n", "line-empty", ":2:"),
    ],
    "regression": [
        ("a.tsv", "text\tscore\na\t1e999\n", "score-not-number", ":2:"),
    ],
    "reranking": [
        ("a.tsv", f"{Q}a\tb\t1\na\tb\t0.5\n", "relevance-not-whole", ":3:"),
        ("a.tsv", "query\tlabel\na\t1\n", "column-missing", " has no column 'text'"),
    ],
    "token-classification": [
        ("a.conll", "EU B-per\nrejects VBZ O\n", "cell-count-differs", ":2:"),
        ("a.tsv", "EU\tB-per\nrejects\t\n", "tag-not-a-word", ":2:"),
        ("a.conll", "EU B-per\nrejects B-pre\n", "label-unknown", ":2:"),
        ("a.jsonl", '{"tokens": ["a b"], "tags": ["O"]}', "word-with-space", ":1:"),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["a"], "tags": []}',
         "tags-do-not-match-words", ":2:"),
        ("a.jsonl", '{"tokens": "a", "tags": ["O"]}', "cell-not-list", ":1:"),
        ("a.jsonl", '{"words": [], "tags": []}', "column-missing", ""),
    ],
    "question-answering": [
        ("a.json", '{"data": [\n{]}', "json-malformed", ":2:"),
        ("a.json", "[]", "too-few-rows", ""),
        ("a.json", '{"data": [{"paragraphs": [{"qas": [{}]}]}]}', "questions-malformed",
         ": data[0].paragraphs[0].context"),
        ("a.json", question(question=" "), "cell-empty", f"{PLACE}.question"),
        ("a.json", question(answers=[]), "answer-missing", PLACE),
        ("a.json", question(answers=[{"text": "e.", "answer_start": -2}]),
         "answer-not-in-context", f"{PLACE}.answers[0]"),
        ("a.jsonl", flat({"text": ["Ada"], "answer_start": []}), "questions-malformed",
         ":1: answers"),
        ("a.tsv", "question\tanswer\n", "format-unknown", ""),
    ],
    "summarization": [("a.tsv", "source\ttarget\na\tb\nc\t \n", "cell-empty", ":3:")],
}  # fmt: skip


@pytest.mark.parametrize("task", REFUSED)
def test_malformed_rows_are_errors_with_file_and_line(tmp_path: Path, task: str) -> None:
    for name, content, id, place in REFUSED[task]:
        file = write(tmp_path / name, content)
        with raises(InputError, id) as caught:
            TASKS[task].read_rows(file, labels=LABELS_OF.get(task))
        assert f"{file}{place}" in str(caught.value)


TABLE, CONLL = tsv(PAIRS), "EU\tB-per\n"
# Task, file name, content, options of `read_rows`, and the id of the error.
OPTIONS: list[tuple[str, str, str, dict[str, Any], str]] = [
    ("translation", "a.tsv", TABLE, {"source_column": "en"}, "column-of-a-pair-missing"),
    ("translation", "a.tsv", TABLE, {"source_column": "en", "target_column": "en"},
     "column-named-twice"),
    ("translation", "a.tsv", TABLE, {"label_column": "de"}, "option-of-another-task"),
    ("translation", "a.tsv", TABLE, {"limit": 2, "minimum": 3}, "row-limit-too-small"),
    ("classification", "a.tsv", TABLE, {"source_column": "en", "target_column": "de"},
     "option-of-another-task"),
    ("classification", "a.tsv", "text\tlabel\nx\ta\n", {"labels": ["only"]}, "too-few-labels"),
    ("classification", "a.tsv", "text\tlabel\nx\t0\n", {"labels": ["1", "2"]}, "label-unknown"),
    ("embedding", "a.tsv", f"{S}a\tb\t1\n", {"text_column": "txt"}, "column-missing"),
    ("token-classification", "a.conll", CONLL, {"text_column": "w"}, "columns-of-plain-text"),
    ("token-classification", "a.conll", CONLL, {"header": False}, "header-of-plain-text"),
    ("question-answering", "a.json", question(), {"header": False}, "columns-of-json"),
    ("question-answering", "a.json", question(), {"text_column": "x"}, "option-of-another-task"),
]  # fmt: skip


@pytest.mark.parametrize("case", OPTIONS)
def test_options_that_do_not_fit_are_errors(tmp_path: Path, case: Any) -> None:
    task, name, content, options, id = case
    inputs = ("column-missing", "label-unknown", "too-few-rows", "too-few-labels")
    kind = InputError if id in inputs else UsageError
    with raises(kind, id):
        TASKS[task].read_rows(write(tmp_path / name, content), **options)


def test_the_advice_for_a_missing_header_works(tmp_path: Path) -> None:
    content = "A boy.\tEin Junge.\nNo.\tNein.\n"
    read_rows = TASKS["translation"].read_rows
    rows = read_rows(write(tmp_path / "a.tsv", "en\tde\n" + content))
    assert rows.targets == ["Ein Junge.", "Nein."]
    columns = {"source_column": "A boy.", "target_column": "Ein Junge."}
    assert read_rows(write(tmp_path / "a.tsv", content), **columns).targets == ["Nein."]


def test_files_that_are_not_there_or_do_not_fit_together_are_errors(tmp_path: Path) -> None:
    read_rows = TASKS["translation"].read_rows
    source = write(tmp_path / "a.en", "one\ntwo\n")
    longer = write(tmp_path / "a.de", "eins\nzwei\ndrei\n")
    gap = write(tmp_path / "b.de", "eins\n\n")
    table = write(tmp_path / "d.tsv", tsv(PAIRS))
    (tmp_path / "folder.tsv").mkdir()
    for spec, id in (
        (f"{source},{longer}", "parallel-files-differ"),
        (f"{source},{gap}", "line-empty"),
        (f"{source},{tmp_path / 'c.de'}", "file-missing"),
        (f"{source},{table}", "table-as-parallel-file"),
        (tmp_path / "no.tsv", "file-missing"),
        (tmp_path / "folder.tsv", "file-is-directory"),
    ):
        with raises(InputError, id) as caught:
            read_rows(spec)
        assert id != "line-empty" or f"{gap}:2:" in str(caught.value)
    with raises(UsageError, "columns-of-plain-text"):
        read_rows(f"{source},{source}", source_column="en", target_column="de")
    with raises(UsageError, "header-of-plain-text"):
        read_rows(f"{source},{source}", header=False)


def test_mistyped_names_are_answered_with_the_known_ones_and_a_suggestion(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", tsv(PAIRS, ("english", "german")))
    with raises(InputError, "column-missing") as caught:
        TASKS["translation"].read_rows(path, source_column="english", target_column="German ")
    assert "'english', 'german'; did you mean 'german'?" in str(caught.value)
    labels = [f"intent_{number}" for number in range(150)]
    path = write(tmp_path / "b.tsv", "text\tlabel\na\tintent_3\nb\tIntent_149\nc\tx\n")
    with raises(InputError, "label-unknown") as caught:
        TASKS["classification"].read_rows(path, labels=labels)
    assert f"{path}:3:" in str(caught.value)
    assert "'intent_0', 'intent_1', 'intent_2', 'intent_3', 'intent_4', …" in str(caught.value)
    assert str(caught.value).endswith("did you mean 'intent_149'?")
    with raises(UsageError, "task-unknown") as caught:
        TASKS["Translaton"]
    assert "choose from translation, classification, embedding, " in str(caught.value)
    assert "did you mean 'translation'?" in str(caught.value)
