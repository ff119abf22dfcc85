"""What removing heads does to the metric: each alone, all of a layer but one, more and more.

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", sections 3 to 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.stats import false_discovery_control
from torch import nn

from compressor.budgets.units import HEADS, select
from compressor.errors import UsageError
from compressor.evaluation import compare_rows, main_metric, metrics_of
from compressor.importance.ablation_runs import losses_alone, outputs_without_units
from compressor.model.sublayers import Mask, Scores
from compressor.model.surgery import prune
from compressor.pipeline.inputs import encode
from compressor.pipeline.recover import recover
from compressor.pipeline.values import DataRows, ModelAndRows, RecoveryPlan
from compressor.report import numbers
from compressor.report.facts import SIGNIFICANCE, MetricStyle, kind_label, metric_style, significant
from compressor.report.plots import COLORS, DENSE, INK, MARKERS
from compressor.report.table import Column
from compressor.study.options import CurveStudy, HeadsStudy, LayersStudy, Testing
from compressor.study.run import (
    Result,
    StudiedModel,
    by_kind,
    draw_lines,
    head_panels,
    legend,
    panels,
    table,
)

# The main metric (`value`) of a model with fewer heads against the `dense` one's on the same rows:
# `difference` in points, its 95 % `interval`, two-sided `p`, all `metrics`, whether the dense value
# is the metric's floor (`at_floor`); after `corrected` also `p_holm` and `p_bh`.
Effect = dict[str, Any]


class MeasuredQuality:
    """A dense model's outputs for the test rows, and what the metric loses with fewer heads."""

    def __init__(self, model: StudiedModel, rows: DataRows, settings: Testing) -> None:
        assert rows.test is not None
        self.model, self.rows, self.settings = model, rows.test, settings
        self.batches = model.batches(self.rows)
        model.progress.message(f"evaluating all heads on {len(self.rows.sources)} rows …")
        self.dense = self.outputs()
        self.value, signature = main_metric(self.rows, self.dense)
        if "--num-beams" in model.task.options:
            signature += f"|beams:{settings.num_beams or 1}"
        self.metric = metrics_of(self.rows)[0]
        self.style = metric_style(self.metric)
        points = "points of " if self.style.unit == "%" else ""
        self.axis = f"change in {points}{self.style.label}"
        self.text = f"All heads: {self.style.title} {self.style.score(self.value)}"
        self.facts = {  # for the JSON file
            "metric": self.metric,
            "dense": self.value,
            "signature": signature,
            "resamples": settings.resamples,
        }

    def outputs(self, mask: Mask | None = None, network: nn.Module | None = None) -> list[str]:
        """A model's outputs for all rows, in their order; arguments as of `scoring`."""
        # A head with a gate of 0 equals a removed one, and the model stays whole.
        with self.model.scoring(self.batches, mask=mask, network=network) as scoring:
            return outputs_without_units(scoring, [], self.settings.num_beams)[0]

    def effect(self, outputs: Sequence[str]) -> Effect:
        resamples, seed = self.settings.resamples, self.model.seed
        comparisons = compare_rows(self.rows, self.dense, outputs, resamples, seed)
        main = comparisons[0]
        return {
            "dense": main.dense,
            "value": main.pruned,
            "difference": main.difference,
            "interval": main.interval,
            "p": main.p_value,
            "metrics": {one.metric: one.pruned for one in comparisons},
            "at_floor": main.at_floor,
        }

    def without(self, mask: Mask) -> Effect:
        """The metric's change when the heads that a mask removes are silenced."""
        return self.effect(self.dense if mask.count() == mask.total() else self.outputs(mask))

    def corrected(
        self, effects: Sequence[Effect], what: str
    ) -> tuple[list[Effect], dict[str, Any], str]:
        """Effects with `p_holm` and `p_bh`; how many are significant; and this in a sentence."""
        p_values = [effect["p"] for effect in effects]
        p_bh = false_discovery_control(p_values, method="bh").tolist()
        adjusted = zip(effects, holm(p_values), p_bh, strict=True)
        tests = [effect | {"p_holm": p, "p_bh": share} for effect, p, share in adjusted]
        count = len(tests)
        counts = {"tests": count, "level": SIGNIFICANCE, "expected_by_chance": SIGNIFICANCE * count}
        for kind in ("", "_bh", "_holm"):
            counts[f"significant{kind}"] = sum(is_significant(test, f"p{kind}") for test in tests)
        counts["at_floor"] = any(test["at_floor"] for test in tests)
        sentence = (
            f"At the 5% level {counts['significant']} of {count} {what} change the metric "
            f"significantly; up to {numbers.fixed(counts['expected_by_chance'], 1)} would by "
            f"chance if none had an effect. Corrected for {count} tests: "
            f"{counts['significant_bh']} (Benjamini-Hochberg), {counts['significant_holm']} (Holm)."
        )
        return tests, counts, sentence


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm 1979: the chance of even one false discovery stays below them."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    # The smallest is multiplied by all n, the next by n - 1, …; none falls below the one before.
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted.tolist()


