"""Quality against heads removed, for each kind of attention and for all kinds together.

Michel, Levy & Neubig 2019, section 4 and figure 3 (all heads), and section 5 and figure 4 (one
kind at a time), with a bootstrap interval at every point. Heads are removed in ascending order of
a scoring method's scores; layers may lose all of their heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from compressor.budgets.units import HEADS, select
from compressor.model.sublayers import Mask, Scores
from compressor.model.surgery import prune
from compressor.pipeline.inputs import encode
from compressor.pipeline.repair import Repair
from compressor.recovery import RecoveryMethod
from compressor.report import numbers
from compressor.report.facts import kind_label, metric_style, significant
from compressor.study.job import (
    Job,
    answer,
    dense_answers,
    judge,
    make_batches,
    score,
)
from compressor.study.options import CurveStudy
from compressor.study.output import Result, table
from compressor.study.plotting import Line, draw_lines, legend, metric_label
from compressor.tasks import Batch


def study(job: Job) -> Result:
    """Remove more and more heads, of each kind and of all kinds, and measure each time."""
    assert job.test is not None
    request = job.request
    assert isinstance(request, CurveStudy)
    scores = score(
        job, job.checkpoint, job.calibration, "scores", f"scoring with {job.method.name}"
    )
    batches = make_batches(job, job.checkpoint, job.test)
    dense, whole = dense_answers(job, batches)
    full = Mask.full(job.checkpoint.attention)
    kinds = full.kinds()
    lines: dict[str, list[dict[str, Any]]] = {}
    # A single kind is the same as all kinds.
    for pool in [*kinds, HEADS] if len(kinds) > 1 else kinds:
        lines[pool] = []
        for removed, mask in removals(scores, full, pool, request.points):
            point = job.workspace.stage(
                f"{pool}-{removed}",
                f"removing {removed} heads of {'all kinds' if pool == HEADS else kind_label(pool)}",
                partial(_point, job, request.recovery, batches, dense, mask),
                dict[str, Any],
            )
            of = full.total(pool)
            lines[pool].append({"removed": removed, "of": of} | point)
    data = {**job.facts(), **whole, "method": scores.method, "signature_scores": scores.signature}
    data |= {
        "recover": "+".join(step.name for step in request.recovery) or "none",
        "resamples": job.testing.resamples,
        "lines": lines,
    }
    return _result(job, data, lines)


def removals(
    scores: Scores, full: Mask, pool: str, percentages: Sequence[int]
) -> list[tuple[int, Mask]]:
    """(heads removed, mask) at each percentage of a kind's heads, or of all heads.

    Numbers of heads are rounded, halves up. Different percentages of few heads can give the same
    number, which is kept once.
    """
    total = full.total(pool)
    floors = dict.fromkeys(full.kinds(), 0)
    counts = dict.fromkeys(int(percent * total / 100 + 0.5) for percent in percentages)
    return [(count, select(scores, full, {pool: total - count}, floors)) for count in counts]


def _point(
    job: Job,
    repairs: Sequence[RecoveryMethod],
    batches: list[Batch],
    dense: list[str],
    mask: Mask,
) -> dict[str, Any]:
    recovery = ""
    if mask.count() == mask.total():
        answers = dense
    elif repairs:
        assert job.calibration is not None
        examples = encode(job.calibration, job.checkpoint, job.task)
        repair = Repair(repairs, job.checkpoint, examples, job.seed, job.device, job.progress)
        repaired = repair.run(prune(job.checkpoint.model, job.checkpoint.attention, mask))
        recovery = repaired.text
        answers = answer(job, job.checkpoint, batches, len(dense), model=repaired.model)
    else:
        answers = answer(job, job.checkpoint, batches, len(dense), mask)
    return judge(job, dense, answers) | {"recovery": recovery}


def _name(pool: str) -> str:
    return "all kinds" if pool == HEADS else kind_label(pool)


def _is_worse(point: dict[str, Any]) -> bool:
    return point["difference"] < 0 and significant(point["p"], point["interval"])


def _result(job: Job, data: dict[str, Any], lines: dict[str, list[dict[str, Any]]]) -> Result:
    digits, label = metric_style(job.metric).digits, metric_label(job.metric)
    rows = [
        (
            _name(pool),
            f"{point['removed']} of {point['of']}",
            numbers.percent(point["removed"], point["of"]),
            numbers.fixed(point["value"], digits),
            numbers.fixed(point["difference"], digits, sign=True),
            numbers.interval(tuple(point["interval"]), digits, sign=True),
            numbers.p_value(point["p"]),
        )
        for pool, points in lines.items()
        for point in points
    ]
    sentences = [
        f"All heads: {label} {numbers.fixed(data['dense'], digits)}; heads removed in the order of "
        f"{data['signature_scores']}"
        + (f", repaired ({data['recover']})." if data["recover"] != "none" else ", not repaired."),
    ]
    for pool, points in lines.items():
        harmless = takewhile(lambda one: not _is_worse(one), points)
        most = max((point["removed"] for point in harmless), default=0)
        sentences.append(
            f"{_name(pool).capitalize()}: with up to {most} of {points[0]['of']} heads removed, no "
            "point is significantly worse than dense."
        )
    return Result(
        title=f"Quality of {job.checkpoint.name} against heads removed",
        data=data,
        sentences=sentences,
        tables=[
            table(
                "95% interval of the change by paired bootstrap; two-sided p-values, not corrected "
                "for the number of points.",
                f"removed from, heads, share, {label}, change, 95% interval, p",
                rows,
            )
        ],
        draw=lambda: _figure(job, data["dense"], lines),
    )


def _figure(job: Job, dense: float, lines: dict[str, list[dict[str, Any]]]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 4.0), layout="constrained")
    axes = figure.add_subplot()
    drawn = [
        Line(
            _name(pool),
            [100 * point["removed"] / point["of"] for point in points],
            [point["value"] for point in points],
            [(dense + point["interval"][0], dense + point["interval"][1]) for point in points],
        )
        for pool, points in lines.items()
    ]
    draw_lines(axes, drawn, dense)
    axes.set_xlabel("heads removed (%)")
    axes.set_ylabel(metric_label(job.metric))
    axes.set_title("bands: 95% interval of the change", loc="left", fontsize=9)
    legend(figure, axes)
    return figure
