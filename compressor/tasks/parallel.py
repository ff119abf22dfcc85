"""Two parallel text files, `SOURCE,TARGET`: line n of one belongs to line n of the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from compressor.errors import InputError
from compressor.storage.text_files import format_suffix
from compressor.tasks.rows import RowText, RowTexts
from compressor.tasks.tables import FORMATS, read_lines


def parallel_files(spec: str) -> tuple[str, str] | None:
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


def read_parallel(source_path: str, target_path: str) -> RowTexts:
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
