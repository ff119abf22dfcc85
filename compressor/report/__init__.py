"""The report's formats: one table of what can be written.

To add one, make a `formats.ReportFormat` and add a line to `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compressor.options.table import Table
from compressor.storage.files import require_file, write_at_once
from compressor.storage.outputs import update_manifest

if TYPE_CHECKING:
    from compressor.report.formats import ReportFormat
    from compressor.report.schema import Report


FORMATS: Table[ReportFormat] = Table(
    "report format",
    {
        "json": "compressor.report.formats:JSON",
        "markdown": "compressor.report.templates:MARKDOWN",
        "html": "compressor.report.page:HTML",
        "junit": "compressor.report.junit:JUNIT",
        "summary": "compressor.report.step_summary:SUMMARY",
        "comment": "compressor.report.step_summary:COMMENT",
        "badge": "compressor.report.ci_values:BADGE",
        "benchmark-bigger": "compressor.report.ci_values:BENCHMARK_BIGGER",
        "benchmark-smaller": "compressor.report.ci_values:BENCHMARK_SMALLER",
        "outputs": "compressor.report.ci_values:OUTPUTS",
    },
    id="report-format-unknown",
)
DEFAULT_FORMATS = ("json", "markdown", "html")


def ci_formats() -> list[str]:
    """The formats that `compress gate --ci` writes."""
    return [name for name, found in FORMATS.items() if found.for_ci]


def require_replaceable(directory: Path, names: Sequence[str], option: str = "--output") -> None:
    """Refuse to replace files that are not reports, each by itself, before anything is made.

    Raises:
        UsageError: an unknown format.
        InputError: a file is something else, or cannot be written.
    """
    for name in names:
        found = FORMATS[name]
        require_file(directory / found.file, "a report", found.is_own_file, option)


def render(report: Report, name: str) -> str:
    """The report's text in the format `name` of `FORMATS`; raises UsageError for an unknown one."""
    return FORMATS[name].render(report)


def render_reports(
    report: Report, directory: Path, names: Sequence[str] = DEFAULT_FORMATS
) -> dict[Path, str]:
    """The report in the given formats: where each goes in `directory`, and its text."""
    return {directory / FORMATS[name].file: render(report, name) for name in names}


def write_reports(
    report: Report, directory: Path, names: Sequence[str] = DEFAULT_FORMATS
) -> list[Path]:
    """Write the report in the given formats into `directory`, which is created if missing.

    Everything is rendered before the first file is written. Files of earlier reports are replaced;
    the manifest of an artifact there is kept true.
    """
    texts = render_reports(report, directory, names)
    hashes = {path.name: write_at_once(path, text) for path, text in texts.items()}
    update_manifest(directory, hashes)
    return list(texts)