def is_significant(effect: Effect, p: str = "p") -> bool:
    # Only p-values are corrected; the interval is that of the single test.
    return significant(effect[p], effect["interval"])


def mark(effect: Effect) -> str:
    """`**` significant after Holm's correction, `*` after Benjamini & Hochberg's."""
    return "**" if is_significant(effect, "p_holm") else "*" * is_significant(effect, "p_bh")


def effect_cells(effect: Effect, style: MetricStyle, mark: str = "") -> tuple[str, ...]:
    """Change, interval and p-values, without correction and, if it is corrected, by BH and Holm."""
    change = style.difference(effect["difference"]) + mark
    p_values = (numbers.p_value(effect[p]) for p in ("p", "p_bh", "p_holm") if p in effect)
    return change, style.interval(effect["interval"]), *p_values


def heads(model: StudiedModel, rows: DataRows, options: HeadsStudy) -> Result:
    quality = MeasuredQuality(model, rows, options.evaluation)
    style, progress = quality.style, model.progress
    heads = [(layer.name, head) for layer in model.layers for head in range(layer.units)]
    progress.message(f"removing each of {len(heads)} heads alone …")
    with model.scoring(quality.batches) as scoring:
        _, outputs = outputs_without_units(scoring, model.layers, options.evaluation.num_beams)
    effects = []
    for done, (name, head) in enumerate(heads, 1):
        effects.append({"head": head, **quality.effect(outputs[name, head])})
        progress.update("heads compared", done, len(heads))
    tests, counts, significance = quality.corrected(effects, "heads")  # all heads together
    rest = iter(tests)
    layers = {layer.name: [next(rest) for _ in range(layer.units)] for layer in model.layers}
    grids = []  # a row per layer, a column per head
    for kind, names in by_kind(layers).items():
        cells = []
        for name in names:
            changes = (style.difference(x["difference"]) + mark(x) for x in layers[name])
            cells.append((name.rpartition(".")[2], *changes))
        titles = [Column(f"head {test['head']}") for test in layers[names[0]]]
        label = kind_label(kind)
        grids.append(table("one-head", cells, more=titles, metric=style.title, kind=label))
    every = [(*map(str, x), *effect_cells(y, style)) for x, y in zip(heads, tests, strict=True)]
    free = sum(test["difference"] >= 0 for test in tests)
    return Result(
        title=f"Each head of {model.checkpoint.name} removed alone",
        data={**quality.facts, **counts, "layers": layers},
        sentences=[
            f"{quality.text} on {len(quality.dense)} rows.",
            f"Removing one head: {free} of {len(tests)} heads cost nothing.",
            significance,
        ],
        tables=grids,
        details=[table("every-head", every)],
        figure=_heads_figure(layers, quality.axis),
    )


