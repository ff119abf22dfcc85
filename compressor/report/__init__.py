"""The report's renderings: one literal table of what can be written and by which function.

To add a rendering, write a function `Report -> str` and add a line to `RENDERERS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from compressor.errors import UsageError, did_you_mean
from compressor.storage.files import write_at_once
from compressor.storage.outputs import update_manifest

if TYPE_CHECKING:
    from compressor.report.schema import Report


class Renderer(NamedTuple):
    """A file name and the function that makes its text, as `module:function`."""

    file: str
    function: str


RENDERERS: dict[str, Renderer] = {
    "json": Renderer("report.json", "compressor.report.schema:render_json"),
    "markdown": Renderer("report.md", "compressor.report.markdown:render_markdown"),
    "html": Renderer("report.html", "compressor.report.page:render_html"),
    "junit": Renderer("junit.xml", "compressor.report.junit:render_junit"),
    "summary": Renderer("summary.md", "compressor.report.step_summary:render_summary"),
    "comment": Renderer("comment.md", "compressor.report.step_summary:render_comment"),
    "badge": Renderer("badge.json", "compressor.report.ci_values:render_badge"),
    "benchmark-bigger": Renderer(
        "benchmark-bigger.json", "compressor.report.ci_values:render_bigger"
    ),
    "benchmark-smaller": Renderer(
        "benchmark-smaller.json", "compressor.report.ci_values:render_smaller"
    ),
    "outputs": Renderer("outputs.txt", "compressor.report.ci_values:render_outputs"),
}
DEFAULT_RENDERERS = ("json", "markdown", "html")
CI_RENDERERS = tuple(name for name in RENDERERS if name not in DEFAULT_RENDERERS)


def render(report: Report, name: str) -> str:
    """The report's text in the format `name` of `RENDERERS`.

    Raises:
        UsageError: an unknown format; the message lists the known ones.
    """
    if name not in RENDERERS:
        raise UsageError(
            f"no report format {name!r}; choose from {', '.join(RENDERERS)}"
            f"{did_you_mean(name, RENDERERS)}",
            id="report-format-unknown",
        )
    module, _, function = RENDERERS[name].function.partition(":")
    text: str = getattr(import_module(module), function)(report)
    return text


def render_reports(
    report: Report, directory: Path, names: Sequence[str] = DEFAULT_RENDERERS
) -> dict[Path, str]:
    """The report in the given formats: where each goes in `directory`, and its text."""
    rendered = [(name, render(report, name)) for name in names]  # refuses unknown formats
    return {directory / RENDERERS[name].file: text for name, text in rendered}


def write_reports(
    report: Report, directory: Path, names: Sequence[str] = DEFAULT_RENDERERS
) -> list[Path]:
    """Write the report in the given formats into `directory`, which is created if missing.

    Everything is rendered before the first file is written. Files of earlier reports are replaced;
    the manifest of an artifact there is kept true.
    """
    texts = render_reports(report, directory, names)
    hashes = {path.name: write_at_once(path, text) for path, text in texts.items()}
    update_manifest(directory, hashes)
    return list(texts)
