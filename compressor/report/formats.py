"""A format that reports are written in, and the one of `report.json`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compressor.report.schema import Report, render_json
from compressor.results import FROM_FILE
from compressor.storage.input_files import parse_json, read_text


@dataclass(frozen=True)
class ReportFormat:
    """A format that reports are written in.

    Args:
        is_own: whether a text is an earlier one of this format, which may be replaced; a
            `ValueError` means that it is not.
        for_ci: whether `compress gate --ci` writes it.
    """

    file: str
    render: Callable[[Report], str]
    is_own: Callable[[str], bool]
    for_ci: bool = False

    def is_own_file(self, path: Path) -> bool:
        """Whether a file is of this format."""
        try:
            return self.is_own(read_text(path))
        except (OSError, ValueError):
            return False


def _is_report(text: str) -> bool:
    return bool(Report.model_validate(parse_json(text), context=FROM_FILE))


JSON = ReportFormat("report.json", render_json, _is_report)
