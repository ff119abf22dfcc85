"""The report's formats; to add one, make a `ReportFormat` and add a line to `FORMATS`."""

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
    """Check, before anything is made, that no file would be replaced that is not a report.

    Args:
        directory: Where reports are to be written.
        names: Formats of `FORMATS`.
        option: The option that names the directory, for messages.

    Raises:
        InputError: A file is there that no report of its format could be.
    """
    for kind in (FORMATS[name] for name in names):
        require_file(directory / kind.file, "a report", kind.is_own_file, option)


def render(report: Report, name: str) -> str:
    """Render a report in one format.

    Args:
        report: The report.
        name: A format of `FORMATS`.

    Returns:
        The text of its file.

    Raises:
        UsageError: There is no such format.
    """
    from compressor.report.build_view import build_view

    return FORMATS[name].render(build_view(report))


def render_reports(
    report: Report, directory: Path, names: Sequence[str] = DEFAULT_FORMATS
) -> dict[Path, str]:
    """Render a report in several formats, from one view.

    Args:
        report: The report.
        directory: Where the files are to lie.
        names: Formats of `FORMATS`.

    Returns:
        The path of each file, and its text. No file is written.

    Raises:
        UsageError: There is no such format.
    """
    from compressor.report.build_view import build_view

    view = build_view(report)
    return {directory / FORMATS[name].file: FORMATS[name].render(view) for name in names}


def write_reports(
    report: Report, directory: Path, names: Sequence[str] = DEFAULT_FORMATS
) -> list[Path]:
    """Write the report into `directory`, and the hashes of its files into an artifact's manifest.

    Everything is rendered before the first file is written; files of earlier reports are replaced.

    Args:
        report: The report.
        directory: Where to write.
        names: Formats of `FORMATS`.

    Returns:
        The files written.
    """
    texts = render_reports(report, directory, names)
    hashes = {path.name: write_at_once(path, text) for path, text in texts.items()}
    update_manifest(directory, hashes)
    return list(texts)
