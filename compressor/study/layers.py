"""One layer at a time keeps a single head: how many layers need more than one?

Michel, Levy & Neubig 2019, section 3.3 and tables 2 and 3. The head is chosen on calibration rows,
the metric is measured on test rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from compressor.errors import UsageError
from compressor.importance.ablation_runs import losses_alone
from compressor.model.sublayers import Mask, Sublayer
from compressor.report.facts import kind_label
from compressor.report.plots import COLORS, MARKERS
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
from compressor.study.job import Job, answer, dense_answers, judge, make_batches, score, scoring
from compressor.study.options import LayersStudy
from compressor.study.output import Result, table
from compressor.study.plotting import by_kind, legend, panel
from compressor.tasks import Batch

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def study(job: Job[LayersStudy]) -> Result:
    """Remove all heads of a layer but its best one, and compare with the dense model."""
    best, how = _best_heads(job)
    batches = make_batches(job, job.checkpoint, job.rows["test"])
    dense, whole = dense_answers(job, batches)
    layers = job.checkpoint.attention
    effects = [
        job.workspace.stage(
            f"alone-{layer.name}",
            f"leaving {layer.name} one of {layer.units} heads",
            partial(_layer, job, batches, dense, layer, best[layer.name]),
            Effect,
        )
        for layer in layers
    ]
    tests = corrected(effects)
    metric = MetricText(job.metric)
    data = {
        **job.facts(),
        **whole,
        "chosen_by": how,
        "resamples": job.request.evaluation.resamples,
        **count_significant(tests),
        "at_floor": any(effect.at_floor for effect in effects),
        "layers": [
            {"layer": x.name, "heads": x.units, "head": best[x.name], **test.to_json()}
            for x, test in zip(layers, tests, strict=True)
        ],
    }
    by_layer = {layer.name: effect for layer, effect in zip(layers, effects, strict=True)}
    return Result(
        title=f"One head per layer of {job.checkpoint.name}",
        data=data,
        sentences=[
            f"All heads: {metric.label} {metric.value(data['dense'])}; each layer's one head "
            f"chosen by {how}.",
            _largest_loss(by_layer, metric),
            *significance_sentences(data, "layers"),
        ],
        tables=[_table(layers, best, tests, metric)],
        draw=lambda: _figure(metric, by_layer),
    )


def _best_heads(job: Job[LayersStudy]) -> tuple[dict[str, int], str]:
    """The head that each layer keeps: the best one alone or, with a method, by its score.

    Returns:
        Layer name -> head, and how the heads were chosen, in words.
    """
    if job.request.scoring is not None:
        scores = score(job, job.checkpoint, job.rows.get("calibration"))
        best = {name: values.index(max(values)) for name, values in scores.values.items()}
        return best, f"highest score: {scores.signature}"
    if "calibration" not in job.rows:
        raise UsageError(
            "`compress study layers` needs --calibration FILE to choose each layer's head on",
            id="calibration-missing",
        )
    # On other rows than the metric, which would otherwise flatter the heads chosen by it.
    losses = job.workspace.stage(
        "losses", "losses of each head alone", lambda: _losses(job), dict[str, list[float]]
    )
    best = {name: values.index(min(values)) for name, values in losses.items()}
    return best, "lowest loss on the calibration rows of the head alone in its layer"


def _losses(job: Job[LayersStudy]) -> dict[str, list[float]]:
    checkpoint = job.checkpoint
    batches = make_batches(job, checkpoint, job.rows["calibration"])
    with scoring(job, checkpoint.model, checkpoint.attention, batches) as subject:
        return losses_alone(subject)


def _layer(
    job: Job[LayersStudy],
    batches: Sequence[Batch],
    dense: Sequence[str],
    layer: Sublayer,
    head: int,
) -> Effect:
    others = [(layer.name, other) for other in range(layer.units) if other != head]
    mask = Mask.full(job.checkpoint.attention).without(others)
    return judge(job, dense, answer(job, job.checkpoint, batches, mask))


def _largest_loss(effects: dict[str, Effect], metric: MetricText) -> str:
    worst = min(effects, key=lambda name: effects[name].difference)
    loss = effects[worst].difference
    if loss < 0:
        return f"The largest loss is in {worst}: {metric.change(loss)}."
    return "No layer loses anything."


def _table(
    layers: Sequence[Sublayer], best: dict[str, int], tests: Sequence[Corrected], metric: MetricText
) -> ReportTable:
    return table(
        f"One layer at a time keeps its best head alone, the others all heads; {MARKS}.",
        f"layer, head kept, {metric.label}, change, 95% interval, p, p (BH), p (Holm)",
        [
            (
                x.name,
                f"{best[x.name]} of {x.units}",
                metric.value(test.effect.value),
                *metric.cells(test, test.mark),
            )
            for x, test in zip(layers, tests, strict=True)
        ],
    )


def _figure(metric: MetricText, effects: dict[str, Effect]) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure, axes = panel(5.2, 3.4)
    axes.axhline(0, color="#666666", linestyle="--", linewidth=1.2)
    kinds = by_kind(effects)
    for i, (kind, names) in enumerate(kinds.items()):
        # Kinds beside each other, not on top of each other.
        shift = 0.12 * (i - (len(kinds) - 1) / 2)
        for x, name in enumerate(names):
            axes.plot([x + shift] * 2, effects[name].interval, color=COLORS[i], marker="_")
        axes.plot(
            [x + shift for x in range(len(names))],
            [effects[name].difference for name in names],
            MARKERS[i],
            color=COLORS[i],
            label=kind_label(kind),
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer that has one head left")
    axes.set_ylabel(f"change in {metric.unit}")
    axes.set_title("bars: 95% interval", loc="left", fontsize=9)
    legend(figure, axes)
    return figure
