"""SQuAD's JSON, versions 1.1 and 2.0: questions, their contexts, and the right answers.

    {"data": [{"paragraphs": [{"context": TEXT, "qas": [
        {"question": TEXT, "answers": [{"text": TEXT, "answer_start": CHARACTER}]}]}]}]}

In version 2.0 a question that the context does not answer has `"is_impossible": true`.

Or an object per question, as in the datasets library: in a `.jsonl` file one per line, in a `.json`
file as the list or in its `data`. With an empty list of answers the context has none.

    {"question": TEXT, "context": TEXT, "answers": {"text": [TEXT], "answer_start": [CHARACTER]}}
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from compressor.errors import InputError, UsageError
from compressor.storage.input_files import parse_json
from compressor.storage.text_files import format_suffix
from compressor.tasks.rows import ColumnNames
from compressor.tasks.tables import JSONL, read_lines, read_table

JSON = ".json"
Gold = list[tuple[str, int]]  # the right answers, and where each starts in the context
Question = tuple[str, str, Gold]  # question, context, right answers


def read_questions(spec: str, columns: ColumnNames, header: bool) -> Iterator[Question]:
    """All questions of a file, each checked when it is read: errors have its place in the JSON."""
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
    if suffix == JSON:
        return _nested_questions(spec)
    return (_flat_question(x.cells, f"{x.where}: ") for x in read_table(spec).records)


def answers_of(target: str) -> Gold:
    """The right answers of a row's target, the first one first; empty if it has none."""
    return [(text, start) for text, start in json.loads(target)]


def _nested_questions(spec: str) -> Iterator[Question]:
    """All questions of a `.json` file."""
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
        where = f"{spec}: data[{a}]."
        if isinstance(article, dict) and "paragraphs" not in article and "context" in article:
            yield _flat_question(article, where)
            continue
        for p, paragraph in enumerate(_part(article, "paragraphs", list, where)):
            in_paragraph = f"{where}paragraphs[{p}]."
            context = _text(paragraph, "context", in_paragraph)
            for q, question in enumerate(_part(paragraph, "qas", list, in_paragraph)):
                in_question = f"{in_paragraph}qas[{q}]."
                gold = _gold(question, context, in_question)
                yield _text(question, "question", in_question), context, gold


def _flat_question(row: Any, where: str) -> Question:
    """A question as in the datasets library."""
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
    gold = [] if answers == [] else _gold({**row, "answers": answers}, context, where)
    return _text(row, "question", where), context, gold


def _gold(question: Any, context: str, where: str) -> Gold:
    """The right answers of a question, as SQuAD has it."""
    if isinstance(question, dict) and question.get("is_impossible") is True:
        return []
    gold: Gold = []
    for number, answer in enumerate(_part(question, "answers", list, where)):
        text = _text(answer, "text", f"{where}answers[{number}].")
        start = _part(answer, "answer_start", int, f"{where}answers[{number}].")
        if start < 0 or context[start : start + len(text)] != text:
            raise InputError(
                f"{where}answers[{number}]: the context does not have {text[:40]!r} at character "
                f"{start}; give answers that are parts of their contexts",
                id="answer-not-in-context",
            )
        gold.append((text, start))
    if not gold:
        raise InputError(
            f"{where.removesuffix('.')}: the question has no answer; give one, or "
            '"is_impossible": true',
            id="answer-missing",
        )
    return gold


def _part(value: Any, name: str, kind: type[Any], where: str) -> Any:
    part = value.get(name) if isinstance(value, dict) else None
    if not isinstance(part, kind) or isinstance(part, bool):
        words = {list: "a list", str: "a text", int: "a whole number"}
        raise InputError(
            f"{where}{name} is missing or not {words[kind]}; give questions as SQuAD has them",
            id="questions-malformed",
        )
    return part


def _text(value: Any, name: str, where: str) -> str:
    text: str = _part(value, name, str, where)
    if not text.strip():
        raise InputError(f"{where}{name} is empty", id="cell-empty")
    return text
