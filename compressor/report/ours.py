"""Whether a file is one of the report's renderings, and may be replaced by a newer one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from compressor.errors import CompressError
from compressor.report import RENDERERS
from compressor.report.ci_values import is_badge, is_benchmark, is_outputs
from compressor.report.junit import is_junit
from compressor.report.schema import load_report
from compressor.report.step_summary import is_ours
from compressor.storage.files import require_file
from compressor.storage.input_files import read_json, read_text

TITLE_WITHIN = 1000  # characters from the start
_TITLE = re.compile(r"\A# Compression report: |<title>Compression report: ")


def require_ours(directory: Path, formats: Sequence[str], option: str = "--output") -> None:
    """Refuse to replace files that are not reports, each by itself, before anything is made.

    Raises:
        InputError: one is something else, or cannot be written.
    """
    for name in formats:
        if name in RENDERERS:  # others are refused later
            require_file(directory / RENDERERS[name].file, "a report", _KINDS[name], option)


def _is_report(path: Path) -> bool:
    try:
        load_report(path)
    except CompressError:
        return False
    return True


def _has_title(path: Path) -> bool:
    """Whether a page or a Markdown file starts as a report does."""
    try:
        with path.open(encoding="utf-8") as file:
            return bool(_TITLE.search(file.read(TITLE_WITHIN)))
    except (OSError, ValueError):
        return False


def _holds(
    read: Callable[[Path], Any], is_of_kind: Callable[[Any], bool]
) -> Callable[[Path], bool]:
    """Whether what is read from a file is of a kind."""

    def holds(path: Path) -> bool:
        try:
            return is_of_kind(read(path))
        except (OSError, ValueError):
            return False

    return holds


_KINDS: dict[str, Callable[[Path], bool]] = {
    "json": _is_report,
    "markdown": _has_title,
    "html": _has_title,
    "junit": is_junit,
    "summary": _holds(read_text, is_ours),
    "comment": _holds(read_text, is_ours),
    "badge": _holds(read_json, is_badge),
    "benchmark-bigger": _holds(read_json, is_benchmark),
    "benchmark-smaller": _holds(read_json, is_benchmark),
    "outputs": _holds(read_text, is_outputs),
}
