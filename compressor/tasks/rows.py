"""Rows of data: what calibration and test files hold, checked cell by cell.

Tables (TSV, CSV) have a header row; its first two columns are read unless others are named:
source and target for translation, text and label for classification (columns called `text` or
`sentence`, and `label`, win over the order). A header that reads like a sentence is refused, so
that a file without a header does not lose its first row. Two parallel plain text files need none.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from compressor.errors import InputError, UsageError
from compressor.model.architectures import Task
from compressor.tasks.tables import FORMATS, Record, Table, quoted, read_lines, read_table

_TEXT_COLUMNS = ("text", "sentence")
_LABEL_COLUMN = "label"
# Column names neither end like sentences nor run to many words.
_SENTENCE_END = (".", "!", "?", "…")
_NAME_WORDS = 4
_CLASS_ID = re.compile(r"0|[1-9][0-9]*")


@dataclass(frozen=True)
class Rows:
    """The rows of a data file, in file order.

    Args:
        task: the task they are for.
        sources: sentences to translate, or texts to classify.
        pairs: second texts of a classification task with pairs, else None.
        targets: reference translations, or label names as the checkpoint spells them.
        files: paths as given: one file, or two parallel ones.
        sha256: fingerprint of the rows, see `fingerprint`.
        labels: the checkpoint's label names in the order of its class ids; None for translation.
    """

    task: Task
    sources: list[str]
    pairs: list[str] | None
    targets: list[str]
    files: list[str]
    sha256: str
    labels: list[str] | None = None


def read_rows(
    task: Task,
    spec: str | Path,
    *,
    source_column: str | None = None,
    target_column: str | None = None,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    labels: Sequence[str] | None = None,
    minimum: int = 1,
    limit: int | None = None,
) -> Rows:
    """Read and check the rows of a calibration or test file.

    Args:
        spec: a .tsv, .csv or .jsonl file; for translation also `SOURCE,TARGET`, two plain text
            files with a sentence per line. A path that exists is one file, commas or not.
        source_column, target_column: names of the columns (translation).
        text_column, text_pair_column, label_column: names of the columns (classification).
        labels: the checkpoint's label names by class id; the labels of the file may be these
            names or class ids. Without it labels are taken as they are.
        minimum: fewer rows are an error.
        limit: use only the first so many rows; all are checked nevertheless.

    Raises:
        UsageError: options that do not belong together.
        InputError: a missing or malformed file, a missing column, an empty cell, an unknown
            label, too few rows; with file and line.
    """
    if task not in get_args(Task):
        raise UsageError(f"there is no task {task!r}; there are {', '.join(get_args(Task))}")
    needed = max(minimum, 1)
    if limit is not None and limit < needed:
        raise UsageError(f"a limit of {limit} rows is below the {needed} that are needed")
    pair_options = {"source_column": source_column, "target_column": target_column}
    text_options = {
        "text_column": text_column, "text_pair_column": text_pair_column,
        "label_column": label_column,
    }  # fmt: skip
    _refuse(text_options if task == "translation" else pair_options, task)
    if task == "translation":
        files, columns = _read_translation(str(spec), source_column, target_column)
    else:
        files = [str(spec)]
        columns = _read_classification(str(spec), labels, **text_options)
    sources, targets = columns[0][:limit], columns[2][:limit]
    pairs = None if columns[1] is None else columns[1][:limit]
    if len(sources) < needed:
        raise InputError(
            f"{', '.join(files)}: too few rows, {len(sources)}; the minimum is {needed}"
        )
    return Rows(
        task=task, sources=sources, pairs=pairs, targets=targets, files=files,
        sha256=fingerprint(sources, pairs, targets),
        labels=None if labels is None else list(labels),
    )  # fmt: skip


def fingerprint(sources: list[str], pairs: list[str] | None, targets: list[str]) -> str:
    """SHA-256 of the rows, whatever file format they came in.

    Hashed is one line per row: the JSON list [source, pair or null, target] in UTF-8, as Python's
    `json.dumps(…, ensure_ascii=False)` writes it, ended by a line feed.
    """
    digest = hashlib.sha256()
    seconds: Iterable[str | None] = [None] * len(sources) if pairs is None else pairs
    for row in zip(sources, seconds, targets, strict=True):
        digest.update(f"{json.dumps(row, ensure_ascii=False)}\n".encode())
    return digest.hexdigest()


def count_shared(test: Rows, calibration: Rows) -> int:
    """How many test rows have a text (both texts, of pairs) that is a calibration row's too."""

    def texts(rows: Rows) -> list[tuple[str, str]]:
        return list(zip(rows.sources, rows.pairs or [""] * len(rows.sources), strict=True))

    seen = set(texts(calibration))
    return sum(text in seen for text in texts(test))


Columns = tuple[list[str], list[str] | None, list[str]]  # sources, pairs, targets


def _read_translation(
    spec: str, source_column: str | None, target_column: str | None
) -> tuple[list[str], Columns]:
    if (source_column is None) != (target_column is None):
        raise UsageError("name both the source column and the target column, or neither")
    if source_column is not None and source_column == target_column:
        raise UsageError(f"the source and the target column are both {source_column!r}")
    parallel = _parallel_files(spec)
    if parallel is not None:
        if source_column is not None:
            raise UsageError(f"the plain text files {spec} have no columns; leave the names out")
        return list(parallel), _read_parallel(*parallel)
    if Path(spec).suffix.lower() == ".txt":
        raise InputError(f"{spec} is plain text; give two parallel files, SOURCE.txt,TARGET.txt")
    table = read_table(spec)
    source, target = source_column, target_column
    if source is None or target is None:
        source, target = _default_columns(table, "--source-column and --target-column")
    _require(table, [source, target])
    sources = [_cell(table, record, source) for record in table.records]
    targets = [_cell(table, record, target) for record in table.records]
    return [spec], (sources, None, targets)


