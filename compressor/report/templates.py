"""The templates that hold the words of pages, each text from data escaped for its format."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from compressor.report import facts, numbers, phrases, sentences
from compressor.report.formats import ReportFormat
from compressor.report.gate_text import gate_sentence
from compressor.report.markdown import bullets, escape, escape_line, table_block
from compressor.report.schema import Report
from compressor.report.tables import conclusion, samples, tables

if TYPE_CHECKING:
    from jinja2 import Environment


def render_template(name: str, report: Report, **more: Any) -> str:
    """A template of this package, filled with the report, its tables and its sentences.

    `NAME.md.j2` is Markdown, others are HTML.
    """
    is_markdown = name.endswith(".md.j2")
    text = _environment(is_markdown).get_template(name).render(
        report=report, title=facts.model_name(report), facts=facts, numbers=numbers,
        phrases=phrases, sentences=sentences,
        conclusion=conclusion(report), gate=gate_sentence(report), samples=samples(report),
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
        environment.finalize = lambda x: x if isinstance(x, Markup) else escape(str(x))
        environment.filters |= {
            "line": lambda text: Markup(escape_line(text)),
            "items": lambda lines: Markup("\n".join(bullets(lines))),
            "code": lambda text: Markup(numbers.printable(text)),
            "table": lambda table: Markup(table_block(table)),
        }
    return environment


def render_markdown(report: Report) -> str:
    """The whole report as GitHub-flavored Markdown, ending with a newline."""
    return render_template("report.md.j2", report)


MARKDOWN = ReportFormat("report.md", render_markdown, r"# Compression report: ")
