"""How the importance of heads develops over the checkpoints of one training.

Michel, Levy & Neubig 2019, section 6 (quality at fixed pruning levels over training); also how the
ranking of heads approaches the last checkpoint's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.budgets.units import HEADS
from compressor.errors import InputError
from compressor.model.checkpoint import Checkpoint
from compressor.model.sublayers import Mask, Scores
from compressor.report import numbers
from compressor.report.facts import MetricStyle, kind_label, metric_style
from compressor.report.table import ReportTable
from compressor.study.compare_scores import TIED, flat, kinds_of, overlap_p, shared_units, spearman
from compressor.study.curve import removals
from compressor.study.effects import MeasuredModel
from compressor.study.inputs import StudyInputs, open_model
from compressor.study.options import TrainingStudy
from compressor.study.output import Result, table
from compressor.study.plotting import Line, draw_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOP = 0.25  # share of the heads that count as the most important


def study(request: TrainingStudy, inputs: StudyInputs) -> Result:
    """Score and prune every checkpoint by its own scores, and compare it with the last one."""
    directories = request.checkpoints
    for directory in directories[:-1]:
        _open(request, inputs, directory)  # a wrong one is refused before anything is computed
    names = _names(directories)
    found = [_measure(request, inputs, *one) for one in zip(names, directories, strict=True)]
    last, points = found[-1]
    checkpoints = [
        {
            "name": name,
            "directory": directory,
            "scores": dict(scores.values),
            "points": points,
            **ranking(scores, last),
        }
        for name, directory, (scores, points) in zip(names, directories, found, strict=True)
    ]
    style = metric_style(inputs.metric)
    data = {
        "metric": inputs.metric,
        "signature_scores": last.signature,
        "resamples": request.evaluation.resamples,
        "at_floor": any(point["at_floor"] for point in points),
        "checkpoints": checkpoints,
    }
    return Result(
        title=f"Heads over the training of {inputs.checkpoint.name}",
        data=data,
        sentences=[*_verdict(checkpoints[0]), f"Scores: {last.signature}."],
        tables=[
            table(
                "Each checkpoint's ranking of heads compared with the last one's: Spearman's "
                "correlation, and how many heads of the most important quarter both share; p is "
                "the probability of at least as many by chance. "
                f"{numbers.ABSENT}: {TIED}, or all scores are the same.",
                f"checkpoint, all heads, {', '.join(map(kind_label, checkpoints[0]['kinds']))}, "
                "top quarter shared, by chance, p",
                [(one["name"], *_cells(one)) for one in checkpoints],
            ),
            _levels(style, checkpoints),
        ],
        draw=lambda: _figure(style, checkpoints),
    )


def _names(directories: Sequence[str]) -> list[str]:
    """The checkpoints' short names, or their whole paths where two short names are the same."""
    short = [Path(directory).name for directory in directories]
    return short if len(set(short)) == len(short) else list(directories)


def _measure(
    request: TrainingStudy, inputs: StudyInputs, name: str, directory: str
) -> tuple[Scores, list[dict[str, Any]]]:
    """A checkpoint's scores, and its quality with more and more heads removed."""
    # Opened again, and not kept: all checkpoints together may not fit into memory. The last one is
    # the model of the study, which is open already.
    is_last = directory == request.checkpoints[-1]
    checkpoint = inputs.checkpoint if is_last else _open(request, inputs, directory)
    scores = inputs.score(request.method, inputs.rows.calibration, checkpoint)
    measured = MeasuredModel(inputs, request.evaluation, checkpoint)
    inputs.progress.message(f"pruning {name} at {len(request.points)} levels …")
    masks = removals(scores, Mask.full(checkpoint.attention), HEADS, request.points)
    return scores, [
        {"removed": mask.total() - mask.count(), "of": mask.total(), **measured.without(mask)}
        for mask in masks
    ]