def _default_columns(table: Table, options: str) -> tuple[str, str]:
    """The first two columns, unless they look like a row."""
    if len(table.columns) < 2:
        raise InputError(
            f"{table.path}:1: there is only the column {quoted(table.columns)}; two are needed"
        )
    first, second = table.columns[:2]
    for name in (first, second):
        if name.strip().endswith(_SENTENCE_END) or len(name.split()) > _NAME_WORDS:
            raise InputError(
                f"{table.path}:1: the first line must be a header, and {name[:40]!r} looks like a "
                f"row; put a header above it, or name the columns with {options}"
            )
    return first, second


def _parallel_files(spec: str) -> tuple[str, str] | None:
    """The two files of `SOURCE,TARGET`; None if `spec` is one file."""
    if Path(spec).exists() or "," not in spec:
        return None
    commas = [index for index, character in enumerate(spec) if character == ","]
    splits = [(spec[:index].strip(), spec[index + 1 :].strip()) for index in commas]
    # A path may hold a comma itself: take the one split whose halves are both there.
    there = [pair for pair in splits if all(Path(path).is_file() for path in pair)]
    pair = (there or splits)[0]
    for path in pair:
        if Path(path).suffix.lower() in FORMATS:
            raise InputError(
                f"{path} in {spec} is a table; give one table with both languages, or two plain "
                "text files with a sentence per line"
            )
    return pair


def _read_parallel(source_path: str, target_path: str) -> Columns:
    sources, targets = read_lines(source_path), read_lines(target_path)
    if len(sources) != len(targets):
        raise InputError(
            f"{source_path} has {len(sources)} lines, but {target_path} has {len(targets)}; line n "
            "of one must be the translation of line n of the other"
        )
    for path, lines in ((source_path, sources), (target_path, targets)):
        for number, line in enumerate(lines, 1):
            if not line.strip():
                raise InputError(f"{path}:{number}: the line is empty; remove it from both files")
    return sources, None, targets


def _read_classification(
    spec: str,
    labels: Sequence[str] | None,
    *,
    text_column: str | None,
    text_pair_column: str | None,
    label_column: str | None,
) -> Columns:
    table = read_table(spec)
    known = None if labels is None else Labels(labels)
    text = text_column or next((name for name in _TEXT_COLUMNS if name in table.columns), None)
    label = label_column or (_LABEL_COLUMN if _LABEL_COLUMN in table.columns else None)
    if text is None or label is None:
        first, second = _default_columns(table, "--text-column and --label-column")
        text, label = text or first, label or second
    wanted = [text, label] if text_pair_column is None else [text, label, text_pair_column]
    if len(set(wanted)) != len(wanted):
        raise UsageError(f"one column is named for two purposes: {quoted(wanted)}")
    _require(table, wanted)
    texts, pairs, targets = [], [], []
    for record in table.records:
        texts.append(_cell(table, record, text))
        if text_pair_column is not None:
            pairs.append(_cell(table, record, text_pair_column))
        value = _cell(table, record, label, number=True)
        where = f"{table.path}:{record.line}"
        targets.append(value if known is None else known.name(value, where))
    return texts, None if text_pair_column is None else pairs, targets


class Labels:
    """The checkpoint's label names; finds the name that a cell of a data file means.

    Raises:
        InputError: fewer than two labels (a regression model), or one name for two classes.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        if len(self.names) < 2:
            raise InputError(
                f"the checkpoint has {len(self.names)} label; a classifier with two or more is "
                "needed, regression is not supported"
            )
        twice = [name for name in self.names if self.names.count(name) > 1]
        if twice:
            raise InputError(f"the checkpoint's id2label gives {twice[0]!r} to two classes")
        # With names like "1" to "5" a number is always a name: class id 1 would be "2".
        self.by_id = not any(_CLASS_ID.fullmatch(name) for name in self.names)

    def name(self, cell: str, where: str) -> str:
        """The label name of a cell that holds a name or, unless names are numbers, a class id."""
        if cell in self.names:
            return cell
        if self.by_id and _CLASS_ID.fullmatch(cell) and int(cell) < len(self.names):
            return self.names[int(cell)]
        folded = {name.casefold(): name for name in self.names}
        near = difflib.get_close_matches(cell.strip().casefold(), folded, n=1)
        hint = f"; did you mean {folded[near[0]]!r}?" if near else ""
        raise InputError(
            f"{where}: the label {cell!r} is not one of the checkpoint's {len(self.names)} "
            f"({quoted(self.names, most=5)}){hint}"
        )


def _refuse(options: dict[str, str | None], task: str) -> None:
    for name, value in options.items():
        if value is not None:
            option = name.replace("_", "-")
            raise UsageError(f"--{option} {value} makes no sense for the task {task}")


def _require(table: Table, columns: list[str]) -> None:
    for name in columns:
        if name not in table.columns:
            raise InputError(
                f"{table.path} has no column {name!r}; its columns are {quoted(table.columns)}"
            )


def _cell(table: Table, record: Record, column: str, *, number: bool = False) -> str:
    """The text of a cell, unchanged; with `number` also an integer of a JSON file."""
    where = f"{table.path}:{record.line}"
    if column not in record.cells:
        raise InputError(f"{where}: the object has no {column!r}")
    value = record.cells[column]
    if number and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InputError(f"{where}: {column!r} is {json.dumps(value)[:40]}, which is not a string")
    if not value.strip():
        raise InputError(f"{where}: {column!r} is empty")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError(f"{where}: {column!r} holds half of a surrogate pair, which is not text")
    return value
