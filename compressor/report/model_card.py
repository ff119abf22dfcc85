"""The model card of an artifact: README.md with front matter, as model hubs read it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from compressor.errors import InputError, did_you_mean
from compressor.model.card import CardFacts
from compressor.report import budgets, facts, numbers, phrases, sentences, tables, unit_tables
from compressor.report.markdown import bullets, escape, escape_line, render_table
from compressor.report.one_variant import only
from compressor.report.schema import Report
from compressor.results import Variant
from compressor.tasks import TASKS

_UNIT_NAMES = {"heads": "attention heads", "neurons": "feed-forward neurons"}
_TAGS = {"heads": "attention-head-pruning", "neurons": "feed-forward-pruning"}


def render_card(report: Report, variant_name: str, known: CardFacts | None = None) -> str:
    """The card of one variant.

    Args:
        known: license, languages and base model; a report does not know them. Without a base model,
            the report's model is named if it looks like a hub id and has a revision, which only hub
            models have.

    Raises:
        InputError: the report holds no such variant.
    """
    names = [variant.name for variant in report.variants]
    if variant_name not in names:
        raise InputError(
            f"the report holds no variant {variant_name!r} to write a model card for; it holds "
            f"{', '.join(names) or 'none'}{did_you_mean(variant_name, names)}",
            id="variant-unknown",
        )
    variant = report.variants[names.index(variant_name)]
    alone = only(report, variant)
    known = known or CardFacts()
    if not known.base_model and facts.hub_id(report):
        known = replace(known, base_model=(str(facts.hub_id(report)),))
    title = f"{variant.name}: {facts.model_name(report)} with fewer {_removed(variant)}"
    blocks = [
        _front_matter(report, variant, known),
        f"# {escape(title)}",
        *_what(alone, variant),
        "## How to use it",
        _loading(report, variant),
        "## Quality against the dense model",
        *bullets(sentences.quality_sentences(alone)),
        *render_table(tables.quality(alone)),
        *render_table(tables.signatures(alone)),
        "## Speed",
        *bullets(sentences.speed_sentences(alone)),
        *render_table(tables.throughput(alone)),
        "## Size",
        *render_table(unit_tables.size(alone)),
        "## How it was made",
        *render_table(tables.origin(alone)),
        "## Limitations",
        *bullets([*_limitations(alone), *_unknown(known)]),
    ]
    return "\n\n".join(blocks) + "\n"


def _front_matter(report: Report, variant: Variant, known: CardFacts) -> str:
    """YAML between dashes; values are written as JSON, which is YAML whatever they contain."""
    methods = [_TAGS[units] for units in facts.lost(variant)]
    fields: dict[str, str | Sequence[str]] = {
        "pipeline_tag": TASKS[report.task].pipeline_tag,
        "library_name": "onnx",
        "tags": ["onnx", "pruned", *methods, report.model_type],
    }
    said = {name: value for name, value in asdict(known).items() if value}
    fields = {name: _one_or_all(value) for name, value in said.items()} | fields
    lines = [f"{key}: {json.dumps(text, ensure_ascii=False)}" for key, text in fields.items()]
    return "\n".join(["---", *lines, "---"])


def _one_or_all(value: str | Sequence[str]) -> str | Sequence[str]:
    return value[0] if len(value) == 1 and not isinstance(value, str) else value


def _unknown(known: CardFacts) -> list[str]:
    """What the header lacks that hubs ask for, and how to say it."""
    names = {"license": "license", "language": "language", "base_model": "base model"}
    lacking = {name: text for name, text in names.items() if not getattr(known, name)}
    if not lacking:
        return []
    flags = [f"--card-{name.replace('_', '-')}" for name in lacking]
    return [
        f"The header of this card does not say {phrases.join(list(lacking.values()))}, which the "
        f"dense model's card does not tell; {phrases.join(flags)} of compress run "
        f"{'do' if len(flags) > 1 else 'does'}."
    ]


def _removed(variant: Variant) -> str:
    return phrases.join([_UNIT_NAMES[units] for units in facts.lost(variant)])


def _what(report: Report, variant: Variant) -> list[str]:
    kinds = phrases.join(
        [
            f"{facts.kept(variant, kind):,} of {facts.total(variant, kind):,} "
            f"in {facts.kind_label(kind)}"
            for kind in facts.kinds(report)
        ]
    )
    parameters = numbers.change(variant.parameters, report.dense.parameters)
    work = phrases.work(variant)
    text = (
        f"A {report.model_type} model for {report.task} from which {_removed(variant)} were "
        f"physically removed: it keeps {phrases.units(variant)}, {kinds}. It has "
        f"{variant.parameters:,} parameters ({parameters} against dense)"
        f"{f' and {work}' if work else ''}."
    )
    return [
        escape_line(text),
        escape_line(sentences.verdict(report)),
        *bullets(sentences.emptied_sentences(report)),
    ]


def _loading(report: Report, variant: Variant) -> str:
    task = TASKS[report.task]
    module, _, runtime = task.runtime.partition(":")
    builds = facts.precisions(report, variant)
    precisions = ""
    if len(builds) > 1:
        names = phrases.join([f'`precision="{build.precision}"`' for build in builds])
        default = facts.default_build(report, variant).precision
        precisions = f"\n\nThe graphs come in {names}; without one it is {default}."
    return f"""\
From ONNX, without PyTorch, in the directory this file is in. For serving, the package
`compress-heads-runtime` is enough (`pip install 'compress-heads-runtime[cpu]'`, or `[cuda]`); it is
part of `compress-heads`, too:

```python
from {module} import {runtime}

model = {runtime}(".")
{task.usage}
```{precisions}

As a PyTorch module with the package `compress-heads`:

```python
import compressor

model = compressor.load(".")
```

As a PyTorch module with transformers 5 alone, which runs `modeling_pruned.py` from this directory:

```python
from transformers import {task.auto_class}

model = {task.auto_class}.from_pretrained(".", trust_remote_code=True)
```

Without `trust_remote_code=True` transformers expects the dense model's sizes in every layer."""


def _limitations(report: Report) -> list[str]:
    if report.test is None:
        data = "Quality was not measured; test the model on data of your own before using it."
    else:
        data = (
            f"Quality was measured on {report.test.rows:,} rows of "
            f"{phrases.join(report.test.files)} (SHA-256 {report.test.sha256}); other domains, "
            "lengths and languages can lose more, and the intervals account for the choice of "
            "these rows only."
        )
    lines = [data]
    if limitation := budgets.search(report).limitation:
        lines.append(limitation)
    if report.calibration is not None:
        lines.append(
            f"{facts.units_title(report)} were chosen on {report.calibration.rows:,} rows of "
            f"{phrases.join(report.calibration.files)}; abilities that those rows do not need "
            "may have been lost."
        )
    if report.throughput is not None:
        hardware = ", ".join(f"{key} {text}" for key, text in report.hardware.items())
        lines.append(
            f"Speed was measured with {report.throughput.provider} on {report.throughput.device} "
            f"({hardware}) in {report.throughput.precision}; other hardware, batch sizes and "
            "lengths give other ratios."
        )
    lines.append("Limitations and biases of the dense model remain.")
    return lines
