"""Quotation marks in .tsv files: cells that Python's csv wrote, cells with marks, and neither."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from compressor.errors import InputError
from compressor.tasks import TASKS
from tests.helpers.errors import raises
from tests.helpers.files import packed, write

read_rows = TASKS["classification"].read_rows
HEADER = ("text", "label")
Rows = Sequence[tuple[str, str]]
WITH_MARKS = [('he said "hello" to me', "a"), ("plain text", "b"), ('"quoted"', "a")]
LONG = [
    ('one\ntwo "three"', "a"), ("a\tb", "b"), ("c\r\nd", "a"), ("plain", "b"), ('"', "a"),
    ('"open\nend"', "b"), ("e\x85f\u2028g\x0bh", "a"),
]  # fmt: skip


def by_csv(path: Path, rows: Rows, header: tuple[str, ...] | None = HEADER, **how: Any) -> Rows:
    """Write rows as csv does, and read them back as it does."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, dialect="excel-tab", **how).writerows([header, *rows] if header else rows)
    with path.open(encoding="utf-8", newline="") as file:
        read = [(text, label) for text, label in csv.reader(file, dialect="excel-tab")]
    assert read[bool(header) :] == list(rows)
    return read[bool(header) :]


def read(path: Path, **options: Any) -> tuple[Rows, str]:
    rows = read_rows(path, **options)
    return list(zip(rows.sources, rows.targets, strict=True)), rows.read


@pytest.mark.parametrize("rows", [WITH_MARKS, LONG, [("plain", "a"), ("text", "b")]])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_cells_are_those_that_csv_wrote(tmp_path: Path, rows: Rows, quoting: Any, end: str) -> None:
    path = tmp_path / "a.tsv"
    expected = by_csv(path, rows, quoting=quoting, lineterminator=end)
    found, said = read(path)
    assert found == expected
    marks = '"' in path.read_text(encoding="utf-8")
    assert said.endswith("quotation marks quote cells") == marks
    again = packed(tmp_path / "b.tsv.gz", path.read_bytes().decode())
    assert read(again) == (found, said)


def test_cells_of_a_file_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    for rows in (WITH_MARKS, [("all", "a"), ("quoted", "b")]):
        expected = by_csv(path, rows, None, quoting=csv.QUOTE_ALL)
        assert read(path, header=False)[0] == expected


RAW = [
    [('"Yes," she said.', "a"), ("plain", "b")],
    [('he said "hello"', "a"), ('"quoted"', "b")],
    [('"quoted"', "a"), ("plain", "b")],  # no program quotes one of two such cells
    [('"not closed', "a"), ("plain", "b")],
    [('"one', "a"), ('two"', "b"), ('say "so"', "a")],
    [('""Let it be" is a song', "a"), ("plain", "b")],
    [('5" disk', "a"), ("\u201equoted\u201c", "b"), ('"', "a")],
]  # fmt: skip


@pytest.mark.parametrize("rows", RAW)
def test_other_marks_are_text(tmp_path: Path, rows: Rows) -> None:
    """As csv reads them without quoting."""
    lines = ["\t".join(row) for row in [HEADER, *rows]]
    path = Path(write(tmp_path / "a.tsv", "\n".join(lines)))
    expected = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    found, said = read(path)
    assert [list(row) for row in found] == expected
    assert said.endswith("quotation marks are text")


def test_a_late_row_decides(tmp_path: Path) -> None:
    """Rows before it wait, as far as they are read otherwise."""
    plain = [("words without marks", "a")] * 1200
    quoted = [*plain, *WITH_MARKS]
    expected = by_csv(tmp_path / "a.tsv", quoted)
    assert read(tmp_path / "a.tsv")[0] == expected
    lines = ['"bare"\ta\n', *["plain\tb\n"] * 300, 'he said "so"\tb\n']
    path = Path(write(tmp_path / "b.tsv", "text\tlabel\n" + "".join(lines)))
    assert read(path)[0][0] == ('"bare"', "a")


UNCLEAR = [
    # Marks around all texts, by a program that does not quote the header, or as text.
    ('"one"\ta\n"two"\tb\n', 2, [("one", "a"), ("two", "b")], [('"one"', "a"), ('"two"', "b")]),
    # Two rows, or one with a cell of two lines.
    ('"one\ta\ntwo"\tb\n', 2, [('one\ta\ntwo', "b")], [('"one', "a"), ('two"', "b")]),
    # As R and Spark write marks: what `--no-quoted` reads has the backslashes.
    ('"say \\"so\\""\ta\n', 2, None, [('"say \\"so\\""', "a")]),
    # Both in one file.
    ('"say ""so"""\ta\nsay "so"\tb\n', 3, None, [('"say ""so"""', "a"), ('say "so"', "b")]),
    ('say "so"\tb\n"say ""so"""\ta\n', 3, None, [('say "so"', "b"), ('"say ""so"""', "a")]),
]  # fmt: skip


@pytest.mark.parametrize(("content", "line", "quoted", "text"), UNCLEAR)
def test_what_a_file_does_not_show_is_asked_for(
    tmp_path: Path, content: str, line: int, quoted: Rows | None, text: Rows
) -> None:
    path = Path(write(tmp_path / "a.tsv", f"text\tlabel\n{content}"))
    with raises(InputError, "tsv-quotes-unclear") as caught:
        read(path)
    assert f"{path}:{line}: " in str(caught.value)
    assert "--quoted" in str(caught.value)
    assert "--no-quoted" in str(caught.value)
    assert read(path, quoted=False)[0] == text
    if quoted is None:
        with raises(InputError, "tsv-quotes-unclear"):
            read(path, quoted=True)
    else:
        assert read(path, quoted=True)[0] == quoted


def test_two_rows_of_one_column_can_be_a_cell_of_two_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'text\n"one\ntwo"\n')
    embedded = TASKS["embedding"].read_rows
    with raises(InputError, "tsv-quotes-unclear"):
        embedded(path)
    assert embedded(path, quoted=True).sources == ["one\ntwo"]
    assert embedded(path, quoted=False).sources == ['"one', 'two"']
