"""Quality against heads removed, and how the ranking of heads develops over a training.

Michel, Levy & Neubig 2019, section 4 and figure 3 (all heads), section 5 and figure 4 (one kind at
a time), section 6 (fixed pruning levels over a training). Heads are removed in ascending order of a
scoring method's scores; layers may lose all of their heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from compressor.budgets.units import HEADS, select
from compressor.errors import InputError
from compressor.model.checkpoint import Checkpoint
from compressor.model.sublayers import Mask, Scores
from compressor.model.surgery import prune
from compressor.pipeline.inputs import DataRows, ModelAndRows, encode, load
from compressor.pipeline.recover import recover
from compressor.report import numbers
from compressor.report.facts import MetricStyle, kind_label, metric_style
from compressor.report.plots import COLORS, DENSE
from compressor.report.table import Column, ReportTable
from compressor.request.sections import ModelSection
from compressor.study.agreement import compared_pair, overlap_p, shared_units
from compressor.study.options import CurveStudy, TrainingStudy
from compressor.study.quality import Effect, MeasuredQuality, effect_cells, is_significant
from compressor.study.run import Result, StudiedModel, draw_lines, legend, panels, table

TOP = 0.25  # share of the heads that count as the most important


def removals(scores: Scores, full: Mask, pool: str, percentages: Sequence[int]) -> list[Mask]:
    """The mask at each percentage of a kind's heads, or of all; numbers are rounded, halves up.

    Different percentages of few heads can make the same number, which is kept once.
    """
    total = full.total(pool)
    floors = dict.fromkeys(full.kinds(), 0)
    # `round` would take a half to the next even number.
    counts = dict.fromkeys(int(percent * total / 100 + 0.5) for percent in percentages)
    return [select(scores, full, {pool: total - count}, floors) for count in counts]


def curve(model: StudiedModel, rows: DataRows, options: CurveStudy) -> Result:
    """Remove more and more heads, of each kind and of all kinds, and measure each time."""
    scores = model.score(options.method, rows.calibration)
    quality = MeasuredQuality(model, rows, options.evaluation)
    full, style = Mask.full(model.layers), quality.style
    pools = {kind: kind_label(kind) for kind in full.kinds()}
    if len(pools) > 1:  # a single kind equals all
        pools[HEADS] = "all kinds"
    lines = {
        pool: [
            _point(quality, rows, options, pool, name, mask)
            for mask in removals(scores, full, pool, options.points)
        ]
        for pool, name in pools.items()
    }
    recovery = "+".join(step.name for step in options.recovery)
    how = f"recovered ({recovery})" if recovery else "not recovered"
    sentences = [f"{quality.text}; heads removed in the order of {scores.signature}, {how}."]
    shown = []
    for pool, points in lines.items():
        # All points up to the number, without lucky ones after a worse one.
        harmless = takewhile(lambda x: x["difference"] >= 0 or not is_significant(x), points)
        most = max((point["removed"] for point in harmless), default=0)
        sentences.append(
            f"{pools[pool].capitalize()}: with up to {most} of {points[0]['of']} heads removed, no "
            "point is significantly worse than dense."
        )
        for point in points:
            count = f"{point['removed']} of {point['of']}"
            share = numbers.percent(point["removed"], point["of"])
            value = style.score(point["value"])
            shown.append((pools[pool], count, share, value, *effect_cells(point, style)))
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
        figure=_curve_figure(quality, {pools[x]: y for x, y in lines.items()}),
    )


def _point(
    quality: MeasuredQuality, rows: DataRows, options: CurveStudy, pool: str, name: str, mask: Mask
) -> Effect:
    """The effect of a mask, with how many heads of a pool are `removed`, and its `recovery`."""
    model, recovery = quality.model, ""
    of = mask.total(pool)
    removed = of - mask.count(pool)
    model.progress.message(f"removing {removed} of {of} heads of {name} …")
    if removed and options.recovery:
        assert rows.calibration is not None
        dense, examples = model.checkpoint, encode(rows.calibration, model.checkpoint, model.task)
        recovered = recover(
            options.recovery, ModelAndRows(dense, examples), prune(dense.model, model.layers, mask),
            mask, seed=model.seed, device=model.device, progress=model.progress,
        )  # fmt: skip
        recovery = recovered.text
        effect = quality.effect(quality.outputs(network=recovered.model))
    else:
        # Without recovery the heads need not be cut: silenced ones are the same, and cost no copy.
        effect = quality.without(mask)
    return {"removed": removed, "of": of, **effect, "recovery": recovery}


def _curve_figure(quality: MeasuredQuality, lines: Mapping[str, list[Effect]]) -> Figure:
    figure, (axes,) = panels(5.6, 4.0)
    axes.axhline(quality.value, color=DENSE, linestyle="--", linewidth=1.2)
    shares = {
        name: [100 * point["removed"] / point["of"] for point in points]
        for name, points in lines.items()
    }
    draw_lines(axes, {x: (shares[x], [y["value"] for y in points]) for x, points in lines.items()})
    for color, (name, points) in zip(COLORS, lines.items(), strict=False):
        # The interval is of the change, which the axis does not show.
        low, high = ([quality.value + x["interval"][end] for x in points] for end in (0, 1))
        axes.fill_between(shares[name], low, high, color=color, alpha=0.15, linewidth=0)
    axes.set(xlabel="heads removed (%)", ylabel=quality.style.title)
    axes.set_title("bands: 95% interval of the change", loc="left", fontsize=9)
    legend(figure, axes)
    return figure


def training(model: StudiedModel, rows: DataRows, options: TrainingStudy) -> Result:
    """Score and prune every checkpoint by its own scores, and compare it with the last one."""
    *earlier, _ = sections = options.checkpoints()
    for section in earlier:
        _open(section, model.checkpoint)  # a wrong one is an error before anything is computed
    names = [Path(section.path).name for section in sections]
    if len(set(names)) < len(names):
        names = [section.path for section in sections]
    # Opened again and not kept: all checkpoints together may not fit into memory.
    measured = [
        _measure(replace(model, checkpoint=_open(section, model.checkpoint)), rows, options)
        for section in earlier
    ]
    measured.append(_measure(model, rows, options))
    last, levels = measured[-1]
    checkpoints = []
    for name, section, (scores, points) in zip(names, sections, measured, strict=True):
        directory, ranked = section.path, ranking(scores, last)
        of_heads = {"scores": dict(scores.values), "points": points}
        checkpoints.append({"name": name, "directory": directory, **of_heads, **ranked})
    first = checkpoints[0]
    metric = next(iter(levels[0]["metrics"]))
    style = metric_style(metric)
    return Result(
        title=f"Heads over the training of {model.checkpoint.name}",
        data={
            "metric": metric,
            "signature_scores": last.signature,
            "resamples": options.evaluation.resamples,
            "at_floor": any(point["at_floor"] for point in levels),
            "checkpoints": checkpoints,
        },
        sentences=[
            f"The rankings of heads of {first['name']} and of the last checkpoint have a rank "
            f"correlation of {numbers.fixed(first['spearman'], 2, sign=True)}.",
            f"{numbers.fixed(first['shared'], 0)} of the {first['top']} heads that are the most "
            f"important in the end are so in {first['name']} already "
            f"({numbers.fixed(first['by_chance'], 1)} by chance).",
            f"Scores: {last.signature}.",
        ],
        tables=_training_tables(style, checkpoints),
        figure=_training_figure(style, checkpoints),
    )


def _open(section: ModelSection, last: Checkpoint) -> Checkpoint:
    """Open a checkpoint of the training, which must have the attention layers of the last one."""
    checkpoint = load(section)
    if checkpoint.attention != last.attention:
        raise InputError(
            f"{section.path} has other attention layers than {last.name}; give checkpoints of one "
            "training",
            id="checkpoints-differ",
        )
    return checkpoint


def _measure(
    model: StudiedModel, rows: DataRows, options: TrainingStudy
) -> tuple[Scores, list[Effect]]:
    """A checkpoint's scores, and its quality with more and more heads removed."""
    scores = model.score(options.method, rows.calibration)
    quality = MeasuredQuality(model, rows, options.evaluation)
    model.progress.message(f"pruning {model.checkpoint.name} at {len(options.points)} levels …")
    masks = removals(scores, Mask.full(model.layers), HEADS, options.points)
    return scores, [
        {"removed": mask.total() - mask.count(), "of": mask.total(), **quality.without(mask)}
        for mask in masks
    ]


