"""How the importance of heads comes about: the checkpoints of one training, in order.

Michel, Levy & Neubig 2019, section 6 (quality at fixed pruning levels over training), with the
ranking of heads followed over the same checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compressor.budgets.counts import ALL
from compressor.errors import InputError
from compressor.model.checkpoint import Checkpoint
from compressor.model.sublayers import Mask, Scores
from compressor.report import numbers
from compressor.report.facts import kind_label, metric_style
from compressor.study.agreement import flat, overlap_p
from compressor.study.compare_scores import TIED, shared_heads, spearman
from compressor.study.curve import removals
from compressor.study.job import Job, answer, judge, make_batches, open_model, score
from compressor.study.options import TrainingStudy
from compressor.study.output import Result, table
from compressor.study.plotting import Line, draw_lines, metric_label

TOP = 0.25  # share of the heads called the most important


def study(job: Job) -> Result:
    """Score every checkpoint's heads, prune each by its own scores, and compare with the last."""
    assert job.test is not None
    for directory in job.request.checkpoints[:-1]:
        _open(job, directory)  # a wrong one is told before the first is computed
    names = _names(job.request.checkpoints)
    scores, quality = [], []
    for number, directory in enumerate(job.request.checkpoints):
        found, points = _checkpoint(job, number, directory, names[number])
        scores.append(found)
        quality.append(points)
    data = {
        **job.facts(),
        "metric": job.metric,
        "signature_scores": scores[-1].signature,
        "resamples": job.testing.resamples,
        "checkpoints": [
            {"name": name, "directory": directory, "scores": dict(one.values), "points": points}
            | ranking(one, scores[-1])
            for name, directory, one, points in zip(
                names, job.request.checkpoints, scores, quality, strict=True
            )
        ],
    }
    return _result(job, data)


def _names(directories: Sequence[str]) -> list[str]:
    short = [Path(directory).name for directory in directories]
    return short if len(set(short)) == len(short) else list(directories)


def _open(job: Job, directory: str) -> Checkpoint:
    """A checkpoint of the training, dense and with the attention layers of the last one."""
    checkpoint = open_model(job.request, directory)
    if checkpoint.layers != job.checkpoint.layers:
        raise InputError(
            f"{directory} has other attention layers than {job.checkpoint.name}; give checkpoints "
            "of one training"
        )
    return checkpoint


def _checkpoint(
    job: Job, number: int, directory: str, name: str
) -> tuple[Scores, list[dict[str, Any]]]:
    last = number == len(job.request.checkpoints) - 1
    checkpoint = job.checkpoint if last else _open(job, directory)
    scores = score(job, checkpoint, job.calibration, f"scores-{number}", f"scoring {name}")

    def compute() -> list[dict[str, Any]]:
        assert job.test is not None
        batches, rows = make_batches(job, checkpoint, job.test), len(job.test.targets)
        dense = answer(job, checkpoint, batches, rows)
        full = Mask.full(checkpoint.layers)
        points = []
        for removed, mask in removals(scores, full, ALL, _percentages(job)):
            answers = answer(job, checkpoint, batches, rows, mask)
            points.append({"removed": removed, "of": full.total()} | judge(job, dense, answers))
        return points

    title = f"pruning {name} at {len(_percentages(job))} levels"
    return scores, job.workspace.stage(f"levels-{number}", title, compute)


def _percentages(job: Job) -> list[int]:
    assert isinstance(job.request, TrainingStudy)
    return job.request.points


def ranking(scores: Scores, last: Scores) -> dict[str, Any]:
    """How near a checkpoint's order of heads is to the last one's.

    Returns:
        `spearman`: correlation over all heads; `kinds`: and per kind; `top`: the size of the most
        important quarter, `shared`: how many of the last one's are in it, `by_chance` and `p`;
        None where they are undefined (see `compressor.study.compare_scores`).
    """
    total = len(flat(scores))
    top = max(1, int(TOP * total + 0.5))
    shared = shared_heads(scores, last, top, highest=True)
    full = Mask({name: (True,) * len(values) for name, values in scores.values.items()})
    return {
        "spearman": spearman(flat(scores), flat(last)),
        "kinds": {kind: spearman(flat(scores, kind), flat(last, kind)) for kind in full.kinds()},
        "top": top,
        "shared": shared,
        "by_chance": top * top / total,
        "p": overlap_p(shared, top, total),
    }


def _result(job: Job, data: dict[str, Any]) -> Result:
    digits, label = metric_style(job.metric).digits, metric_label(job.metric)
    found = data["checkpoints"]
    rows = [
        (
            one["name"],
            numbers.fixed(one["spearman"], 3, sign=True),
            *(numbers.fixed(value, 3, sign=True) for value in one["kinds"].values()),
            numbers.ABSENT if one["shared"] is None else f"{one['shared']} of {one['top']}",
            numbers.fixed(one["by_chance"], 1),
            numbers.p_value(one["p"]),
        )
        for one in found
    ]
    kinds = ", ".join(kind_label(kind) for kind in found[0]["kinds"])
    levels = [point["removed"] for point in found[0]["points"]]
    quality = [
        (one["name"], *(numbers.fixed(point["value"], digits) for point in one["points"]))
        for one in found
    ]
    first = found[0]
    return Result(
        title=f"Heads over the training of {job.checkpoint.name}",
        data=data,
        sentences=[*_verdict(first), f"Scores: {data['signature_scores']}."],
        tables=[
            table(
                "Each checkpoint's order of heads against the last one's: Spearman's correlation, "
                "and the last one's most important quarter in this one's; p of so many or more. "
                f"{numbers.ABSENT}: {TIED}, or all scores are the same.",
                f"checkpoint, all heads, {kinds}, top quarter shared, by chance, p",
                rows,
            ),
            table(
                f"{label} with so many of {first['points'][0]['of']} heads removed, in the order "
                "of each checkpoint's own scores.",
                ", ".join(["checkpoint", *(f"{level} removed" for level in levels)]),
                quality,
            ),
        ],
        draw=lambda: _figure(job, data),
    )


def _verdict(first: dict[str, Any]) -> list[str]:
    """How much of the final order the first checkpoint has, as far as that is defined."""
    name, sentences = first["name"], []
    if first["spearman"] is not None:
        sentences.append(
            f"{name} orders the heads like the last checkpoint with a rank correlation of "
            f"{numbers.fixed(first['spearman'], 2, sign=True)}."
        )
    if first["shared"] is not None:
        sentences.append(
            f"{first['shared']} of the finally most important {first['top']} heads are on top in "
            f"{name} already ({numbers.fixed(first['by_chance'], 1)} by chance)."
        )
    return sentences


def _figure(job: Job, data: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    found = data["checkpoints"]
    x = list(range(len(found)))
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    absent = float("nan")
    agree = [
        Line("rank correlation with the last", x, [_or(one["spearman"], absent) for one in found]),
        Line(
            "top quarter shared",
            x,
            [absent if one["shared"] is None else one["shared"] / one["top"] for one in found],
        ),
    ]
    draw_lines(left, agree)
    left.set_ylabel("share, correlation")
    levels = [
        Line(
            f"{found[0]['points'][i]['removed']} heads removed",
            x,
            [one["points"][i]["value"] for one in found],
        )
        for i in range(len(found[0]["points"]))
    ]
    draw_lines(right, levels)
    right.set_ylabel(metric_label(job.metric))
    for axes in (left, right):
        axes.set_xticks(x, [one["name"] for one in found], rotation=30, ha="right")
        axes.legend(fontsize=8)
    return figure


def _or(value: float | None, absent: float) -> float:
    return absent if value is None else value
