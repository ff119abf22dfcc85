"""SQuAD's JSON, versions 1.1 and 2.0: questions, their contexts, and the right answers.

    {"data": [{"paragraphs": [{"context": TEXT, "qas": [
        {"question": TEXT, "answers": [{"text": TEXT, "answer_start": CHARACTER}]}]}]}]}

A question of version 2.0 that the context does not answer has `"is_impossible": true`.

Or one question an object, as the datasets library has them: in a `.jsonl` file one a line, in a
`.json` file as the list or in its `data`. One without answers has none in its context.

    {"question": TEXT, "context": TEXT, "answers": {"text": [TEXT], "answer_start": [CHARACTER]}}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from compressor.errors import InputError, UsageError
from compressor.storage.input_files import parse_json
from compressor.storage.text_files import format_suffix
from compressor.tasks.rows import RowTexts
from compressor.tasks.tables import JSONL, read_lines, read_table

JSON = ".json"
Gold = list[tuple[str, int]]  # the right answers, and where each starts in the context
Row = tuple[str, str, Gold]  # question, context, right answers


def read(spec: str, columns: Mapping[str, str], header: bool) -> RowTexts:
    """Questions as sources, contexts as their pairs; a target is `answers_of` written as JSON.

    Raises:
        UsageError: options of tables.
        InputError: not such a file; with the line, or the place in the JSON.
    """
    suffix = format_suffix(spec)
    if suffix not in (JSON, JSONL):
        raise InputError(
            f"the format of {spec} is not known by its suffix; give questions as SQuAD has them, "
            f"in a file that ends in {JSON}, or one an object in {JSONL}",
            id="format-unknown",
        )
    if columns or not header:
        raise UsageError(
            f"{spec} is JSON as SQuAD has it, without columns; leave options of tables out",
            id="columns-of-json",
        )
    read_rows = _rows_of_lines if suffix == JSONL else _rows_of_file
    rows = (
        (question, context, json.dumps(gold, ensure_ascii=False))
        for question, context, gold in read_rows(spec)
    )
    return RowTexts([spec], rows, paired=True)


def answers_of(target: str) -> Gold:
    """The right answers of a row's target, the first one first; none where there is no answer."""
    return [(text, start) for text, start in json.loads(target)]


def _rows_of_lines(spec: str) -> Iterator[Row]:
    for record in read_table(spec).records:
        yield _flat(record.cells, f"{spec}:{record.line}: ")


def _rows_of_file(spec: str) -> Iterator[Row]:
    try:
        contents = parse_json("\n".join(read_lines(spec)))
    except ValueError as error:
        line, hint = "", ""
        if isinstance(error, json.JSONDecodeError):
            line = f":{error.lineno}"
            if error.msg == "Extra data":
                hint = f"; if there is one object a line, call the file {JSONL}"
        raise InputError(
            f"{spec}{line}: not valid JSON: {error}{hint}", id="json-malformed"
        ) from error
    if isinstance(contents, list):
        contents = {"data": contents}
    for a, article in enumerate(_part(contents, "data", list, f"{spec}: ")):
        where = f"{spec}: data[{a}]"
        if isinstance(article, dict) and "paragraphs" not in article and "context" in article:
            yield _flat(article, f"{where}.")
            continue
        for p, paragraph in enumerate(_part(article, "paragraphs", list, f"{where}.")):
            there = f"{where}.paragraphs[{p}]"
            context = _text(paragraph, "context", f"{there}.")
            for q, question in enumerate(_part(paragraph, "qas", list, f"{there}.")):
                place = f"{there}.qas[{q}]"
                gold = _gold(question, context, f"{place}.")
                yield _text(question, "question", f"{place}."), context, gold


def _flat(row: Any, where: str) -> Row:
    """A question as the datasets library has it."""
    context = _text(row, "context", where)
    answers = row.get("answers")
    if isinstance(answers, dict):
        texts, starts = (
            _part(answers, name, list, f"{where}answers.") for name in ("text", "answer_start")
        )
        if len(texts) != len(starts):
            raise InputError(
                f"{where}answers has {len(texts)} in text and {len(starts)} in answer_start; give "
                "each answer both",
                id="questions-malformed",
            )
        answers = [
            {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
        ]
    if answers == []:
        return _text(row, "question", where), context, []
    gold = _gold({**row, "answers": answers}, context, where)
    return _text(row, "question", where), context, gold


def _gold(question: Any, context: str, there: str) -> Gold:
    if isinstance(question, dict) and question.get("is_impossible") is True:
        return []
    found: Gold = []
    for number, answer in enumerate(_part(question, "answers", list, there)):
        where = f"{there}answers[{number}]"
        text = _text(answer, "text", f"{where}.")
        start = _part(answer, "answer_start", int, f"{where}.")
        if start < 0 or context[start : start + len(text)] != text:
            raise InputError(
                f"{where}: the context does not have {text[:40]!r} at character {start}; give "
                "answers that are parts of their contexts",
                id="answer-not-in-context",
            )
        found.append((text, start))
    if not found:
        raise InputError(
            f"{there.removesuffix('.')}: the question has no answer; give one, or "
            '"is_impossible": true',
            id="answer-missing",
        )
    return found


def _part(value: Any, name: str, kind: type[Any], where: str) -> Any:
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind) or isinstance(found, bool):
        words = {list: "a list", str: "a text", int: "a whole number"}
        raise InputError(
            f"{where}{name} is missing or not {words[kind]}; give questions as SQuAD has them",
            id="questions-malformed",
        )
    return found


def _text(value: Any, name: str, where: str) -> str:
    text: str = _part(value, name, str, where)
    if not text.strip():
        raise InputError(f"{where}{name} is empty", id="cell-empty")
    return text
