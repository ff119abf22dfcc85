"""Pages from templates, which hold their words: the report as Markdown and as HTML, model cards.

The HTML page is one file, without scripts, light and dark. Every text from data is escaped for its
format.
"""

from __future__ import annotations

import base64
import io
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from compressor.report import facts, markdown, numbers, phrases, plots, sentences
from compressor.report.schema import Report, ReportFormat
from compressor.report.tables import conclusion, samples, tables

if TYPE_CHECKING:
    from jinja2 import Environment

# Color -> the one on a dark page.
DARK = {
    plots.INK: "#d5dbe2", plots.FAINT: "#333c47", plots.DENSE: "#a3aebb",
    **dict(zip(plots.COLORS, ("#56b4e9", "#f08a4b", "#34c99a", "#e29bc4", "#9ad1f2", "#f0b840"),
               strict=True)),
    **dict(zip(plots.SHADES, ("#23435c", "#2f6288", "#4186b8", "#73b3de", "#c3e3f8"),
               strict=True)),
}  # fmt: skip


def render_template(name: str, report: Report, **more: Any) -> str:
    """A template of this package, filled with the report, its tables and its sentences.

    `NAME.md.j2` is Markdown, others are HTML.
    """
    is_markdown = name.endswith(".md.j2")
    text = _environment(is_markdown).get_template(name).render(
        report=report, title=facts.model_name(report), facts=facts, numbers=numbers,
        phrases=phrases, sentences=sentences,
        conclusion=conclusion(report), gate=phrases.gate_sentence(report), samples=samples(report),
        tables=tables(report), **more,
    )  # fmt: skip
    # What was left out leaves empty lines.
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n" if is_markdown else text


@cache
def _environment(is_markdown: bool) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("compressor.report", ""),
        autoescape=not is_markdown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    if is_markdown:
        # Jinja escapes for HTML alone.
        environment.finalize = lambda x: x if isinstance(x, Markup) else markdown.escape(str(x))
        environment.filters |= {
            "line": lambda text: Markup(markdown.escape_line(text)),
            "items": lambda lines: Markup("\n".join(markdown.bullets(lines))),
            "code": lambda text: Markup(numbers.printable(text)),
            "table": lambda table: Markup(markdown.table_block(table)),
        }
    return environment


def render_markdown(report: Report) -> str:
    """The whole report as GitHub-flavored Markdown, ending with a newline."""
    return render_template("report.md.j2", report)


def render_html(report: Report) -> str:
    """The whole report as an HTML document."""
    return render_template("page.html.j2", report, images=images(report))


class PageImage(NamedTuple):
    """A plot as `data:` addresses for a light and a dark page."""

    light: str
    dark: str


def images(report: Report) -> dict[str, PageImage]:
    """The plots that the report has data for, by name."""

    def address(svg: str) -> str:
        return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"

    images = {}
    for name, figure in plots.figures(report):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        light = buffer.getvalue()
        dark = re.sub("|".join(DARK), lambda color: DARK[color[0]], light)
        images[name] = PageImage(address(light), address(dark))
    return images


MARKDOWN = ReportFormat("report.md", render_markdown, r"# Compression report: ")
HTML = ReportFormat("report.html", render_html, r".{0,1000}<title>Compression report: ")
