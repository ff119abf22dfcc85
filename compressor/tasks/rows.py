"""The rows of a data file: how a task reads them, and what follows from them without a model."""

from __future__ import annotations

import hashlib
import json
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

from compressor.errors import InputError
from compressor.options.bounds import MINIMUM_ROWS
from compressor.storage.text_files import REPORTED_LINES

ColumnNames = Mapping[str, str]  # option of a task that is set -> name of the column
Texts = Sequence[str]
LabelNames = Sequence[str] | None  # a checkpoint's, by class id; None: without, or not known
# Codes of the languages that a translator translates from and into, as far as they are known.
Direction = tuple[str | None, str | None]
Pairs = Literal["none", "some", "all"]  # whether texts are read in pairs
# A source, the second text of a pair or None, and a target; see `Rows`.
RowText = tuple[str, str | None, str]


@dataclass(frozen=True)
class Rows:
    """Checked rows in file order, as `read_rows` returns them.

    Ranked rows are queries (`sources`) with texts (`pairs`) that answers rank, and how relevant
    these are (`targets`): 0 for not at all.
    """

    task: str
    sources: list[str]  # sentences to translate, texts to classify, …
    pairs: list[str] | None  # second texts of pairs
    targets: list[str]  # reference translations, label names as the checkpoint spells them, …
    files: list[str]  # paths as the user wrote them: one file, or two parallel ones
    sha256: str  # see `fingerprint`
    labels: list[str] | None = None  # the checkpoint's label names by class id
    ranked: bool = False
    # Metric -> how it splits texts, chosen once for all rows of a run by
    # `compressor.evaluation.with_tokenizers`; empty before.
    tokenizers: Mapping[str, str] = field(default_factory=dict)
    read: str = ""  # what was read of the files: columns, quoting, labels

    @property
    def said(self) -> str:
        """What was read, and from where."""
        return f"{', '.join(self.files)}: {self.count:,} rows{self.read and f'; {self.read}'}"

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.sources)

    @property
    def references(self) -> list[str]:
        """The texts that answers are compared with: targets; of ranked rows a ranking per query."""
        return self.judged(self.targets)

    def judged(self, answers: Sequence[str]) -> list[str]:
        """Take what metrics judge: all answers; of ranked rows a ranking for each query.

        A ranking is a JSON list: how relevant the texts of a query are, in the order of the
        answers, the highest first. Of texts with the same answer the less relevant ones come first,
        so a model that answers the same to all gains nothing. Queries without a relevant text are
        left out: no order of theirs is right or wrong.

        Args:
            answers: one for each row; numbers, of ranked rows.

        Raises:
            InputError: an answer to a ranked row is infinite or NaN.
        """
        if not self.ranked:
            return list(answers)
        texts: dict[str, list[tuple[float, int]]] = {}
        for query, score, target in zip(
            self.sources, finite_numbers(answers), self.targets, strict=True
        ):
            texts.setdefault(query, []).append((-score, int(target)))
        return [
            json.dumps([relevance for _, relevance in sorted(scored)])
            for scored in texts.values()
            if any(relevance for _, relevance in scored)
        ]

    @property
    def counted(self) -> tuple[int, str]:
        """The number of answers that quality is a mean of, and what they are: rows or queries."""
        return (len(self.references), "queries") if self.ranked else (self.count, "rows")


def finite_numbers(answers: Sequence[str]) -> list[float]:
    """A model's answers as numbers; InputError if one is infinite or NaN."""
    numbers = [float(answer) for answer in answers]
    if not all(map(math.isfinite, numbers)):
        raise InputError(
            "the model answers a row with an infinite number or NaN; measure another model, or "
            "another precision",
            id="score-not-number",
        )
    return numbers


def fingerprint(sources: list[str], pairs: list[str] | None, targets: list[str]) -> str:
    """SHA-256 of the rows, whatever their file format.

    One line per row is hashed: the JSON list [source, pair or null, target] in UTF-8, as
    `json.dumps(…, ensure_ascii=False)` writes it, ended by a line feed.
    """
    digest = hashlib.sha256()
    seconds: Sequence[str | None] = pairs or [None] * len(sources)
    for row in zip(sources, seconds, targets, strict=True):
        digest.update(f"{json.dumps(row, ensure_ascii=False)}\n".encode())
    return digest.hexdigest()


def some_rows(rows: Rows, numbers: Sequence[int]) -> Rows:
    """The rows of these numbers, in their order."""
    sources, targets = ([texts[n] for n in numbers] for texts in (rows.sources, rows.targets))
    pairs = None if rows.pairs is None else [rows.pairs[n] for n in numbers]
    sha256 = fingerprint(sources, pairs, targets)
    return replace(rows, sources=sources, pairs=pairs, targets=targets, sha256=sha256)


def count_shared(test: Rows, calibration: Rows) -> int:
    """Number of test rows whose text (see `_texts`) is also that of a calibration row."""
    calibration_texts = set(_texts(calibration))
    return sum(text in calibration_texts for text in _texts(test))


def split_rows(rows: Rows, seed: int) -> tuple[Rows, Rows]:
    """About half of the rows each, in the order of the file; no text (`_texts`) is in both."""
    groups: dict[tuple[str, str], list[int]] = {}
    for number, text in enumerate(_texts(rows)):
        groups.setdefault(text, []).append(number)
    drawn = list(groups.values())
    random.Random(seed).shuffle(drawn)
    first: set[int] = set()
    for group in drawn:
        if len(first) + len(group) <= rows.count // 2:
            first.update(group)
    second = [number for number in range(rows.count) if number not in first]
    return some_rows(rows, sorted(first)), some_rows(rows, second)


