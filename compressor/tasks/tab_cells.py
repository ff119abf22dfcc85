"""The cells of tab-separated files, whose quotation marks are text or quote cells.

Corpora and benchmarks (Tatoeba, OPUS, GLUE) have marks as text. Programs that write CSV (Python's
csv, pandas, datasets) quote cells with a mark, a tab or a line break, and double the marks in them
(RFC 4180); some quote all texts. So the file shows which it is: where marks quote, every cell that
has one is quoted as a whole, and its marks are doubled.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from compressor.errors import InputError

_INSIDE = r'[^"]*(?:""[^"]*)*'  # of a quoted cell
_CELL = re.compile(rf'(?:"({_INSIDE})"|([^\t"]*))(?:\t|\Z)')
_UNFINISHED = re.compile(rf'(?:(?:"{_INSIDE}"|[^\t"]*)\t)*"{_INSIDE}')
_BACKSLASHES = re.compile(r'"(?:[^"\\]|\\.)*"')
_NEEDS_QUOTES = re.compile(r'["\r\n]')
_DOUBT = "the lines may be rows of their own, or those of a quoted cell"
_MOST = 500  # lines of a quoted cell, and rows that wait for one that decides


class _Row(NamedTuple):
    number: int  # of its first line
    lines: list[str]  # without the last one's end; several where a quoted cell has line breaks
    texts: list[str]  # the cells of the first line, where marks are text
    cells: list[str] | None  # where marks quote; None if they cannot
    quoted: frozenset[int] = frozenset()  # which cells are quoted, empty ones left out


class TabRows:
    """The rows of a file, as (number of the first line, cells).

    Args:
        lines: with their ends.
        quoted: whether marks quote cells, where an option says it.
        header: whether the first row has the names of columns.

    Raises:
        InputError: while reading, where the file does not show what marks are, or shows both.
    """

    def __init__(self, lines: Iterable[str], path: str, quoted: bool | None, header: bool) -> None:
        self._lines = enumerate(lines, 1)
        self._path, self._header = path, header
        self._ahead = deque[tuple[int, str]]()  # lines that were read to find the end of a cell
        self._is_given, self._quoting = quoted is not None, quoted  # None: not decided yet
        self._decided_at = 0  # the line that decided it
        self._doubtful = range(0)  # lines that may be rows, or those of a quoted cell
        self._has_marks = False
        self._width = 0
        # Columns with a name or a cell that is not quoted, and with a cell that need not be.
        self._names = set[int]()
        self._plain = set[int]()
        self._quoted = set[int]()

    def said(self) -> str:
        """How marks were read; empty where there are none."""
        if not self._has_marks:
            return ""
        return f"quotation marks {_meaning(bool(self._quoting))}"

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        waiting: list[_Row] = []
        for row in self._rows():
            waiting.append(row)
            is_clear = self._quoting is not None or row.cells == row.texts
            if not is_clear or (self._quoting is None and len(waiting) > 1):
                if len(waiting) < _MOST:
                    continue
                self._decide_together(waiting[0].number)
            yield from ((row.number, self._read(row)) for row in waiting)
            waiting = []
        if waiting:
            self._decide_together(waiting[0].number)
            yield from ((row.number, self._read(row)) for row in waiting)

    def _read(self, row: _Row) -> list[str]:
        if not self._quoting:
            return row.texts
        if row.cells is None:
            problem = _DOUBT if row.number in self._doubtful else "marks are not around whole cells"
            raise self._unclear(row.number, problem)
        return row.cells

    def _rows(self) -> Iterator[_Row]:
        """All rows; what they show about marks is noted."""
        for number, line in self._numbered():
            text = without_end(line)
            texts = text.split("\t")
            row = _Row(number, [text], texts, texts)
            if '"' in text:
                self._has_marks = True
                row = self._row_with_marks(number, line, texts)
            is_first, self._width = not self._width, self._width or len(row.cells or texts)
            if not (self._is_given or number in self._doubtful):
                self._note(row, is_first)
            yield row

    def _numbered(self) -> Iterator[tuple[int, str]]:
        while True:
            if self._ahead:
                yield self._ahead.popleft()
            elif (following := next(self._lines, None)) is not None:
                yield following
            else:
                return

    def _row_with_marks(self, number: int, line: str, texts: list[str]) -> _Row:
        text = without_end(line)
        as_text = _Row(number, [text], texts, None)
        if self._quoting is False and (self._is_given or '""' not in text):
            return as_text
        if self._quoting is None and number in self._doubtful:
            return as_text
        found, taken = _quoted_cells(text), list[tuple[int, str]]()
        if found is None and self._quoting is not False and _UNFINISHED.fullmatch(text):
            for following in islice(self._numbered(), _MOST):
                taken.append(following)
                line += following[1]
                if '"' in following[1]:
                    text = without_end(line)
                    found = _quoted_cells(text)
                    if found is not None or not _UNFINISHED.fullmatch(text):
                        break
        are_rows = self._quoting is None and all(map(self._fits, text.split("\n")))
        if found is not None and taken and are_rows and len(found[0]) == self._width:
            self._doubtful = range(number, taken[-1][0] + 1)
            found = None
        if found is None or (are_rows and len(found[0]) != self._width):
            self._ahead.extendleft(reversed(taken))
            return as_text
        return _Row(number, list(map(without_end, text.split("\n"))), texts, *found)

    def _note(self, row: _Row, is_first: bool) -> None:
        """Note what a row shows; raise InputError if the file has shown something else."""
        if row.cells is None:
            if self._quoting is None and any(map(_has_backslashes, row.texts)):
                problem = "quotation marks in a cell have backslashes, which would be left in it"
                raise self._unclear(row.number, problem)
            self._decide(row.number, False)
        elif row.quoted:
            as_text = all(map(self._fits, row.lines))
            as_cells = len(row.cells) == self._width
            if as_text != as_cells:
                self._decide(row.number, as_cells)
            elif any(_NEEDS_QUOTES.search(row.cells[n]) for n in row.quoted):
                self._decide(row.number, True)
        if self._quoting is None and len(self._plain) < self._width:
            plain = {n for n, cell in enumerate(row.cells or ()) if cell and n not in row.quoted}
            (self._names if is_first and self._header else self._plain).update(plain)
        self._quoted |= row.quoted

    def _fits(self, line: str) -> bool:
        """Whether a line has as many cells as columns, where marks are text."""
        return line.count("\t") + 1 == self._width

    def _decide(self, number: int, quoting: bool) -> None:
        if self._quoting is None:
            self._quoting, self._decided_at = quoting, number
        elif self._quoting != quoting:
            where = f"in line {self._decided_at}" if self._decided_at else "in the rows before"
            problem = (
                f"quotation marks {_meaning(quoting)} here, and {_meaning(not quoting)} {where}"
            )
            raise self._unclear(number, problem)

    def _decide_together(self, number: int) -> None:
        """Decide by rows of which none does: marks are only around cells that do not need any."""
        if self._doubtful:
            raise self._unclear(self._doubtful.start, _DOUBT)
        if self._quoted & self._plain:
            self._quoting = False  # no program quotes some texts of a column without need
        elif self._quoted & self._names:
            problem = "quotation marks around all texts of a column may be text, or quote them"
            raise self._unclear(number, problem)
        else:
            self._quoting = True

    def _unclear(self, number: int, problem: str) -> InputError:
        return InputError(
            f"{self._path}:{number}: {problem}; say which with --quoted (as programs write that "
            "write CSV) or --no-quoted (marks are text), or give the rows as .csv or .jsonl",
            id="tsv-quotes-unclear",
        )


def without_end(line: str) -> str:
    """A line without what ends it."""
    return line.removesuffix("\n").removesuffix("\r")


def _meaning(quoting: bool) -> str:
    return "quote cells" if quoting else "are text"


def _has_backslashes(cell: str) -> bool:
    """Whether marks in a quoted cell are behind backslashes, as R and Spark write them."""
    return '\\"' in cell[1:-1] and _BACKSLASHES.fullmatch(cell) is not None


def _quoted_cells(text: str) -> tuple[list[str], frozenset[int]] | None:
    """The cells of a text in which marks quote, and which of them are quoted; None if marks do not.

    A cell that does not end in the text is None, too.
    """
    cells: list[str] = []
    quoted: set[int] = set()
    end = 0
    while True:
        cell = _CELL.match(text, end)
        if cell is None:
            return None
        inside, plain = cell.groups()
        if inside:
            quoted.add(len(cells))
        cells.append(plain if inside is None else inside.replace('""', '"'))
        end = cell.end()
        if end == len(text) and not text.endswith("\t", cell.start(), end):
            return cells, frozenset(quoted)
