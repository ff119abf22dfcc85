"""Each head removed alone: how much does the metric change, and is the change significant?

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", section 3.2 and table 1,
with a paired test per head.
"""

from __future__ import annotations

from compressor.importance.ablation_runs import outputs_without_units
from compressor.report.facts import MetricStyle, kind_label
from compressor.report.table import ReportTable
from compressor.study.effects import (
    MARKS,
    Effect,
    MeasuredModel,
    cells,
    corrected,
    count_significant,
    mark,
    significance_sentences,
    unit_of,
)
from compressor.study.inputs import StudyInputs
from compressor.study.options import HeadsStudy
from compressor.study.output import Result, table
from compressor.study.plotting import by_kind, heat_map


def study(request: HeadsStudy, inputs: StudyInputs) -> Result:
    """Remove every head alone and compare with the dense model."""
    measured = MeasuredModel(inputs, request.evaluation)
    style, layers = measured.style, inputs.checkpoint.attention
    inputs.progress.message(f"removing each of {sum(x.units for x in layers)} heads alone …")
    with inputs.scoring(inputs.checkpoint.model, layers, measured.batches) as scoring:
        _, answers = outputs_without_units(scoring, layers, request.evaluation.num_beams)
    heads = [(layer.name, head) for layer in layers for head in range(layer.units)]
    effects = []
    for done, key in enumerate(heads, 1):
        effects.append({"head": key[1], **measured.effect(answers[key])})
        inputs.progress.update("heads compared", done, len(heads))
    tests = corrected(effects)  # for the number of all heads together
    by_layer: dict[str, list[Effect]] = {layer.name: [] for layer in layers}
    for (name, _), test in zip(heads, tests, strict=True):
        by_layer[name].append(test)
    data = {**measured.facts(), **count_significant(tests), "layers": by_layer}
    free = sum(test["difference"] >= 0 for test in tests)
    return Result(
        title=f"Each head of {inputs.checkpoint.name} removed alone",
        data=data,
        sentences=[
            f"All heads: {style.title} {style.score(data['dense'])} on {len(measured.dense)} rows.",
            f"Removing one head: {free} of {len(tests)} heads cost nothing.",
            *significance_sentences(data, "heads"),
        ],
        tables=[
            _grid(kind, {name: by_layer[name] for name in names}, style)
            for kind, names in by_kind(by_layer).items()
        ],
        details=[
            table(
                "Every head: 95% interval of the change by paired bootstrap; two-sided p-values "
                "without correction, after Benjamini-Hochberg's and after Holm's.",
                "layer, head, change, 95% interval, p, p (BH), p (Holm)",
                [
                    (name, str(head), *cells(test, style))
                    for (name, head), test in zip(heads, tests, strict=True)
                ],
            )
        ],
        draw=lambda: heat_map(
            {name: [test["difference"] for test in row] for name, row in by_layer.items()},
            {key for key, test in zip(heads, tests, strict=True) if mark(test)},
            f"change in {unit_of(style)}",
        ),
    )


def _grid(kind: str, layers: dict[str, list[Effect]], style: MetricStyle) -> ReportTable:
    """The change without each head: a row per layer, a column per head."""
    width = max(map(len, layers.values()))
    rows = []
    for name, tests in layers.items():
        changes = [style.difference(test["difference"]) + mark(test) for test in tests]
        rows.append((name.rpartition(".")[2], *changes, *[""] * (width - len(changes))))
    titles = ", ".join(["layer", *(f"head {head}" for head in range(width))])
    caption = f"Change in {style.title} without one head of {kind_label(kind)}; {MARKS}."
    return table(caption, titles, rows)
