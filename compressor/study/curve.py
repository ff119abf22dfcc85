"""Quality against heads removed, for each kind of attention and for all kinds together.

Michel, Levy & Neubig 2019, section 4 and figure 3 (all heads), and section 5 and figure 4 (one
kind at a time), with a bootstrap interval at every point. Heads are removed in ascending order of
a scoring method's scores; layers may lose all of their heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from compressor.budgets.units import HEADS, select
from compressor.model.sublayers import Mask, Scores
from compressor.model.surgery import prune
from compressor.pipeline.inputs import DataRows, ModelAndRows, encode
from compressor.pipeline.recover import recover
from compressor.report import numbers
from compressor.report.facts import MetricStyle, kind_label
from compressor.report.plots import COLORS, DENSE
from compressor.study.inputs import StudiedModel
from compressor.study.options import CurveStudy
from compressor.study.output import Result, draw_lines, legend, panel, table
from compressor.study.quality import Effect, MeasuredQuality, cells, is_significant

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# By pool (a kind, or all heads): the effect at each point, with how many heads are `removed` `of`
# how many, and what the `recovery` did.
Lines = Mapping[str, Sequence[Effect]]


def study(model: StudiedModel, rows: DataRows, options: CurveStudy) -> Result:
    """Remove more and more heads, of each kind and of all kinds, and measure each time."""
    scores = model.score(options.method, rows.calibration)
    quality = MeasuredQuality(model, rows, options.evaluation)
    full, style = Mask.full(model.layers), quality.style
    kinds = full.kinds()
    lines = {
        pool: [
            _point(quality, rows, options, pool, mask)
            for mask in removals(scores, full, pool, options.points)
        ]
        for pool in ([*kinds, HEADS] if len(kinds) > 1 else kinds)  # a single kind equals all
    }
    recovery = "+".join(step.name for step in options.recovery)
    data = {
        **quality.facts(),
        "method": scores.method,
        "signature_scores": scores.signature,
        "recover": recovery or "none",
        "at_floor": any(point["at_floor"] for points in lines.values() for point in points),
        "lines": lines,
    }
    return Result(
        title=f"Quality of {model.checkpoint.name} against heads removed",
        data=data,
        sentences=[
            f"All heads: {style.title} {style.score(data['dense'])}; heads removed in the order "
            f"of {scores.signature}, {f'recovered ({recovery})' if recovery else 'not recovered'}.",
            *(_harmless(pool, points) for pool, points in lines.items()),
        ],
        tables=[
            table(
                "95% interval of the change by paired bootstrap; two-sided p-values, not corrected "
                "for the number of points.",
                f"removed from, heads, share, {style.title}, change, 95% interval, p",
                [
                    (
                        _name(pool),
                        f"{point['removed']} of {point['of']}",
                        numbers.percent(point["removed"], point["of"]),
                        style.score(point["value"]),
                        *cells(point, style),
                    )
                    for pool, points in lines.items()
                    for point in points
                ],
            )
        ],
        figure=_figure(style, data["dense"], lines),
    )


def removals(scores: Scores, full: Mask, pool: str, percentages: Sequence[int]) -> list[Mask]:
    """The mask at each percentage of a kind's heads, or of all; numbers are rounded, halves up.

    Different percentages of few heads can make the same number, which is kept once.
    """
    total = full.total(pool)
    floors = dict.fromkeys(full.kinds(), 0)
    # `round` would take a half to the next even number.
    counts = dict.fromkeys(int(percent * total / 100 + 0.5) for percent in percentages)
    return [select(scores, full, {pool: total - count}, floors) for count in counts]


def _point(
    quality: MeasuredQuality, rows: DataRows, options: CurveStudy, pool: str, mask: Mask
) -> Effect:
    """The effect of removing heads of a kind, or of all."""
    model, recovery = quality.model, ""
    of = mask.total(pool)
    removed = of - mask.count(pool)
    model.progress.message(f"removing {removed} of {of} heads of {_name(pool)} …")
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


def _name(pool: str) -> str:
    return "all kinds" if pool == HEADS else kind_label(pool)


def _harmless(pool: str, points: Sequence[Effect]) -> str:
    # All points up to the number, without lucky ones after a worse one.
    harmless = takewhile(lambda x: x["difference"] >= 0 or not is_significant(x), points)
    most = max((point["removed"] for point in harmless), default=0)
    return (
        f"{_name(pool).capitalize()}: with up to {most} of {points[0]['of']} heads removed, no "
        "point is significantly worse than dense."
    )


def _figure(style: MetricStyle, dense: float, lines: Lines) -> Figure:
    figure, axes = panel(5.6, 4.0)
    axes.axhline(dense, color=DENSE, linestyle="--", linewidth=1.2)
    shares = {
        pool: [100 * point["removed"] / point["of"] for point in points]
        for pool, points in lines.items()
    }
    draw_lines(
        axes, {_name(pool): (shares[pool], [x["value"] for x in lines[pool]]) for pool in lines}
    )
    for color, (pool, points) in zip(COLORS, lines.items(), strict=False):
        # The interval is of the change, which the axis does not show.
        low, high = ([dense + point["interval"][end] for point in points] for end in (0, 1))
        axes.fill_between(shares[pool], low, high, color=color, alpha=0.15, linewidth=0)
    axes.set_xlabel("heads removed (%)")
    axes.set_ylabel(style.title)
    axes.set_title("bands: 95% interval of the change", loc="left", fontsize=9)
    legend(figure, axes)
    return figure
