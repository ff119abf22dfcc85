"""Malformed rows, and options that do not fit them: errors that name the file and the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compressor.errors import InputError, UsageError
from compressor.tasks import TASKS
from tests.helpers.errors import raises
from tests.helpers.rows import LABELS, PAIRS, require_refused, tsv, write

translation, classification = TASKS["translation"], TASKS["classification"]

TRANSLATION_ERRORS: dict[str, tuple[str, str | bytes, str, str]] = {
    # case: file name, content, id of the error, where it is in the file
    "too few cells": ("a.tsv", "en\tde\na\tb\nc\n", "cell-count-differs", ":3:"),
    "too many cells": ("a.tsv", "en\tde\na\tb\tc\n", "cell-count-differs", ":2:"),
    "empty line": ("a.tsv", "en\tde\n\na\tb\n", "cell-count-differs", ":2:"),
    "empty source": ("a.tsv", "en\tde\na\tb\n \tb\n", "cell-empty", ":3: 'en'"),
    "empty target": ("a.tsv", "en\tde\na\t\n", "cell-empty", ":2: 'de'"),
    "line numbers behind quoted newlines": (
        "a.csv",
        'en,de\n"one\ntwo\n\nthree",b\nc,\n',
        "cell-empty",
        ":6: 'de'",
    ),
    "open quote": ("a.csv", 'en,de\na,b\n"c,d\ne,f\n', "csv-malformed", ":3:"),
    "text behind a quote": ("a.csv", 'en,de\n"a"x,b\n', "csv-malformed", ":2:"),
    "empty line in csv": ("a.csv", "en,de\n\na,b\n", "cell-count-differs", ":2:"),
    "no header": ("a.tsv", "A boy.\tEin Junge.\nNo.\tNein.\n", "header-missing", ":1:"),
    "no header, long": ("a.tsv", "so it goes on and on\tund so weiter\n", "header-missing", ":1:"),
    "one column": ("a.tsv", "en\na\n", "too-few-columns", ":1:"),
    "column twice": ("a.tsv", "en\ten\na\tb\n", "column-repeated", ":1:"),
    "latin-1": ("a.tsv", "en\tde\na\tb\nyou\tfür\n".encode("latin-1"), "file-not-utf8", ":3:"),
    "bom and latin-1": ("a.tsv", b"\xef\xbb\xbfen\tde\na\t\xe4\n", "file-not-utf8", ":2:"),
    "semicolons": ("a.csv", "en;de\na;b\n", "separator-unexpected", ":1:"),
    "commas": ("a.tsv", "en,de\na,b\n", "separator-unexpected", ":1:"),
    "tabs": ("a.csv", "en\tde\na\tb\n", "separator-unexpected", ":1:"),
    "utf-16": ("a.tsv", "en\tde\na\tb\n".encode("utf-16"), "file-not-utf8", ""),
    "nul": ("a.tsv", "en\tde\na\tb\nc\0\td\n", "file-not-text", ":3:"),
    "empty file": ("a.tsv", "", "file-empty", ""),
    "header only": ("a.tsv", "en\tde\n", "too-few-rows", ""),
    "unknown suffix": ("a.xlsx", "en\tde\n", "format-unknown", ""),
    "one text file": ("a.txt", "a\n", "parallel-file-missing", ""),
    "invalid json": ("a.jsonl", '{"en": "a", "de": "b"}\n{"en": \n', "json-malformed", ":2:"),
    "deep json": ("a.jsonl", "[" * 100_000, "json-malformed", ":1:"),
    "not an object": ("a.jsonl", '["a", "b"]\n', "json-not-object", ":1:"),
    "number for text": ("a.jsonl", '{"en": 5, "de": "b"}\n', "cell-not-text", ":1: 'en'"),
    "null for text": ("a.jsonl", '{"en": "a", "de": null}', "cell-not-text", ":1: 'de'"),
    "missing key": ("a.jsonl", '{"en": "a", "de": "b"}\n{"en": "c"}', "cell-missing", ":2:"),
    "half a surrogate": (
        "a.jsonl",
        '{"en": "\\ud83d", "de": "b"}',
        "json-malformed",
        ":1: not valid JSON: it has half of a surrogate pair",
    ),
}


@pytest.mark.parametrize("case", TRANSLATION_ERRORS)
def test_a_malformed_translation_file_is_an_error_with_file_and_line(
    tmp_path: Path, case: str
) -> None:
    require_refused(translation, tmp_path, TRANSLATION_ERRORS[case])


def test_the_advice_for_a_missing_header_works(tmp_path: Path) -> None:
    content = "A boy.\tEin Junge.\nNo.\tNein.\n"
    path = write(tmp_path / "a.tsv", content)
    with raises(InputError, "header-missing"):
        translation.read_rows(path)
    rows = translation.read_rows(write(tmp_path / "a.tsv", "en\tde\n" + content))
    assert rows.targets == ["Ein Junge.", "Nein."]
    columns = {"source_column": "A boy.", "target_column": "Ein Junge."}
    path = write(tmp_path / "a.tsv", content)
    assert translation.read_rows(path, **columns).targets == ["Nein."]


def test_too_few_rows_are_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", tsv(PAIRS))
    with raises(InputError, "too-few-rows"):
        translation.read_rows(path, minimum=4)
    assert len(translation.read_rows(path, minimum=3).sources) == 3


def test_a_missing_file_and_a_directory_are_errors(tmp_path: Path) -> None:
    with raises(InputError, "file-missing"):
        translation.read_rows(tmp_path / "no.tsv")
    (tmp_path / "folder.tsv").mkdir()
    with raises(InputError, "file-is-directory"):
        translation.read_rows(tmp_path / "folder.tsv")


def test_a_mistyped_column_is_answered_with_the_columns_and_a_suggestion(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", tsv(PAIRS, ("english", "german")))
    with raises(InputError, "column-missing") as caught:
        translation.read_rows(path, source_column="english", target_column="German ")
    assert "'english', 'german'; did you mean 'german'?" in str(caught.value)


def test_parallel_files_that_do_not_fit_together_are_errors(tmp_path: Path) -> None:
    source = write(tmp_path / "a.en", "one\ntwo\n")
    longer = write(tmp_path / "a.de", "eins\nzwei\ndrei\n")
    gap = write(tmp_path / "b.de", "eins\n\n")
    with raises(InputError, "parallel-files-differ"):
        translation.read_rows(f"{source},{longer}")
    with raises(InputError, "line-empty") as caught:
        translation.read_rows(f"{source},{gap}")
    assert f"{gap}:2:" in str(caught.value)
    with raises(InputError, "file-missing"):
        translation.read_rows(f"{source},{tmp_path / 'c.de'}")
    table = write(tmp_path / "d.tsv", tsv(PAIRS))
    with raises(InputError, "table-as-parallel-file"):
        translation.read_rows(f"{source},{table}")


def test_an_unknown_label_is_answered_with_known_ones_and_a_suggestion(tmp_path: Path) -> None:
    labels = [f"intent_{number}" for number in range(150)]
    path = write(tmp_path / "a.tsv", "text\tlabel\na\tintent_3\nb\tIntent_149\nc\tx\n")
    with raises(InputError, "label-unknown") as caught:
        classification.read_rows(path, labels=labels)
    text = str(caught.value)
    assert f"{path}:3:" in text
    assert "'intent_0', 'intent_1', 'intent_2', 'intent_3', 'intent_4', …" in text
    assert text.endswith("did you mean 'intent_149'?")


@pytest.mark.parametrize(
    ("name", "content", "labels", "id"),
    [
        ("a.tsv", "text\tlabel\nx\t\n", LABELS, "cell-empty"),
        ("a.tsv", "text\tlabel\nx\t3\n", LABELS, "label-unknown"),
        ("a.tsv", "text\tlabel\nx\t-1\n", LABELS, "label-unknown"),
        ("a.tsv", "text\tlabel\nx\t01\n", LABELS, "label-unknown"),
        ("a.jsonl", '{"text": "x", "label": true}\n', LABELS, "cell-not-text"),
        ("a.tsv", "text\tlabel\nx\ta\n", ["only"], "too-few-labels"),
    ],
)
def test_labels_that_are_no_class_are_errors(
    tmp_path: Path, name: str, content: str, labels: list[str], id: str
) -> None:
    path = write(tmp_path / name, content)
    with raises(InputError, id) as caught:
        classification.read_rows(path, labels=labels)
    line = 1 if name.endswith("jsonl") else 2
    assert f"{path}:{line}:" in str(caught.value) or labels != LABELS


@pytest.mark.parametrize(
    ("task", "options", "id"),
    [
        ("translation", {"source_column": "en"}, "column-of-a-pair-missing"),
        ("translation", {"source_column": "en", "target_column": "en"}, "column-named-twice"),
        ("translation", {"label_column": "de"}, "option-of-another-task"),
        (
            "classification",
            {"source_column": "en", "target_column": "de"},
            "option-of-another-task",
        ),
        ("classification", {"text_column": "en", "label_column": "en"}, "column-named-twice"),
        ("translation", {"limit": 0}, "row-limit-too-small"),
        ("translation", {"limit": 2, "minimum": 3}, "row-limit-too-small"),
        ("captioning", {}, "task-unknown"),
    ],
)
def test_options_that_do_not_belong_together_are_errors(
    tmp_path: Path, task: str, options: dict[str, Any], id: str
) -> None:
    path = write(tmp_path / "a.tsv", tsv(PAIRS))
    with raises(UsageError, id):
        TASKS[task].read_rows(path, **options)


@pytest.mark.parametrize(
    ("header", "option"),
    [("label\tcontent", "--text-column"), ("id\ttext\tclass", "--label-column")],
)
def test_a_column_that_nothing_names_is_asked_for(tmp_path: Path, header: str, option: str) -> None:
    """One of the first two columns, which are taken otherwise, has a purpose by its name."""
    path = write(tmp_path / "a.tsv", f"{header}\na\tb\tc\n")
    with raises(InputError, "column-not-named") as caught:
        classification.read_rows(path, labels=LABELS)
    assert option in str(caught.value)


def test_column_names_make_no_sense_for_plain_text(tmp_path: Path) -> None:
    source, target = write(tmp_path / "a.en", "one\n"), write(tmp_path / "a.de", "eins\n")
    with raises(UsageError, "columns-of-plain-text"):
        translation.read_rows(f"{source},{target}", source_column="en", target_column="de")
