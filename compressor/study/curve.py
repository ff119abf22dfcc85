"""Quality against heads removed (Michel, Levy & Neubig 2019, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from matplotlib.figure import Figure

from compressor.budgets.units import HEADS
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.recovery.planning import RecoveryPlan, recover
from compressor.report import numbers
from compressor.report.facts import kind_label
from compressor.report.plots import COLORS, DENSE
from compressor.study.options import CurveStudy
from compressor.study.plotting import draw_lines, legend, panels
from compressor.study.quality import Effect, MeasuredQuality, effect_cells, is_significant, removals
from compressor.study.run import Result, StudiedModel, table
from compressor.tasks.opened import DataRows, ModelAndRows, encode


def curve(model: StudiedModel, rows: DataRows, options: CurveStudy) -> Result:
    """Measure quality against the number of heads removed, of each kind and of all kinds."""
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
    """The effect of a mask, one point of a line, with `removed` and `of`, numbers of heads."""
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
