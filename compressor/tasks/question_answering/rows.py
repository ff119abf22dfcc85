"""SQuAD's JSON, versions 1.1 and 2.0: questions, their contexts, and the right answers.

    {"data": [{"paragraphs": [{"context": TEXT, "qas": [
        {"question": TEXT, "answers": [{"text": TEXT, "answer_start": CHARACTER}]}]}]}]}

A question of version 2.0 that the context does not answer has `"is_impossible": true`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from compressor.errors import InputError, UsageError
from compressor.storage.input_files import parse_json
from compressor.storage.text_files import format_suffix
from compressor.tasks.rows import RowTexts
from compressor.tasks.tables import read_lines

JSON = ".json"
Gold = list[tuple[str, int]]  # the right answers, and where each starts in the context


def read(spec: str, columns: Mapping[str, str], header: bool) -> RowTexts:
    """Questions as sources, contexts as their pairs; a target is `answers_of` written as JSON.

    Raises:
        UsageError: options of tables.
        InputError: not such a file; with the line, or the place in the JSON.
    """
    if format_suffix(spec) != JSON:
        raise InputError(
            f"the format of {spec} is not known by its suffix; give questions as SQuAD has them, "
            f"in a file that ends in {JSON}",
            id="format-unknown",
        )
    if columns or not header:
        raise UsageError(
            f"{spec} is JSON as SQuAD has it, without columns; leave options of tables out",
            id="columns-of-json",
        )
    try:
        contents = parse_json("\n".join(read_lines(spec)))
    except ValueError as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(f"{spec}{line}: not valid JSON: {error}", id="json-malformed") from error
    rows = (
        (question, context, json.dumps(gold, ensure_ascii=False))
        for question, context, gold in _rows(contents, spec)
    )
    return RowTexts([spec], rows, paired=True)


def answers_of(target: str) -> Gold:
    """The right answers of a row's target, the first one first; none where there is no answer."""
    return [(text, start) for text, start in json.loads(target)]


def _rows(contents: Any, spec: str) -> Iterator[tuple[str, str, Gold]]:
    for a, article in enumerate(_part(contents, "data", list, f"{spec}: ")):
        where = f"{spec}: data[{a}]"
        for p, paragraph in enumerate(_part(article, "paragraphs", list, f"{where}.")):
            there = f"{where}.paragraphs[{p}]"
            context = _text(paragraph, "context", f"{there}.")
            for q, question in enumerate(_part(paragraph, "qas", list, f"{there}.")):
                place = f"{there}.qas[{q}]"
                gold = _gold(question, context, place)
                yield _text(question, "question", f"{place}."), context, gold


def _gold(question: Any, context: str, place: str) -> Gold:
    if isinstance(question, dict) and question.get("is_impossible") is True:
        return []
    found: Gold = []
    for number, answer in enumerate(_part(question, "answers", list, f"{place}.")):
        where = f"{place}.answers[{number}]"
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
            f'{place}: the question has no answer; give one, or "is_impossible": true',
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