def _heads_figure(layers: Mapping[str, Sequence[Effect]], label: str) -> Figure:
    figure, panels = head_panels({name: len(tests) for name, tests in layers.items()})
    # The same range to both sides, so that white is no change; any range where all are zero.
    limit = max(abs(test["difference"]) for tests in layers.values() for test in tests) or 1.0
    for kind, names in by_kind(layers).items():
        changes = [[test["difference"] for test in layers[name]] for name in names]
        image = panels[kind].imshow(changes, cmap="RdBu", vmin=-limit, vmax=limit, aspect="equal")
        marked = [
            (x["head"], row) for row, name in enumerate(names) for x in layers[name] if mark(x)
        ]
        if marked:
            panels[kind].scatter([x for x, _ in marked], [y for _, y in marked], s=9, color=INK)
    # The color bar of the last panel is that of all, since they have one range of values.
    figure.colorbar(image, ax=list(panels.values()), label=label, shrink=0.9)
    return figure


def layers(model: StudiedModel, rows: DataRows, options: LayersStudy) -> Result:
    if options.method is not None:
        scores = model.score(options.method, rows.calibration)
        best = {name: values.index(max(values)) for name, values in scores.values.items()}
        how = f"highest score: {scores.signature}"
    elif rows.calibration is not None:
        model.progress.message("losses of each head alone …")
        # On other rows than the metric, which would otherwise flatter the heads chosen by it.
        with model.scoring(model.batches(rows.calibration)) as scoring:
            losses = losses_alone(scoring)
        best = {name: values.index(min(values)) for name, values in losses.items()}
        how = "lowest loss on the calibration rows of the head alone in its layer"
    else:
        raise UsageError(
            "`compress study layers` needs --calibration FILE to choose each layer's head on",
            id="calibration-missing",
        )
    quality = MeasuredQuality(model, rows, options.evaluation)
    style, effects = quality.style, []
    for layer in model.layers:
        model.progress.message(f"leaving {layer.name} one of {layer.units} heads …")
        head = best[layer.name]
        others = [(layer.name, other) for other in range(layer.units) if other != head]
        effect = quality.without(Mask.full(model.layers).without(others))
        effects.append({"layer": layer.name, "heads": layer.units, "head": head, **effect})
    tests, counts, significance = quality.corrected(effects, "layers")
    cells = []
    for test in tests:
        kept, value = f"{test['head']} of {test['heads']}", style.score(test["value"])
        cells.append((test["layer"], kept, value, *effect_cells(test, style, mark(test))))
    worst = min(tests, key=lambda test: test["difference"])
    loss = f"The largest loss is in {worst['layer']}: {style.difference(worst['difference'])}."
    return Result(
        title=f"One head per layer of {model.checkpoint.name}",
        data={**quality.facts, "chosen_by": how, **counts, "layers": tests},
        sentences=[
            f"{quality.text}; each layer's one head chosen by {how}.",
            loss if worst["difference"] < 0 else "No layer loses anything.",
            significance,
        ],
        tables=[table("layers", cells, metric=style.title)],
        figure=_layers_figure(quality.axis, {test["layer"]: test for test in tests}),
    )


def _layers_figure(label: str, tests: Mapping[str, Effect]) -> Figure:
    figure, (axes,) = panels(5.2, 3.4)
    axes.axhline(0, color=DENSE, linestyle="--", linewidth=1.2)
    kinds = by_kind(tests)
    for i, (kind, names) in enumerate(kinds.items()):
        # Kinds beside each other, not on top of each other.
        x = np.arange(len(names)) + 0.12 * (i - (len(kinds) - 1) / 2)
        axes.vlines(x, *zip(*(tests[x]["interval"] for x in names), strict=True), color=COLORS[i])
        y = [tests[name]["difference"] for name in names]
        axes.plot(x, y, MARKERS[i], color=COLORS[i], label=kind_label(kind))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="layer that has one head left", ylabel=label)
    axes.set_title("bars: 95% interval", loc="left", fontsize=9)
    legend(figure, axes)
    return figure


def removals(scores: Scores, full: Mask, pool: str, percentages: Sequence[int]) -> list[Mask]:
    """The masks at percentages of a kind's heads, or of all; each number of heads once."""
    total = full.total(pool)
    floors = dict.fromkeys(full.kinds(), 0)
    # `round` would take a half to the next even number.
    counts = dict.fromkeys(int(percent * total / 100 + 0.5) for percent in percentages)
    return [select(scores, full, {pool: total - count}, floors) for count in counts]


