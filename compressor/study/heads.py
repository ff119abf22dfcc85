"""Each head removed alone: how much does the metric change, and is the change significant?

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", section 3.2 and table 1,
with a paired test per head.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from compressor.importance.ablation_runs import answers_without_units
from compressor.model.sublayers import Sublayer
from compressor.report.facts import kind_label
from compressor.report.table import ReportTable
from compressor.study.effects import (
    MARKS,
    Corrected,
    Effect,
    MetricText,
    corrected,
    count_significant,
    significance_sentences,
)
from compressor.study.job import Job, dense_answers, judge, make_batches, scoring
from compressor.study.options import HeadsStudy
from compressor.study.output import Result, table
from compressor.study.plotting import by_kind, heat_map
from compressor.tasks import Batch

Tests = dict[str, list[Corrected]]  # layer name -> a test for each head


def study(job: Job[HeadsStudy]) -> Result:
    """Remove every head alone and compare with the dense model."""
    batches = make_batches(job, job.checkpoint, job.rows["test"])
    dense, whole = dense_answers(job, batches)
    effects: dict[str, list[Effect]] = {}
    # A stage for each layer: a study that is stopped loses no more than one.
    for layer in job.checkpoint.attention:
        effects[layer.name] = job.workspace.stage(
            f"without-{layer.name}",
            f"removing each of {layer.units} heads of {layer.name}",
            partial(_layer, job, batches, dense, layer),
            list[Effect],
        )
    tests = corrected([effect for by_head in effects.values() for effect in by_head])
    # The correction looks at all heads together; its results go back to their layers.
    in_order = iter(tests)
    layers = {name: [next(in_order) for _ in by_head] for name, by_head in effects.items()}
    metric = MetricText(job.metric)
    data = {
        **job.facts(),
        **whole,
        "resamples": job.request.evaluation.resamples,
        **count_significant(tests),
        "at_floor": any(test.effect.at_floor for test in tests),
        "layers": {
            name: [{"head": head, **test.to_json()} for head, test in enumerate(by_head)]
            for name, by_head in layers.items()
        },
    }
    free = sum(test.effect.difference >= 0 for test in tests)
    return Result(
        title=f"Each head of {job.checkpoint.name} removed alone",
        data=data,
        sentences=[
            f"All heads: {metric.label} {metric.value(data['dense'])} on {len(dense)} rows.",
            f"Removing one head: {free} of {len(tests)} heads cost nothing.",
            *significance_sentences(data, "heads"),
        ],
        tables=[
            _grid(kind, {name: layers[name] for name in names}, metric)
            for kind, names in by_kind(layers).items()
        ],
        details=[_details(layers, metric)],
        draw=lambda: heat_map(
            {name: [x.effect.difference for x in by_head] for name, by_head in layers.items()},
            {(name, head) for name, by_head in layers.items()
             for head, test in enumerate(by_head) if test.mark},
            f"change in {metric.unit}",
        ),
    )  # fmt: skip


def _layer(
    job: Job[HeadsStudy], batches: Sequence[Batch], dense: Sequence[str], layer: Sublayer
) -> list[Effect]:
    model, layers = job.checkpoint.model, job.checkpoint.attention
    with scoring(job, model, layers, batches) as subject:
        beams = job.request.evaluation.num_beams
        _, answers = answers_without_units(subject, [layer], beams)
    return [judge(job, dense, answers[layer.name, head]) for head in range(layer.units)]


def _grid(kind: str, layers: Tests, metric: MetricText) -> ReportTable:
    """The change without each head: a row per layer, a column per head."""
    width = max(map(len, layers.values()))
    rows = []
    for name, by_head in layers.items():
        cells = [metric.change(test.effect.difference) + test.mark for test in by_head]
        rows.append((name.rpartition(".")[2], *cells, *[""] * (width - len(cells))))
    titles = ", ".join(["layer", *(f"head {head}" for head in range(width))])
    caption = f"Change in {metric.label} without one head of {kind_label(kind)}; {MARKS}."
    return table(caption, titles, rows)


def _details(layers: Tests, metric: MetricText) -> ReportTable:
    return table(
        "Every head: 95% interval of the change by paired bootstrap; two-sided p-values without "
        "correction, after Benjamini-Hochberg's and after Holm's.",
        "layer, head, change, 95% interval, p, p (BH), p (Holm)",
        [
            (name, str(head), *metric.cells(test))
            for name, by_head in layers.items()
            for head, test in enumerate(by_head)
        ],
    )
