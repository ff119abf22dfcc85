"""Pages from templates, which hold their layout: the report as Markdown and as HTML.

The HTML page is one file without scripts. Every text from data is escaped for its format.
"""

from __future__ import annotations

import base64
import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from compressor.report import numbers, plots, table, tables
from compressor.report.formats import ReportFormat
from compressor.report.view import Plots, ReportView


def render_markdown(view: ReportView) -> str:
    """The report as `report.md`."""
    return render_template("report.md.j2", view)


def render_html(view: ReportView) -> str:
    """The report as `report.html`, plots included."""
    return render_template("page.html.j2", view, images=images(view.plots))


def images(series: Plots) -> dict[str, str]:
    """The plots that there is data for, as `data:` addresses by name."""
    return {
        name: f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
        for name, svg in ((name, plots.page_svg(figure)) for name, figure in plots.figures(series))
    }


MARKDOWN = ReportFormat("report.md", render_markdown, r"# Compression report: ")
HTML = ReportFormat("report.html", render_html, r".{0,1000}<title>Compression report: ")


def render_template(name: str, view: ReportView, **more: Any) -> str:
    """A template, Markdown or HTML, filled with the view and its tables."""
    is_markdown = name.endswith(".md.j2")
    headline, samples = view.headline, view.samples
    text = (
        _environment(is_markdown)
        .get_template(name)
        .render(
            view=view,
            conclusion=tables.conclusion(headline) if headline else None,
            samples=tables.samples(samples) if samples else None,
            tables=tables.tables(view),
            **more,
        )
    )
    # What was left out leaves empty lines.
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n" if is_markdown else text


@cache
def _environment(is_markdown: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("compressor.report", ""),
        autoescape=not is_markdown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    if is_markdown:
        # Jinja escapes for HTML alone.
        environment.finalize = lambda x: x if isinstance(x, Markup) else table.escape(str(x))
        environment.filters |= {
            "line": lambda text: Markup(table.escape_line(text)),
            "items": lambda lines: Markup("\n".join(table.bullets(lines))),
            "code": lambda text: Markup(numbers.printable(text)),
            "table": lambda shown: Markup(table.table_block(shown)),
        }
    return environment