def curve(model: StudiedModel, rows: DataRows, options: CurveStudy) -> Result:
    scores = model.score(options.method, rows.calibration)
    quality = MeasuredQuality(model, rows, options.evaluation)
    full, style = Mask.full(model.layers), quality.style
    pools = {kind: kind_label(kind) for kind in full.kinds()}
    if len(pools) > 1:  # a single kind equals all
        pools[HEADS] = "all kinds"
    recovery = "+".join(step.name for step in options.recovery)
    how = f"recovered ({recovery})" if recovery else "not recovered"
    sentences = [f"{quality.text}; heads removed in the order of {scores.signature}, {how}."]
    lines: dict[str, list[Effect]] = {}
    shown = []
    for pool, name in pools.items():
        masks = removals(scores, full, pool, options.points)
        points = [_point(quality, rows, options, pool, name, mask) for mask in masks]
        lines[pool] = points
        # All points up to the number, without lucky ones after a worse one.
        harmless = takewhile(lambda x: x["difference"] >= 0 or not is_significant(x), points)
        most = max((point["removed"] for point in harmless), default=0)
        sentences.append(
            f"{name.capitalize()}: with up to {most} of {points[0]['of']} heads removed, no "
            "point is significantly worse than dense."
        )
        for point in points:
            count = f"{point['removed']} of {point['of']}"
            share = numbers.percent(point["removed"], point["of"])
            value = style.score(point["value"])
            shown.append((name, count, share, value, *effect_cells(point, style)))
    return Result(
        title=f"Quality of {model.checkpoint.name} against heads removed",
        data={
            **quality.facts,
            "method": scores.method,
            "signature_scores": scores.signature,
            "recover": recovery or "none",
            "at_floor": any(point["at_floor"] for points in lines.values() for point in points),
            "lines": lines,
        },
        sentences=sentences,
        tables=[table("curve", shown, metric=style.title)],
        figure=_curve_figure(quality, {pools[pool]: points for pool, points in lines.items()}),
    )


def _point(
    quality: MeasuredQuality, rows: DataRows, options: CurveStudy, pool: str, name: str, mask: Mask
) -> Effect:
    model, of = quality.model, mask.total(pool)
    removed = of - mask.count(pool)
    model.progress.message(f"removing {removed} of {of} heads of {name} …")
    counts = {"removed": removed, "of": of}
    if not (removed and options.recovery):
        # The heads need not be cut: silenced ones are the same, and cost no copy.
        return {**counts, **quality.without(mask), "recovery": ""}
    dense, examples = model.checkpoint, encode(rows.fitted, model.checkpoint, model.task)
    opened, pruned = ModelAndRows(dense, examples), prune(dense.model, model.layers, mask)
    how = RecoveryPlan(options.recovery)
    recovered = recover(how, pruned, mask, opened=opened, context=model.context)
    effect = quality.effect(quality.outputs(network=recovered.model))
    return {**counts, **effect, "recovery": recovered.text}


def _curve_figure(quality: MeasuredQuality, lines: Mapping[str, list[Effect]]) -> Figure:
    figure, (axes,) = panels(5.6, 4.0)
    axes.axhline(quality.value, color=DENSE, linestyle="--", linewidth=1.2)
    drawn = {}
    for color, (name, points) in zip(COLORS, lines.items(), strict=False):
        shares = [100 * point["removed"] / point["of"] for point in points]
        drawn[name] = shares, [point["value"] for point in points]
        # The interval is of the change, which the axis does not show.
        low, high = ([quality.value + x["interval"][end] for x in points] for end in (0, 1))
        axes.fill_between(shares, low, high, color=color, alpha=0.15, linewidth=0)
    draw_lines(axes, drawn)
    axes.set(xlabel="heads removed (%)", ylabel=quality.style.title)
    axes.set_title("bands: 95% interval of the change", loc="left", fontsize=9)
    legend(figure, axes)
    return figure