def ranking(scores: Scores, last: Scores) -> dict[str, Any]:
    """Compare a checkpoint's ranking of heads with the last one's; None where it is undefined.

    Returns:
        `spearman`: correlation over all heads; `kinds`: within each kind; `top`: the number of
        heads in the most important quarter; `shared`: how many of them both checkpoints have in
        common; `by_chance`: the expected number; `p`: of `overlap_p`.
    """
    whole, *kinds = compared_pair(scores, last)["correlations"]
    total = whole["units"]
    top = max(1, int(TOP * total + 0.5))  # halves up, as in `removals`
    shared = shared_units(scores, last, top, highest=True)
    return {
        "spearman": whole["spearman"],
        "kinds": {row["kind"]: row["spearman"] for row in kinds},
        "top": top,
        "shared": shared,
        "by_chance": top * top / total,
        "p": overlap_p(shared, total, top, top),
    }


def _training_tables(
    style: MetricStyle, checkpoints: Sequence[dict[str, Any]]
) -> list[ReportTable]:
    ranks, values = [], []
    for one in checkpoints:
        correlations = (one["spearman"], *one["kinds"].values())
        shown = (numbers.fixed(value, 3, sign=True) for value in correlations)
        shared = f"{numbers.fixed(one['shared'], 0)} of {one['top']}"
        chance, p = numbers.fixed(one["by_chance"], 1), numbers.p_value(one["p"])
        ranks.append((one["name"], *shown, shared, chance, p))
        values.append((one["name"], *(style.score(point["value"]) for point in one["points"])))
    kinds, points = checkpoints[0]["kinds"], checkpoints[0]["points"]
    titles = [*map(kind_label, kinds), "top quarter shared", "by chance", "p"]
    levels = [Column(f"{point['removed']} removed") for point in points]
    return [
        table("training", ranks, more=list(map(Column, titles))),
        table("levels", values, more=levels, metric=style.title, of=points[0]["of"]),
    ]


def _training_figure(style: MetricStyle, checkpoints: Sequence[dict[str, Any]]) -> Figure:
    # matplotlib leaves points out that are not numbers.
    x, absent = range(len(checkpoints)), float("nan")
    ranks = [absent if one["spearman"] is None else one["spearman"] for one in checkpoints]
    shares = [absent if one["p"] is None else one["shared"] / one["top"] for one in checkpoints]
    figure, (left, right) = panels(9.6, 4.0, 2)
    draw_lines(
        left, {"rank correlation with the last": (x, ranks), "top quarter shared": (x, shares)}
    )
    left.set_ylabel("share, correlation")
    levels = {
        f"{point['removed']} heads removed": (x, [o["points"][i]["value"] for o in checkpoints])
        for i, point in enumerate(checkpoints[0]["points"])
    }
    draw_lines(right, levels)
    right.set_ylabel(style.title)
    for axes in (left, right):
        axes.set_xticks(x, [one["name"] for one in checkpoints], rotation=30, ha="right")
        axes.legend(fontsize=8)
    return figure
