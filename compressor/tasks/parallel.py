"""Two parallel text files, `SOURCE,TARGET`: line n of one belongs to line n of the other."""

from __future__ import annotations

from pathlib import Path

from compressor.errors import InputError
from compressor.tasks.rows import RowTexts
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
        if Path(path).suffix.lower() in FORMATS:
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
    sources, targets = read_lines(source_path), read_lines(target_path)
    if len(sources) != len(targets):
        raise InputError(
            f"{source_path} has {len(sources)} lines, but {target_path} has {len(targets)}; line n "
            "of one must belong to line n of the other",
            id="parallel-files-differ",
        )
    for path, lines in ((source_path, sources), (target_path, targets)):
        for number, line in enumerate(lines, 1):
            if not line.strip():
                raise InputError(
                    f"{path}:{number}: the line is empty; remove it from both files",
                    id="line-empty",
                )
    return RowTexts([source_path, target_path], sources, None, targets)
