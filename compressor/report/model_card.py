"""The model card of an artifact: README.md with front matter, as model hubs read it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from markupsafe import Markup

from compressor.errors import InputError, did_you_mean
from compressor.model.card import CardFacts
from compressor.report import facts, phrases, searches
from compressor.report.page import render_template
from compressor.report.publish import only
from compressor.report.schema import Report
from compressor.results import Variant
from compressor.tasks import TASKS


def render_card(report: Report, variant_name: str, known: CardFacts | None = None) -> str:
    """The card of one variant; raises InputError if the report holds no such variant.

    License, languages and base model are `known` from elsewhere. Without a base model, the report's
    model is named if it is one of the hub.
    """
    names = [variant.name for variant in report.variants]
    if variant_name not in names:
        raise InputError(
            f"the report holds no variant {variant_name!r} to write a model card for; it holds "
            f"{', '.join(names) or 'none'}{did_you_mean(variant_name, names)}",
            id="variant-unknown",
        )
    variant = report.variants[names.index(variant_name)]
    known = known or CardFacts()
    if not known.base_model and facts.hub_id(report):
        known = replace(known, base_model=(str(facts.hub_id(report)),))
    alone, task = only(report, variant), TASKS[report.task]
    module, _, runtime = task.runtime.partition(":")
    unit_names = {"heads": "attention heads", "neurons": "feed-forward neurons"}
    removed = phrases.join([unit_names[units] for units in facts.lost(variant)])
    kinds = [
        f"{facts.kept(variant, kind):,} of {facts.total(variant, kind):,} in "
        f"{facts.kind_label(kind)}"
        for kind in facts.kinds(report)
    ]
    # Hubs ask for these fields of the header.
    lacking = [x for x in ("license", "language", "base_model") if not getattr(known, x)]
    return render_template(
        "model_card.md.j2",
        alone,
        front_matter=Markup(_front_matter(report, variant, known)),
        heading=f"{variant.name}: {facts.model_name(report)} with fewer {removed}",
        variant=variant,
        removed=removed,
        kinds=phrases.join(kinds),
        task=task,
        module=module,
        runtime=runtime,
        limitation=searches.describe(alone).limitation,
        lacking=phrases.join([name.replace("_", " ") for name in lacking]),
        flags=phrases.join([f"--card-{name.replace('_', '-')}" for name in lacking]),
    )


def _front_matter(report: Report, variant: Variant, known: CardFacts) -> str:
    """YAML between dashes; values are written as JSON, which is YAML whatever they contain."""
    tags = {"heads": "attention-head-pruning", "neurons": "feed-forward-pruning"}
    fields: dict[str, str | Sequence[str]] = {
        name: value[0] if isinstance(value, tuple) and len(value) == 1 else value
        for name, value in asdict(known).items()
        if value
    }
    fields |= {
        "pipeline_tag": TASKS[report.task].pipeline_tag,
        "library_name": "onnx",
        "tags": ["onnx", "pruned", *(tags[x] for x in facts.lost(variant)), report.model_type],
    }
    return "\n".join(f"{key}: {json.dumps(x, ensure_ascii=False)}" for key, x in fields.items())
