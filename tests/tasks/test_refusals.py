"""Malformed rows, and options that do not fit them: errors that name the file and the line."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from compressor.errors import CompressWarning, InputError, UsageError
from compressor.tasks import TASKS
from tests.helpers.errors import raises
from tests.helpers.files import LABELS, PAIRS, tsv, write
from tests.helpers.heads import TAGS

OPTIONS_OF: dict[str, Any] = {
    "translation": {"languages": ("en", "de")},
    "classification": {"labels": LABELS},
    "multilabel": {"labels": ["a", "b", "c", "d"]},
    "token-classification": {"labels": TAGS},
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
        ("a.csv", "en;de\na;b\n", "too-few-columns", ":1:"),
        ("a.tsv", "en\ten\na\tb\n", "column-repeated", ":1:"),
        ("a.tsv", "id\tsource\na\tb\n", "columns-unclear", ""),
        ("a.tsv", "en\tde\na\tb\nyou\tfür\n".encode("latin-1"), "file-not-utf8", ":3:"),
        ("a.tsv", "en\tde\na\tb\n".encode("utf-16-le"), "file-not-text", ":1:"),
        ("a.tsv", "en\tde\n", "too-few-rows", ""),
        ("a.jsonl", "", "too-few-rows", ""),
        ("a.xlsx", "en\tde\n", "format-unknown", ""),
        ("a.txt", "a\n", "format-unknown", ""),
        ("a.jsonl", '{"en": "a", "de": "b"}\n{"en": \n', "json-malformed", ":2:"),
        ("a.jsonl", "[" * 100_000, "json-malformed", ":1:"),
        ("a.jsonl", '{"en": ' + "9" * 5000 + "}", "json-malformed", ":1:"),
        ("a.jsonl", '{"en": 5, "de": "b"}\n', "cell-not-text", ":1: 'en'"),
        ("a.jsonl", '{"en": "a", "de": "b"}\n{"en": "c"}', "cell-missing", ":2:"),
    ],
    "classification": [
        ("a.tsv", "text\tlabel\nx\t3\n", "label-unknown", ":2:"),
        ("a.tsv", "text\tlabel\nx\t-1\n", "label-unknown", ":2:"),
    ],
    "multilabel": [
        ("a.tsv", "text\tlabel\nx\ta\nx\ta|e\n", "label-unknown", ":3:"),
        ("a.jsonl", '{"text": "x", "label": [["a"]]}', "cell-not-text", ":1:"),
    ],
    "embedding": [
        ("a.tsv", f"{Q}a\tb\tyes\n", "score-not-number", ":2: 'label' is 'yes'"),
        ("a.tsv", f"{S}a\tb\t1\na\tb\tx\n", "score-not-number", ":3: 'score' is 'x'"),
        ("a.txt", "a\n\nb\n", "line-empty", ":2:"),
        ("a.jsonl", "{}\n", "too-few-columns", ":1:"),
    ],
    "regression": [("a.tsv", "text\tscore\na\t1e999\n", "score-not-number", ":2:")],
    "reranking": [
        ("a.tsv", f"{Q}a\tb\t1\na\tb\t0.5\n", "score-not-number", ":3:"),
        ("a.tsv", "query\tlabel\na\t1\n", "columns-unclear", ""),
    ],
    "token-classification": [
        ("a.conll", "EU B-per\nrejects VBZ O\n", "cell-count-differs", ":2:"),
        ("a.tsv", "EU\tB-per\nrejects\t\n", "not-a-word", ":2:"),
        ("a.conll", "EU B-per\nrejects B-pre\n", "label-unknown", ":2:"),
        ("a.tsv", 'EU\tB-per\n""""\tO\n', "not-a-word", ":2:"),
        ("a.jsonl", '{"tokens": ["a b"], "tags": ["O"]}', "not-a-word", ":1:"),
        ("a.jsonl", '{"tokens": [1], "tags": ["O"]}', "not-a-word", ":1:"),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["a"], "tags": []}',
         "tags-do-not-match-words", ":2:"),
        ("a.jsonl", '{"tokens": "a", "tags": ["O"]}', "tags-do-not-match-words", ":1:"),
        ("a.jsonl", '{"words": [], "tags": []}', "tags-do-not-match-words", ""),
    ],
    "question-answering": [
        ("a.json", '{"data": [\n{]}', "json-malformed", ": "),
        ("a.json", "[]", "too-few-rows", ""),
        ("a.json", '{"data": [{"paragraphs": [{"qas": [{}]}]}]}', "questions-malformed", PLACE),
        ("a.json", '{"data": [{"paragraphs": 5}]}', "questions-malformed", ": data[0]"),
        ("a.json", '["context"]', "questions-malformed", ": data[0]"),
        ("a.json", question(question=" "), "cell-empty", f"{PLACE}: 'question'"),
        ("a.json", question(answers=[]), "answer-missing", PLACE),
        ("a.json", question(answers=[{"text": 5, "answer_start": 0}]), "questions-malformed",
         PLACE),
        ("a.json", question(answers=[{"text": "e.", "answer_start": -2}]),
         "answer-not-in-context", PLACE),
        ("a.jsonl", flat({"text": ["Ada"], "answer_start": []}), "questions-malformed", ":1: "),
        ("a.tsv", "question\tanswer\n", "format-unknown", ""),
    ],
    "summarization": [("a.tsv", "source\ttarget\na\tb\nc\t \n", "cell-empty", ":3:")],
}  # fmt: skip


