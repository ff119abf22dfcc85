"""The report's formats; to add one, make a `ReportFormat` and add a line to `FORMATS`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compressor.options.table import Table
from compressor.storage.files import require_file, write_at_once
from compressor.storage.outputs import update_manifest

if TYPE_CHECKING:
    from compressor.report.schema import Report, ReportFormat

FORMATS: Table[ReportFormat] = Table(
    "report format",
    {
        "json": "compressor.report.schema:JSON",
        "markdown": "compressor.report.page:MARKDOWN",
        "html": "compressor.report.page:HTML",
        "junit": "compressor.report.ci_files:JUNIT",
        "summary": "compressor.report.ci_files:SUMMARY",
        "comment": "compressor.report.ci_files:COMMENT",
        "badge": "compressor.report.ci_files:BADGE",
        "benchmark-bigger": "compressor.report.ci_files:BENCHMARK_BIGGER",
        "benchmark-smaller": "compressor.report.ci_files:BENCHMARK_SMALLER",
        "outputs": "compressor.report.ci_files:OUTPUTS",
    },
    id="report-format-unknown",
)
DEFAULT_FORMATS = ("json", "markdown", "html")


def ci_formats() -> list[str]:
    """The formats that `compress gate --ci` writes."""
    return [name for name, kind in FORMATS.items() if kind.for_ci]


def require_replaceable(directory: Path, names: Sequence[str], option: str = "--output") -> None:
    """Raise InputError before anything is made if a file to replace is not a report."""
    for kind in (FORMATS[name] for name in names):
        require_file(directory / kind.file, "a report", kind.is_own_file, option)


def render(report: Report, name: str) -> str:
    """The report's text in a format of `FORMATS`; raises UsageError for an unknown one."""
    return FORMATS[name].render(report)


def render_reports(
    report: Report, directory: Path, names: Sequence[str] = DEFAULT_FORMATS
) -> dict[Path, str]:
    """The file in `directory` of each format, and its text."""
    return {directory / FORMATS[name].file: render(report, name) for name in names}


def write_reports(
    report: Report, directory: Path, names: Sequence[str] = DEFAULT_FORMATS
) -> list[Path]:
    """Write the report into `directory`, and the hashes of its files into an artifact's manifest.

    Everything is rendered before the first file is written; files of earlier reports are replaced.
    """
    texts = render_reports(report, directory, names)
    hashes = {path.name: write_at_once(path, text) for path, text in texts.items()}
    update_manifest(directory, hashes)
    return list(texts)