def rows_to_search_on(test: Rows, seed: int) -> tuple[Rows, Rows]:
    """Split test rows into those that a budget searches on, and those that are held out.

    Raises:
        InputError: there are too few for both.
    """
    search, held_out = split_rows(test, seed)
    (searched, what), (held, _) = search.counted, held_out.counted
    if min(searched, held) < MINIMUM_ROWS:
        raise InputError(
            f"{', '.join(test.files)}: too few test {what}, {searched + held}, of which "
            f"{searched} would be searched on and {held} held out; --max-drop needs {MINIMUM_ROWS} "
            "of each, and rows with the same text stay together",
            id="too-few-rows",
        )
    return search, held_out


def _texts(rows: Rows) -> list[tuple[str, str]]:
    """The texts that make rows the same: of pairs both; of ranked rows the query."""
    seconds = [""] * rows.count if rows.pairs is None or rows.ranked else rows.pairs
    return list(zip(rows.sources, seconds, strict=True))


@dataclass(frozen=True)
class Reading:
    """How to read a data file, from options and from the checkpoint; see `RowReader.read_rows`."""

    columns: ColumnNames = field(default_factory=dict)
    labels: LabelNames = None
    languages: Direction = (None, None)
    header: bool = True
    quoted: bool | None = None


@dataclass(frozen=True)
class RowTexts:
    """An opened data file: its paths, and an iterator that reads and checks the rows."""

    files: list[str]
    rows: Iterator[RowText]
    ranked: bool = False
    read: Callable[[], str] = str  # what was read, once all rows are


class RowReader(ABC):
    """Base of what a task knows about its data files: columns, rows, and what they must contain."""

    name: ClassVar[str]  # of the task
    columns: ClassVar[tuple[str, ...]]  # options that name columns, as fields of a recipe
    inputs: ClassVar[tuple[str, ...]]  # those of the columns that the model reads
    options: ClassVar[tuple[str, ...]] = ()  # flags of other options that some tasks lack
    joins_pairs: ClassVar[bool] = True  # whether a pair is read as one; else each text is a row

    @property
    def flags(self) -> list[str]:
        """All options of the task that some other tasks lack, as typed."""
        return [*map(flag_of, self.columns), *self.options]

    def read_rows(
        self,
        spec: str | Path,
        *,
        labels: Sequence[str] | None = None,
        languages: Direction = (None, None),
        minimum: int = 1,
        limit: int | None = None,
        header: bool = True,
        quoted: bool | None = None,
        progress: Callable[[int], None] = lambda rows: None,
        **columns: str | None,
    ) -> Rows:
        """Read and check the rows of a calibration or test file, which may be packed.

        Args:
            spec: a .tsv, .csv or .jsonl file, or for translations `SOURCE,TARGET`, two plain text
                files. A path that exists is one file, commas or not.
            labels: the checkpoint's label names by class id; the labels of the file may be these
                names or class ids. Without it labels are read as they are.
            languages: codes of the languages that a model translates from and into.
            minimum: number of rows that are needed.
            limit: use only the first N rows; all are checked nevertheless.
            header: whether a table has a header row; without one its columns are `1`, `2`, ….
            quoted: whether quotation marks quote the cells of a `.tsv` file; None: as it shows.
            progress: called with the number of rows that are read, of long files.
            columns: names of the columns, by option (`source_column`, `label_column`, …).

        Raises:
            InputError: the file is missing or malformed, a column is missing, a cell cannot be
                used, or there are too few rows; with file and line.
            EnvironmentProblem: the package that unpacks the file is not installed.
        """
        named = {name: column for name, column in columns.items() if column is not None}
        reading = Reading(named, labels, languages, header, quoted)
        texts = self.read_texts(str(spec), reading)
        used: list[RowText] = []
        for number, row in enumerate(texts.rows, 1):  # all are read, and so checked
            if limit is None or number <= limit:
                used.append(row)
            if number % REPORTED_LINES == 0:
                progress(number)
        if len(used) < max(minimum, 1):
            raise InputError(
                f"{', '.join(texts.files)}: too few rows, {len(used)}; give {minimum} or more",
                id="too-few-rows",
            )
        sources, targets = [row[0] for row in used], [row[2] for row in used]
        pairs = [second for _, second, _ in used if second is not None] or None
        names = None if labels is None else list(labels)
        return Rows(
            self.name,
            sources,
            pairs,
            targets,
            texts.files,
            fingerprint(sources, pairs, targets),
            names,
            texts.ranked,
            read=texts.read(),
        )

    @abstractmethod
    def read_texts(self, spec: str, reading: Reading) -> RowTexts:
        """Open a data file, whose rows are checked as they are read.

        Arguments and errors are those of `read_rows`.

        Args:
            spec: the file, or files.
            reading: how it is read.
        """

    @abstractmethod
    def text_columns(
        self, where: str, names: Texts, reading: Reading, *, pairs: Pairs, targets: bool = False
    ) -> list[str]:
        """The columns of texts without answers: one, or two that are read as a pair.

        Args:
            where: the place of the first object.
            names: its keys.
            reading: how it is read.
            pairs: whether all texts, some or none are pairs.
            targets: of texts like the answers, where these are texts.
        """

    def require_answers(self, rows: Rows) -> None:  # noqa: B027 # all rows of most tasks have some
        """Raise InputError if rows lack what answers are compared with."""

    def blank_answer(self, labels: LabelNames) -> str:
        """A target for rows without an answer, where nothing reads it."""
        return ""


def flag_of(name: str) -> str:
    """`--source-column` for `source_column`."""
    return f"--{name.replace('_', '-')}"
