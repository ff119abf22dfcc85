"""The report as one self-contained HTML page, `report.html`; its words are in `page.html.j2`.

No script, no external file, light and dark. The template escapes every text.
"""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass

from compressor.report import plots
from compressor.report.formats import ReportFormat
from compressor.report.schema import Report
from compressor.report.templates import render_template

# Color -> the one on a dark page.
DARK = {
    plots.INK: "#d5dbe2", plots.FAINT: "#333c47", plots.DENSE: "#a3aebb",
    **dict(zip(plots.COLORS, ("#56b4e9", "#f08a4b", "#34c99a", "#e29bc4", "#9ad1f2", "#f0b840"),
               strict=True)),
    **dict(zip(plots.SHADES, ("#23435c", "#2f6288", "#4186b8", "#73b3de", "#c3e3f8"),
               strict=True)),
}  # fmt: skip


def render_html(report: Report) -> str:
    """The whole report as an HTML document."""
    return render_template("page.html.j2", report, images=images(report))


@dataclass(frozen=True)
class PageImage:
    """A plot as `data:` addresses for a light and a dark page."""

    light: str
    dark: str


def images(report: Report) -> dict[str, PageImage]:
    """The plots that the report has data for, by name."""

    def data_address(svg: str) -> str:
        return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"

    images = {}
    for name, figure in plots.figures(report):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        svg = buffer.getvalue()
        dark = re.sub("|".join(DARK), lambda color: DARK[color[0]], svg)
        images[name] = PageImage(data_address(svg), data_address(dark))
    return images


HTML = ReportFormat("report.html", render_html, r".{0,1000}<title>Compression report: ")
