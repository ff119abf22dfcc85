"""Pages from templates, which hold their words: the report as Markdown and as HTML, model cards.

The HTML page is one file without scripts. Every text from data is escaped for its format.
"""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from compressor.errors import InputError, did_you_mean
from compressor.model.card import CardFacts
from compressor.report import facts, numbers, phrases, plots, searches, sentences, table
from compressor.report.publish import only
from compressor.report.schema import Report, ReportFormat
from compressor.report.tables import conclusion, samples, tables
from compressor.tasks import TASKS


def render_markdown(report: Report) -> str:
    return _render("report.md.j2", report)


def render_html(report: Report) -> str:
    return _render("page.html.j2", report, images=images(report))


def images(report: Report) -> dict[str, str]:
    """The plots that the report has data for, as `data:` addresses by name."""
    addresses = {}
    for name, figure in plots.figures(report):
        svg = io.BytesIO()
        figure.savefig(svg, format="svg", facecolor="white", metadata={"Date": None})
        encoded = base64.b64encode(svg.getvalue()).decode()
        addresses[name] = f"data:image/svg+xml;base64,{encoded}"
    return addresses


MARKDOWN = ReportFormat("report.md", render_markdown, r"# Compression report: ")
HTML = ReportFormat("report.html", render_html, r".{0,1000}<title>Compression report: ")


def render_card(report: Report, variant_name: str, known: CardFacts | None = None) -> str:
    """The model card of one variant's artifact: README.md with front matter, as hubs read it.

    License, languages and base model are `known` from elsewhere. Without a base model, the report's
    model is named if it is one of the hub. Raises InputError if the report holds no such variant.
    """
    variants = {variant.name: variant for variant in report.variants}
    if variant_name not in variants:
        raise InputError(
            f"the report holds no variant {variant_name!r} to write a model card for; it holds "
            f"{', '.join(variants) or 'none'}{did_you_mean(variant_name, list(variants))}",
            id="variant-unknown",
        )
    variant, known, hub_id = variants[variant_name], known or CardFacts(), facts.hub_id(report)
    if hub_id and not known.base_model:
        known = replace(known, base_model=(hub_id,))
    alone, task = only(report, variant), TASKS[report.task]
    tags = {"heads": "attention-head-pruning", "neurons": "feed-forward-pruning"}
    fields = {name: x for name, x in asdict(known).items() if x} | {
        "pipeline_tag": task.pipeline_tag,
        "library_name": "onnx",
        "tags": ["onnx", "pruned", *(tags[x] for x in facts.lost(variant)), report.model_type],
    }
    # Values are written as JSON, which is YAML whatever they contain; a list of one as that one.
    header = "\n".join(
        f"{key}: {json.dumps(x[0] if len(x) == 1 else x, ensure_ascii=False)}"
        for key, x in fields.items()
    )
    return _render(
        "model_card.md.j2",
        alone,
        front_matter=Markup(header),
        variant=variant,
        task=task,
        limitation=searches.describe(alone).limitation,
        # Hubs ask for these fields of the header.
        lacking=[x for x in ("license", "language", "base_model") if not getattr(known, x)],
    )


def _render(name: str, report: Report, **more: Any) -> str:
    """A template, Markdown or HTML, filled with the report, its tables and its sentences."""
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
