"""A format that reports are written in, and the one of `report.json`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compressor.report.schema import Report, render_json
from compressor.storage.input_files import read_text


@dataclass(frozen=True)
class ReportFormat:
    """A format that reports are written in."""

    file: str
    render: Callable[[Report], str]
    start: str  # pattern of how its files begin; others are not replaced
    for_ci: bool = False  # whether `compress gate --ci` writes it

    def is_own_file(self, path: Path) -> bool:
        """Whether a file is of this format."""
        try:
            return re.match(self.start, read_text(path), re.DOTALL) is not None
        except (OSError, ValueError):
            return False


JSON = ReportFormat("report.json", render_json, r'\s*\{\s*"schema_version":')