@pytest.mark.parametrize("task", REFUSED)
def test_malformed_rows_are_errors_with_file_and_line(tmp_path: Path, task: str) -> None:
    for name, content, id, place in REFUSED[task]:
        file = write(tmp_path / name, content)
        with raises(InputError, id) as caught:
            TASKS[task].read_rows(file, **OPTIONS_OF.get(task, {}))
        assert f"{file}{place}" in str(caught.value)


def test_options_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    conll = write(tmp_path / "a.conll", "EU\tO\n")
    numbers = write(tmp_path / "b.tsv", "text\tlabel\nx\t0\n")
    for task, path, options, id in (
        ("classification", numbers, {"labels": ["1", "2"]}, "label-unknown"),
        ("embedding", numbers, {"text_pair_column": "text"}, "columns-unclear"),
        (
            "regression",
            numbers,
            {"text_column": "text", "label_column": "text"},
            "column-named-twice",
        ),
        ("token-classification", conll, {"text_column": "w"}, "columns-of-plain-text"),
        ("token-classification", conll, {"header": False}, "columns-of-plain-text"),
    ):
        with raises(UsageError if "plain-text" in id else InputError, id):
            TASKS[task].read_rows(path, **options)


def test_the_warning_of_a_missing_header_says_what_helps(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "A boy.\tEin Junge.\nNo.\tNein.\n")
    read_rows = TASKS["translation"].read_rows
    with raises(InputError, "columns-unclear") as caught:
        read_rows(path)
    assert "('A boy.', 'Ein Junge.')" in str(caught.value)
    assert "--no-header" in str(caught.value)
    classify = TASKS["classification"].read_rows
    with pytest.warns(CompressWarning, match="'A boy.', 'Ein Junge.'.*--no-header"):
        assert classify(path).targets == ["Nein."]
    assert read_rows(path, header=False).targets == ["Ein Junge.", "Nein."]
    turned = read_rows(path, header=False, source_column="2", target_column="1")
    assert turned.targets == ["A boy.", "No."]
    with warnings.catch_warnings(action="error"):  # usual headers are not worth a word
        write(tmp_path / "a.tsv", "utterance\tlabel\nA boy.\tEin Junge.\n")
        assert classify(path).targets == ["Ein Junge."]


def test_files_that_are_not_there_or_do_not_fit_together_are_errors(tmp_path: Path) -> None:
    source = write(tmp_path / "a.en", "one\ntwo\n")
    longer = write(tmp_path / "a.de", "eins\nzwei\ndrei\n")
    gap = write(tmp_path / "b.de", "eins\n\n")
    table = write(tmp_path / "d.tsv", tsv(PAIRS))
    (tmp_path / "folder.tsv").mkdir()
    for spec, id, place in (
        (f"{source},{longer}", "parallel-files-differ", f"{longer}:3:"),
        (f"{longer},{source}", "parallel-files-differ", f"{longer}:3:"),
        (f"{source},{gap}", "line-empty", f"{gap}:2:"),
        (f"{source},{tmp_path / 'c.de'}", "file-missing", "c.de"),
        (f"{source},{table}", "table-as-parallel-file", table),
        (tmp_path / "no.tsv", "file-missing", "no.tsv"),
        (tmp_path / "folder.tsv", "file-unreadable", "folder.tsv: Is a directory"),
    ):
        with raises(InputError, id) as caught:
            TASKS["translation"].read_rows(spec)
        assert place in str(caught.value)


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
    assert "'intent_2', 'intent_3', 'intent_4', …" in str(caught.value)
    assert str(caught.value).endswith("did you mean 'intent_149'?")
    with raises(UsageError, "task-unknown") as caught:
        TASKS["Translaton"]
    assert "did you mean 'translation'?" in str(caught.value)
