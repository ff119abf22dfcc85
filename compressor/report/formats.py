"""The class of report formats; `FORMATS` in `__init__.py` lists them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compressor.report.schema import render_json
from compressor.report.view import ReportView
from compressor.storage.input_files import read_text
from compressor.storage.manifest import REPORT


@dataclass(frozen=True)
class ReportFormat:
    """A format that reports are written in.

    Attributes:
        file: The name of its file.
        render: From the view of a report to the file's text. It formats and computes nothing.
        start: A pattern of how its files begin; others are not replaced.
        for_ci: Whether `compress gate --ci` writes it.
    """

    file: str
    render: Callable[[ReportView], str]
    start: str
    for_ci: bool = False

    def is_own_file(self, path: Path) -> bool:
        """Whether a file begins as those of this format do."""
        try:
            return re.match(self.start, read_text(path), re.DOTALL) is not None
        except (OSError, ValueError):
            return False


JSON = ReportFormat(REPORT, lambda view: render_json(view.report), r'\s*\{\s*"schema_version":')
