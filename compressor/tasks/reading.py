"""What a task knows about its data files: the columns, the rows, and what they must hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from compressor.errors import UsageError
from compressor.tasks.rows import ColumnNames, LabelNames, Rows, RowTexts, fingerprint, first_rows


class RowReader(ABC):
    """Reads the rows of a task.

    Args:
        name: of the task.
        columns: the options that name the columns of its data files, as fields of a recipe.
        inputs: those of the columns that hold what the model reads.
        usual_columns: option -> names of columns that are taken where none is named.
        options: flags of other options that only some tasks have, this one among them.
        joins_pairs: whether the model reads both texts of a pair as one; else each has its own row.
    """

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    inputs: ClassVar[tuple[str, ...]]
    usual_columns: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    options: ClassVar[tuple[str, ...]] = ()
    joins_pairs: ClassVar[bool] = True

    @property
    def flags(self) -> list[str]:
        """All options that it has and some other tasks lack, as typed."""
        return [*(flag_of(name) for name in self.columns), *self.options]

    @property
    def column_options(self) -> str:
        """The options that name columns, as typed: `--source-column and --target-column`."""
        *first, last = map(flag_of, self.columns)
        return f"{', '.join(first)} and {last}" if first else last

    def read_rows(
        self,
        spec: str | Path,
        *,
        labels: Sequence[str] | None = None,
        minimum: int = 1,
        limit: int | None = None,
        header: bool = True,
        progress: Callable[[int], None] = lambda rows: None,
        **columns: str | None,
    ) -> Rows:
        """Read and check the rows of a calibration or test file, which may be packed.

        They are read one at a time: in memory are those that are used, see `limit`.

        Tables (TSV, CSV) have a header row. Unless columns are named, those with the task's usual
        names are read, or the first two. A header that reads like a sentence is an error, and one
        of unusual names is reported, so that a file without a header does not lose its first row.

        Args:
            spec: a .tsv, .csv or .jsonl file; of pairs of texts also `SOURCE,TARGET`, two plain
                text files with a text per line. A path that exists is one file, commas or not.
                Each may be packed (`.tsv.gz`, `.tsv.zst`).
            labels: the checkpoint's label names by class id; the labels of the file may be these
                names or class ids. Without it labels are taken as they are.
            minimum: fewer rows are an error.
            limit: use only the first so many rows; all are checked nevertheless.
            header: whether a table has a header row; without one its columns are `1`, `2`, ….
            progress: called with the number of rows that are read, of long files.
            columns: names of the columns, by option (`source_column`, `label_column`, …).

        Raises:
            UsageError: options of another task, or that do not belong together.
            InputError: a missing or malformed file, a missing column, an empty cell, an unknown
                label, too few rows; with file and line.
            EnvironmentProblem: the package that unpacks a file is not installed.
        """
        needed = max(minimum, 1)
        if limit is not None and limit < needed:
            raise UsageError(
                f"a limit of {limit} rows is below the {needed} that are needed",
                id="row-limit-too-small",
            )
        given = {name: column for name, column in columns.items() if column is not None}
        for name, column in given.items():
            if name not in self.columns:
                own = f"name columns with {self.column_options}" if self.columns else "leave it out"
                raise UsageError(
                    f"{flag_of(name)} {column} makes no sense for the task {self.name}; {own}",
                    id="option-of-another-task",
                )
        texts = self.read_texts(str(spec), given, labels, header)
        sources, pairs, targets = first_rows(texts, limit, needed, progress)
        return Rows(
            task=self.name, sources=sources, pairs=pairs, targets=targets, files=texts.files,
            sha256=fingerprint(sources, pairs, targets),
            labels=None if labels is None else list(labels), ranked=texts.ranked,
        )  # fmt: skip

    @abstractmethod
    def read_texts(
        self, spec: str, columns: ColumnNames, labels: LabelNames, header: bool
    ) -> RowTexts:
        """Open a data file, whose rows are checked as they are read.

        Arguments and errors are those of `read_rows`; `columns` has options of `self.columns`.
        """

    def require_answers(self, rows: Rows) -> None:  # noqa: B027 # all rows of most tasks have some
        """Check that quality can be measured on rows.

        Raises:
            InputError: they lack what answers are compared with.
        """

    def blank_answer(self, labels: LabelNames) -> str:
        """An answer for rows that have none, where nothing looks at it."""
        return ""


def flag_of(name: str) -> str:
    """`--source-column` for `source_column`."""
    return f"--{name.replace('_', '-')}"
