"""How the importance of heads develops over the checkpoints of one training.

Michel, Levy & Neubig 2019, section 6 (quality at fixed pruning levels over training); also how the
ranking of heads approaches the last checkpoint's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compressor.budgets.units import HEADS
from compressor.errors import InputError
from compressor.model.checkpoint import Checkpoint
from compressor.model.sublayers import Mask, Scores
from compressor.report import numbers
from compressor.report.facts import kind_label, metric_style
from compressor.study.agreement import flat, overlap_p
from compressor.study.compare_scores import TIED, shared_units, spearman
from compressor.study.curve import removals
from compressor.study.job import Job, answer, judge, make_batches, open_model, score
from compressor.study.options import TrainingStudy
from compressor.study.output import Result, table
from compressor.study.plotting import Line, draw_lines, metric_label

TOP = 0.25  # share of the heads that count as the most important


def study(job: Job) -> Result:
    """Score and prune every checkpoint by its own scores, and compare it with the last one."""
    assert job.test is not None
    for directory in job.request.checkpoints[:-1]:
        _open(job, directory)  # so that a wrong one is refused before anything is computed
    names = _names(job.request.checkpoints)
    scores, quality = [], []
    for number, directory in enumerate(job.request.checkpoints):
        own_scores, points = _checkpoint(job, number, directory, names[number])
        scores.append(own_scores)
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
    """The checkpoints' short names, or their whole paths where two short names are the same."""
    short = [Path(directory).name for directory in directories]
    return short if len(set(short)) == len(short) else list(directories)


def _open(job: Job, directory: str) -> Checkpoint:
    """Open a checkpoint of the training, which must have the attention layers of the last one."""
    checkpoint = open_model(job.request, directory)
    if checkpoint.attention != job.checkpoint.attention:
        raise InputError(
            f"{directory} has other attention layers than {job.checkpoint.name}; give checkpoints "
            "of one training",
            id="checkpoints-differ",
        )
    return checkpoint


def _checkpoint(
    job: Job, number: int, directory: str, name: str
) -> tuple[Scores, list[dict[str, Any]]]:
    """A checkpoint's scores, and its quality with more and more heads removed."""
    last = number == len(job.request.checkpoints) - 1
    checkpoint = job.checkpoint if last else _open(job, directory)
    scores = score(job, checkpoint, job.calibration, f"scores-{number}", f"scoring {name}")

    def compute() -> list[dict[str, Any]]:
        assert job.test is not None
        batches, rows = make_batches(job, checkpoint, job.test), len(job.test.targets)
        dense = answer(job, checkpoint, batches, rows)
        full = Mask.full(checkpoint.attention)
        points = []
        for removed, mask in removals(scores, full, HEADS, _percentages(job)):
            answers = answer(job, checkpoint, batches, rows, mask)
            points.append({"removed": removed, "of": full.total()} | judge(job, dense, answers))
        return points

    title = f"pruning {name} at {len(_percentages(job))} levels"
    points = job.workspace.stage(f"levels-{number}", title, compute, list[dict[str, Any]])
    return scores, points


def _percentages(job: Job) -> list[int]:
    assert isinstance(job.request, TrainingStudy)
    return job.request.points


def ranking(scores: Scores, last: Scores) -> dict[str, Any]:
    """How close a checkpoint's ranking of heads is to the last one's.

    Returns:
        `spearman`: correlation over all heads; `kinds`: within each kind; `top`: the number of
        heads in the most important quarter; `shared`: how many of them both checkpoints have in
        common, `by_chance`: the expected number by chance, `p`: the probability of at least as
        many by chance. None where undefined (see `compressor.study.compare_scores`).
    """
    total = len(flat(scores))
    top = max(1, int(TOP * total + 0.5))
    shared = shared_units(scores, last, top, highest=True)
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
    checkpoints = data["checkpoints"]
    first = checkpoints[0]
    rows = [
        (
            one["name"],
            numbers.fixed(one["spearman"], 3, sign=True),
            *(numbers.fixed(value, 3, sign=True) for value in one["kinds"].values()),
            numbers.ABSENT if one["shared"] is None else f"{one['shared']} of {one['top']}",
            numbers.fixed(one["by_chance"], 1),
            numbers.p_value(one["p"]),
        )
        for one in checkpoints
    ]
    kinds = ", ".join(kind_label(kind) for kind in first["kinds"])
    levels = [point["removed"] for point in first["points"]]
    quality = [
        (one["name"], *(numbers.fixed(point["value"], digits) for point in one["points"]))
        for one in checkpoints
    ]
    return Result(
        title=f"Heads over the training of {job.checkpoint.name}",
        data=data,
        sentences=[*_verdict(first), f"Scores: {data['signature_scores']}."],
        tables=[
            table(
                "Each checkpoint's ranking of heads compared with the last one's: Spearman's "
                "correlation, and how many heads of the most important quarter both share; p is "
                "the probability of at least as many by chance. "
                f"{numbers.ABSENT}: {TIED}, or all scores are the same.",
                f"checkpoint, all heads, {kinds}, top quarter shared, by chance, p",
                rows,
            ),
            table(
                f"{label} with some of {first['points'][0]['of']} heads removed, by each "
                "checkpoint's own scores.",
                ", ".join(["checkpoint", *(f"{level} removed" for level in levels)]),
                quality,
            ),
        ],
        draw=lambda: _figure(job, data),
    )


def _verdict(first: dict[str, Any]) -> list[str]:
    """How close the first checkpoint's ranking is to the last one's, as far as that is defined."""
    name, sentences = first["name"], []
    if first["spearman"] is not None:
        sentences.append(
            f"The rankings of heads of {name} and of the last checkpoint have a rank correlation "
            f"of {numbers.fixed(first['spearman'], 2, sign=True)}."
        )
    if first["shared"] is not None:
        sentences.append(
            f"{first['shared']} of the {first['top']} heads that are the most important in the end "
            f"are so in {name} already ({numbers.fixed(first['by_chance'], 1)} by chance)."
        )
    return sentences


def _figure(job: Job, data: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    checkpoints = data["checkpoints"]
    first = checkpoints[0]
    x = list(range(len(checkpoints)))
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    absent = float("nan")
    agree = [
        Line(
            "rank correlation with the last",
            x,
            [absent if one["spearman"] is None else one["spearman"] for one in checkpoints],
        ),
        Line(
            "top quarter shared",
            x,
            [
                absent if one["shared"] is None else one["shared"] / one["top"]
                for one in checkpoints
            ],
        ),
    ]
    draw_lines(left, agree)
    left.set_ylabel("share, correlation")
    levels = [
        Line(
            f"{point['removed']} heads removed",
            x,
            [one["points"][i]["value"] for one in checkpoints],
        )
        for i, point in enumerate(first["points"])
    ]
    draw_lines(right, levels)
    right.set_ylabel(metric_label(job.metric))
    for axes in (left, right):
        axes.set_xticks(x, [one["name"] for one in checkpoints], rotation=30, ha="right")
        axes.legend(fontsize=8)
    return figure
