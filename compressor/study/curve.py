"""Quality against heads removed, for each kind of attention and for all kinds together.

Michel, Levy & Neubig 2019, section 4 and figure 3 (all heads), and section 5 and figure 4 (one
kind at a time), with a bootstrap interval at every point. Heads are removed in ascending order of
a scoring method's scores; layers may lose all of their heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from compressor.budgets.units import HEADS, select
from compressor.model.sublayers import Mask, Scores
from compressor.model.surgery import prune
from compressor.pipeline.inputs import encode
from compressor.pipeline.repair import Repair
from compressor.report import numbers
from compressor.report.facts import kind_label
from compressor.study.effects import Effect, MetricText
from compressor.study.job import Job, answer, dense_answers, judge, make_batches, score
from compressor.study.options import CurveStudy
from compressor.study.output import Result, table
from compressor.study.plotting import Line, draw_lines, legend, panel
from compressor.tasks import Batch

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Point:
    """The effect of removing `removed` heads; `recovery` says what the repair did."""

    removed: int
    of: int
    effect: Effect
    recovery: str = ""

    @property
    def is_worse(self) -> bool:
        return self.effect.difference < 0 and self.effect.is_significant

    def to_json(self) -> dict[str, Any]:
        return {"removed": self.removed, "of": self.of, **asdict(self.effect)}


def study(job: Job[CurveStudy]) -> Result:
    """Remove more and more heads, of each kind and of all kinds, and measure each time."""
    scores = score(job, job.checkpoint, job.rows.get("calibration"))
    batches = make_batches(job, job.checkpoint, job.rows["test"])
    dense, whole = dense_answers(job, batches)
    full = Mask.full(job.checkpoint.attention)
    kinds = full.kinds()
    lines: dict[str, list[Point]] = {}
    # A single kind is the same as all kinds.
    for pool in [*kinds, HEADS] if len(kinds) > 1 else kinds:
        lines[pool] = [
            job.workspace.stage(
                f"{pool}-{removed}",
                f"removing {removed} heads of {_name(pool)}",
                partial(_point, job, batches, dense, removed, full.total(pool), mask),
                Point,
            )
            for removed, mask in removals(scores, full, pool, job.request.points)
        ]
    repaired = "+".join(step.name for step in job.request.recovery)
    data = {
        **job.facts(),
        **whole,
        "method": scores.method,
        "signature_scores": scores.signature,
        "recover": repaired or "none",
        "resamples": job.request.evaluation.resamples,
        "at_floor": any(x.effect.at_floor for points in lines.values() for x in points),
        "lines": {
            pool: [point.to_json() | {"recovery": point.recovery} for point in points]
            for pool, points in lines.items()
        },
    }
    metric = MetricText(job.metric)
    return Result(
        title=f"Quality of {job.checkpoint.name} against heads removed",
        data=data,
        sentences=[
            f"All heads: {metric.label} {metric.value(data['dense'])}; heads removed in the order "
            f"of {scores.signature}, {f'repaired ({repaired})' if repaired else 'not repaired'}.",
            *(_harmless(pool, points) for pool, points in lines.items()),
        ],
        tables=[
            table(
                "95% interval of the change by paired bootstrap; two-sided p-values, not corrected "
                "for the number of points.",
                f"removed from, heads, share, {metric.label}, change, 95% interval, p",
                [_cells(pool, x, metric) for pool, points in lines.items() for x in points],
            )
        ],
        draw=lambda: _figure(metric, data["dense"], lines),
    )


def removals(
    scores: Scores, full: Mask, pool: str, percentages: Sequence[int]
) -> list[tuple[int, Mask]]:
    """(heads removed, mask) at each percentage of a kind's heads, or of all heads.

    Numbers of heads are rounded, halves up. Different percentages of few heads can give the same
    number, which is kept once.
    """
    total = full.total(pool)
    floors = dict.fromkeys(full.kinds(), 0)
    # `round` would take a half to the next even number.
    counts = dict.fromkeys(int(percent * total / 100 + 0.5) for percent in percentages)
    return [(count, select(scores, full, {pool: total - count}, floors)) for count in counts]


def _point(
    job: Job[CurveStudy],
    batches: Sequence[Batch],
    dense: Sequence[str],
    removed: int,
    of: int,
    mask: Mask,
) -> Point:
    checkpoint, repairs, recovery = job.checkpoint, job.request.recovery, ""
    answers = dense
    # A model that lost nothing needs no repair. Its answers are those that are there already.
    if removed and repairs:
        examples = encode(job.rows["calibration"], checkpoint, job.task)
        seed = job.request.seed
        repair = Repair(repairs, checkpoint, examples, seed, job.device, job.progress)
        repaired = repair.run(prune(checkpoint.model, checkpoint.attention, mask), mask)
        recovery = repaired.text
        answers = answer(job, checkpoint, batches, model=repaired.model)
    elif removed:
        # Without a repair the heads need not be cut: silenced ones are the same, and cost no copy.
        answers = answer(job, checkpoint, batches, mask)
    return Point(removed, of, judge(job, dense, answers), recovery)


def _name(pool: str) -> str:
    return "all kinds" if pool == HEADS else kind_label(pool)


def _harmless(pool: str, points: Sequence[Point]) -> str:
    # The sentence is about all points up to its number, not about lucky ones behind a worse one.
    harmless = takewhile(lambda point: not point.is_worse, points)
    most = max((point.removed for point in harmless), default=0)
    return (
        f"{_name(pool).capitalize()}: with up to {most} of {points[0].of} heads removed, no "
        "point is significantly worse than dense."
    )


def _cells(pool: str, point: Point, metric: MetricText) -> tuple[str, ...]:
    effect = point.effect
    return (
        _name(pool),
        f"{point.removed} of {point.of}",
        numbers.percent(point.removed, point.of),
        metric.value(effect.value),
        metric.change(effect.difference),
        metric.interval(effect.interval),
        numbers.p_value(effect.p),
    )


def _figure(metric: MetricText, dense: float, lines: dict[str, list[Point]]) -> Figure:
    figure, axes = panel(5.6, 4.0)
    drawn = [
        Line(
            _name(pool),
            [100 * point.removed / point.of for point in points],
            [point.effect.value for point in points],
            # The interval is of the change, which the axis does not show.
            [(dense + x.effect.interval[0], dense + x.effect.interval[1]) for x in points],
        )
        for pool, points in lines.items()
    ]
    draw_lines(axes, drawn, dense)
    axes.set_xlabel("heads removed (%)")
    axes.set_ylabel(metric.label)
    axes.set_title("bands: 95% interval of the change", loc="left", fontsize=9)
    legend(figure, axes)
    return figure
