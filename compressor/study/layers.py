"""One layer at a time keeps a single head: how many layers need more than one?

Michel, Levy & Neubig 2019, section 3.3 and tables 2 and 3. The head is chosen on calibration rows,
the metric is measured on test rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from compressor.errors import UsageError
from compressor.importance import ScoringMethod
from compressor.importance.ablation_runs import losses_alone
from compressor.model.sublayers import Mask
from compressor.pipeline.inputs import DataRows
from compressor.report.facts import MetricStyle, kind_label
from compressor.report.plots import COLORS, MARKERS
from compressor.study import quality as q
from compressor.study.inputs import StudiedModel
from compressor.study.options import LayersStudy
from compressor.study.output import Result, by_kind, legend, panel, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def study(model: StudiedModel, rows: DataRows, options: LayersStudy) -> Result:
    """Remove all heads of a layer but its best one, and compare with the dense model."""
    best, how = best_heads(model, rows, options.method)
    quality = q.MeasuredQuality(model, rows, options.evaluation)
    style = quality.style
    effects = []
    for layer in model.layers:
        model.progress.message(f"leaving {layer.name} one of {layer.units} heads …")
        head = best[layer.name]
        others = [(layer.name, other) for other in range(layer.units) if other != head]
        effect = quality.without(Mask.full(model.layers).without(others))
        effects.append({"layer": layer.name, "heads": layer.units, "head": head, **effect})
    tests = q.corrected(effects)
    data = {**quality.facts(), "chosen_by": how, **q.count_significant(tests), "layers": tests}
    worst = min(tests, key=lambda test: test["difference"])
    loss = f"The largest loss is in {worst['layer']}: {style.difference(worst['difference'])}."
    return Result(
        title=f"One head per layer of {model.checkpoint.name}",
        data=data,
        sentences=[
            f"All heads: {style.title} {style.score(data['dense'])}; each layer's one head "
            f"chosen by {how}.",
            loss if worst["difference"] < 0 else "No layer loses anything.",
            *q.significance_sentences(data, "layers"),
        ],
        tables=[
            table(
                f"One layer at a time keeps its best head alone, the others all heads; {q.MARKS}.",
                f"layer, head kept, {style.title}, change, 95% interval, p, p (BH), p (Holm)",
                [
                    (
                        test["layer"],
                        f"{test['head']} of {test['heads']}",
                        style.score(test["value"]),
                        *q.cells(test, style, q.mark(test)),
                    )
                    for test in tests
                ],
            )
        ],
        figure=_figure(style, tests),
    )


def best_heads(
    model: StudiedModel, rows: DataRows, method: ScoringMethod | None
) -> tuple[dict[str, int], str]:
    """The head that each layer keeps, the best one alone or by its score, and how it was chosen."""
    if method is not None:
        scores = model.score(method, rows.calibration)
        best = {name: values.index(max(values)) for name, values in scores.values.items()}
        return best, f"highest score: {scores.signature}"
    if rows.calibration is None:
        raise UsageError(
            "`compress study layers` needs --calibration FILE to choose each layer's head on",
            id="calibration-missing",
        )
    model.progress.message("losses of each head alone …")
    # On other rows than the metric, which would otherwise flatter the heads chosen by it.
    with model.scoring(model.batches(rows.calibration)) as scoring:
        losses = losses_alone(scoring)
    best = {name: values.index(min(values)) for name, values in losses.items()}
    return best, "lowest loss on the calibration rows of the head alone in its layer"


def _figure(style: MetricStyle, tests: Sequence[q.Effect]) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure, axes = panel(5.2, 3.4)
    axes.axhline(0, color="#666666", linestyle="--", linewidth=1.2)
    effects = {test["layer"]: test for test in tests}
    kinds = by_kind(effects)
    for i, (kind, names) in enumerate(kinds.items()):
        # Kinds beside each other, not on top of each other.
        shift = 0.12 * (i - (len(kinds) - 1) / 2)
        for x, name in enumerate(names):
            axes.plot([x + shift] * 2, effects[name]["interval"], color=COLORS[i], marker="_")
        axes.plot(
            [x + shift for x in range(len(names))],
            [effects[name]["difference"] for name in names],
            MARKERS[i],
            color=COLORS[i],
            label=kind_label(kind),
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer that has one head left")
    axes.set_ylabel(f"change in {q.unit_of(style)}")
    axes.set_title("bars: 95% interval", loc="left", fontsize=9)
    legend(figure, axes)
    return figure
