"""Rows of texts and what they are answered with: tables, or two parallel text files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar

from compressor.errors import InputError, UsageError
from compressor.storage.text_files import format_suffix
from compressor.tasks.cells import cell_text, first_two_columns, require_columns, usual_column
from compressor.tasks.reading import RowReader
from compressor.tasks.rows import ColumnNames, LabelNames, RowText, RowTexts
from compressor.tasks.tables import FORMATS, Record, read_lines, read_table


class ParallelRows(RowReader):
    """Reads tables with a source and a target column, or `SOURCE,TARGET`, two text files."""

    columns = ("source_column", "target_column")
    inputs = ("source_column",)
    usual_columns: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "source_column": ("source",),
        "target_column": ("target",),
    }
    options: ClassVar[tuple[str, ...]] = (
        "--num-beams",
        "--target-length",
        "--target-text",
        "--distill-beams",
        "--source-language",
        "--target-language",
        "--prefix",
    )

    def read_texts(
        self, spec: str, columns: ColumnNames, labels: LabelNames, header: bool
    ) -> RowTexts:
        """As in `Task`; `spec` may also be `SOURCE,TARGET`, two files with a text per line."""
        if len(columns) == 1:
            raise UsageError(
                "name both the source column and the target column, or neither",
                id="column-of-a-pair-missing",
            )
        parallel = _parallel_files(spec)
        if parallel is not None:
            if columns:
                raise UsageError(
                    f"the plain text files {spec} have no columns; leave {self.column_options} out",
                    id="columns-of-plain-text",
                )
            if not header:
                raise UsageError(
                    f"the plain text files {spec} have no header anyway; leave --no-header out",
                    id="header-of-plain-text",
                )
            return _read_parallel(*parallel)
        if format_suffix(spec) == ".txt":
            raise InputError(
                f"{spec} is plain text; give two parallel files, SOURCE.txt,TARGET.txt",
                id="parallel-file-missing",
            )
        table = read_table(spec, header)
        source, target = (columns.get(option) for option in self.columns)
        if source is None or target is None:
            source, target = (
                usual_column(table, self.usual_columns[option]) for option in self.columns
            )
        if source is None or target is None:
            source, target = first_two_columns(table, self.column_options)
        require_columns(table, [source, target])

        def row(record: Record) -> RowText:
            return cell_text(table, record, source), None, cell_text(table, record, target)

        return RowTexts([spec], map(row, table.records))


def _parallel_files(spec: str) -> tuple[str, str] | None:
    """The two files of `SOURCE,TARGET`; None if `spec` is one file."""
    if Path(spec).exists() or "," not in spec:
        return None
    commas = [index for index, character in enumerate(spec) if character == ","]
    splits = [(spec[:index].strip(), spec[index + 1 :].strip()) for index in commas]
    # A path may hold a comma itself: take the split whose halves both exist.
    existing = [pair for pair in splits if all(Path(path).is_file() for path in pair)]
    pair = (existing or splits)[0]
    for path in pair:
        if format_suffix(path) in FORMATS:
            raise InputError(
                f"{path} in {spec} is a table; give one table with both columns, or two plain "
                "text files with a text per line",
                id="table-as-parallel-file",
            )
    return pair


def _read_parallel(source_path: str, target_path: str) -> RowTexts:
    """The lines of two files, line n of one belonging to line n of the other.

    Raises:
        InputError: other numbers of lines, or an empty one.
    """
    return RowTexts([source_path, target_path], _rows(source_path, target_path))


def _rows(source_path: str, target_path: str) -> Iterator[RowText]:
    lines = read_lines(source_path), read_lines(target_path)
    for number, (source, target) in enumerate(zip_longest(*lines), 1):
        if source is None or target is None:
            counts = [number - (line is None) for line in (source, target)]
            counts = [n + sum(1 for _ in rest) for n, rest in zip(counts, lines, strict=True)]
            raise InputError(
                f"{source_path} has {counts[0]} lines, but {target_path} has {counts[1]}; line n "
                "of one must belong to line n of the other",
                id="parallel-files-differ",
            )
        for path, line in ((source_path, source), (target_path, target)):
            if not line.strip():
                raise InputError(
                    f"{path}:{number}: the line is empty; remove it from both files",
                    id="line-empty",
                )
        yield source, None, target
