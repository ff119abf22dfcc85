"""The model card of an artifact: README.md with front matter, as hubs read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from markupsafe import Markup

from compressor.errors import InputError, did_you_mean
from compressor.model.sublayers import TOKEN_KIND
from compressor.report import facts, numbers, sentences
from compressor.report.build_view import build_view
from compressor.report.card_facts import CardFacts
from compressor.report.page import render_template
from compressor.report.publish import only
from compressor.report.schema import Report
from compressor.report.view import ReportView
from compressor.steps.results import Variant
from compressor.tasks import TASKS

# Hubs ask for these fields of the front matter.
_ASKED = ("license", "language", "base_model")
_TAGS = {
    "heads": "attention-head-pruning",
    "neurons": "feed-forward-pruning",
    "tokens": "token-pruning",
}
_UNITS = {"heads": "attention heads", "neurons": "feed-forward neurons"}


@dataclass(frozen=True)
class CardView:
    """The parts of a card that the report's view does not have."""

    front_matter: Markup
    name: str
    fewer: str  # units that it has fewer of, in words
    removed: str  # those of them that the weights lack; empty if only tokens were left out
    kept: str  # units of each kind, in words
    handed_on: str  # which share of the tokens; empty: all
    parameters: str  # with the change against dense
    runtime_module: str
    runtime_class: str
    usage: str  # a line of Python
    auto_class: str  # of transformers
    precisions: tuple[str, ...]
    default_precision: str
    limitations: tuple[str, ...]


def render_card(report: Report, variant_name: str, known: CardFacts | None = None) -> str:
    """Write the model card of one variant's artifact.

    Args:
        report: The report that holds the variant.
        variant_name: The variant's name.
        known: License, languages and base model, from elsewhere. Without a base model, the
            report's model is named if it is one of the hub.

    Returns:
        The text of README.md.

    Raises:
        InputError: The report holds no such variant.
    """
    variants = {variant.name: variant for variant in report.variants}
    if variant_name not in variants:
        raise InputError(
            f"the report holds no variant {variant_name!r} to write a model card for; it holds "
            f"{', '.join(variants) or 'none'}{did_you_mean(variant_name, list(variants))}",
            id="variant-unknown",
        )
    known, hub_id = known or CardFacts(), facts.hub_id(report)
    if hub_id and not known.base_model:
        known = replace(known, base_model=(hub_id,))
    variant = variants[variant_name]
    view = build_view(only(report, variant))
    card = _card_view(view, variant, known)
    return render_template("model_card.md.j2", view, card=card)


def _card_view(view: ReportView, variant: Variant, known: CardFacts) -> CardView:
    report, task = view.report, TASKS[view.report.task]
    module, runtime = task.runtime.split(":")
    kinds = [
        f"{facts.kept(variant, kind):,} of {facts.total(variant, kind):,} in "
        f"{facts.kind_label(kind)}"
        for kind in facts.kinds(report)
        if kind != TOKEN_KIND
    ]
    lost = facts.lost(variant)
    removed = [_UNITS[units] for units in lost if units in _UNITS]
    tokens = sentences.tokens_handed_on(variant.handed_on) if "tokens" in lost else ""
    change = numbers.change(variant.parameters, report.dense.parameters)
    return CardView(
        front_matter=_front_matter(report, variant, known),
        name=variant.name,
        fewer=numbers.join([_UNITS.get(units, units) for units in lost]),
        removed=numbers.join(removed),
        kept=numbers.join(kinds),
        handed_on=tokens,
        parameters=f"{variant.parameters:,} parameters ({change} against dense)",
        runtime_module=module,
        runtime_class=runtime,
        usage=task.usage,
        auto_class=task.auto_class,
        precisions=tuple(build.precision for build in facts.precisions(report, variant)),
        default_precision=facts.default_build(report, variant).precision,
        limitations=tuple(_limitations(view, known)),
    )


def _front_matter(report: Report, variant: Variant, known: CardFacts) -> Markup:
    """The front matter. Values are JSON, which is YAML, too; a list of one item is that item."""
    fields = {name: x for name, x in asdict(known).items() if x} | {
        "pipeline_tag": TASKS[report.task].pipeline_tag,
        "library_name": "onnx",
        "tags": ["onnx", "pruned", *(_TAGS[x] for x in facts.lost(variant)), report.model_type],
    }
    lines = (
        f"{key}: {json.dumps(x[0] if len(x) == 1 else x, ensure_ascii=False)}"
        for key, x in fields.items()
    )
    return Markup("\n".join(lines))


def _limitations(view: ReportView, known: CardFacts) -> Iterator[str]:
    report = view.report
    if report.test:
        yield (
            f"Quality was measured on {report.test.rows:,} rows of "
            f"{' and '.join(report.test.files)} (SHA-256 {report.test.sha256}); other domains, "
            "lengths and languages can lose more, and the intervals account for the choice of "
            "these rows only."
        )
    else:
        yield ("Quality was not measured; test the model on data of your own before using it.")
    if view.search.limitation:
        yield view.search.limitation
    if report.calibration:
        yield (
            f"{view.units.title} were chosen on {report.calibration.rows:,} rows of "
            f"{' and '.join(report.calibration.files)}; abilities that those rows do not need may "
            "have been lost."
        )
    if timed := report.throughput:
        machine = ", ".join(f"{key} {text}" for key, text in report.hardware.items())
        yield (
            f"Speed was measured with {timed.provider} on {timed.device} ({machine}) in "
            f"{timed.precision}; other hardware, batch sizes and lengths give other ratios."
        )
    else:
        yield "Speed was not measured."
    yield "Limitations and biases of the dense model remain."
    if lacking := [name for name in _ASKED if not getattr(known, name)]:
        options = ", ".join(f"--card-{name}" for name in lacking).replace("_", "-")
        yield (
            f"The header of this card does not say {numbers.join(lacking)}, which the dense "
            f"model's card lacks; set {'it' if len(lacking) == 1 else 'them'} with {options} of "
            "compress run."
        ).replace("base_model", "base model")