def _open(request: TrainingStudy, inputs: StudyInputs, directory: str) -> Checkpoint:
    """Open a checkpoint of the training, which must have the attention layers of the last one."""
    checkpoint = open_model(request, directory)
    if checkpoint.attention != inputs.checkpoint.attention:
        raise InputError(
            f"{directory} has other attention layers than {inputs.checkpoint.name}; give "
            "checkpoints of one training",
            id="checkpoints-differ",
        )
    return checkpoint


def ranking(scores: Scores, last: Scores) -> dict[str, Any]:
    """Compare a checkpoint's ranking of heads with the last one's; None where it is undefined.

    Returns:
        `spearman`: correlation over all heads; `kinds`: within each kind; `top`: the number of
        heads in the most important quarter; `shared`: how many of them both checkpoints have in
        common; `by_chance`: the expected number by chance; `p`: the probability of at least as
        many by chance (see `compressor.study.compare_scores`).
    """
    total = len(flat(scores))
    # Halves up, as in `curve.removals`.
    top = max(1, int(TOP * total + 0.5))
    shared = shared_units(scores, last, top, highest=True)
    return {
        "spearman": spearman(flat(scores), flat(last)),
        "kinds": {kind: spearman(flat(scores, kind), flat(last, kind)) for kind in kinds_of(last)},
        "top": top,
        "shared": shared,
        "by_chance": top * top / total,
        "p": overlap_p(shared, top, total),
    }


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    correlations = (one["spearman"], *one["kinds"].values())
    return (
        *(numbers.fixed(value, 3, sign=True) for value in correlations),
        numbers.ABSENT if one["shared"] is None else f"{one['shared']} of {one['top']}",
        numbers.fixed(one["by_chance"], 1),
        numbers.p_value(one["p"]),
    )


def _levels(style: MetricStyle, checkpoints: Sequence[dict[str, Any]]) -> ReportTable:
    points = checkpoints[0]["points"]
    return table(
        f"{style.title} with some of {points[0]['of']} heads removed, by each checkpoint's own "
        "scores.",
        ", ".join(["checkpoint", *(f"{point['removed']} removed" for point in points)]),
        [
            (one["name"], *(style.score(point["value"]) for point in one["points"]))
            for one in checkpoints
        ],
    )


def _verdict(first: dict[str, Any]) -> list[str]:
    """How close the first checkpoint's ranking is to the last one's, as far as that is defined."""
    sentences = []
    if first["spearman"] is not None:
        sentences.append(
            f"The rankings of heads of {first['name']} and of the last checkpoint have a rank "
            f"correlation of {numbers.fixed(first['spearman'], 2, sign=True)}."
        )
    if first["shared"] is not None:
        sentences.append(
            f"{first['shared']} of the {first['top']} heads that are the most important in the end "
            f"are so in {first['name']} already ({numbers.fixed(first['by_chance'], 1)} by chance)."
        )
    return sentences


def _figure(style: MetricStyle, checkpoints: Sequence[dict[str, Any]]) -> Figure:
    from matplotlib.figure import Figure

    # matplotlib leaves points out that are not numbers.
    x, absent = range(len(checkpoints)), float("nan")
    correlations = [absent if x["spearman"] is None else x["spearman"] for x in checkpoints]
    shares = [absent if x["shared"] is None else x["shared"] / x["top"] for x in checkpoints]
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    agreement = [
        Line("rank correlation with the last", x, correlations),
        Line("top quarter shared", x, shares),
    ]
    draw_lines(left, agreement)
    left.set_ylabel("share, correlation")
    levels = [
        Line(
            f"{point['removed']} heads removed",
            x,
            [one["points"][i]["value"] for one in checkpoints],
        )
        for i, point in enumerate(checkpoints[0]["points"])
    ]
    draw_lines(right, levels)
    right.set_ylabel(style.title)
    for axes in (left, right):
        axes.set_xticks(x, [one["name"] for one in checkpoints], rotation=30, ha="right")
        axes.legend(fontsize=8)
    return figure
