"""How the importance of heads develops over the checkpoints of one training.

Michel, Levy & Neubig 2019, section 6 (quality at fixed pruning levels over training); also how the
ranking of heads approaches the last checkpoint's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.budgets.units import HEADS
from compressor.errors import InputError
from compressor.evaluation import metrics_of
from compressor.model.checkpoint import Checkpoint
from compressor.model.sublayers import Mask, Scores
from compressor.pipeline.inputs import DataRows, load
from compressor.report import numbers
from compressor.report.facts import MetricStyle, kind_label, metric_style
from compressor.request.sections import ModelSection
from compressor.study.agreement import TIED, compared_pair, overlap_p, shared_units
from compressor.study.curve import removals
from compressor.study.inputs import StudiedModel
from compressor.study.options import TrainingStudy
from compressor.study.output import Result, draw_lines, table
from compressor.study.quality import Effect, MeasuredQuality

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOP = 0.25  # share of the heads that count as the most important


def study(model: StudiedModel, rows: DataRows, options: TrainingStudy) -> Result:
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
    last, points = measured[-1]
    checkpoints = [
        {
            "name": name,
            "directory": section.path,
            "scores": dict(scores.values),
            "points": levels,
            **ranking(scores, last),
        }
        for name, section, (scores, levels) in zip(names, sections, measured, strict=True)
    ]
    assert rows.test is not None
    metric = metrics_of(rows.test)[0]
    style = metric_style(metric)
    return Result(
        title=f"Heads over the training of {model.checkpoint.name}",
        data={
            "metric": metric,
            "signature_scores": last.signature,
            "resamples": options.evaluation.resamples,
            "at_floor": any(point["at_floor"] for point in points),
            "checkpoints": checkpoints,
        },
        sentences=[*_verdict(checkpoints[0]), f"Scores: {last.signature}."],
        tables=[
            table(
                "Each checkpoint's ranking of heads compared with the last one's: Spearman's "
                "correlation, and how many heads of the most important quarter both share; p is "
                "the probability of at least as many by chance. "
                f"{numbers.ABSENT}: {TIED}, or all scores are the same.",
                f"checkpoint, all heads, {', '.join(map(kind_label, checkpoints[0]['kinds']))}, "
                "top quarter shared, by chance, p",
                [_cells(one) for one in checkpoints],
            ),
            table(
                f"{style.title} with some of {points[0]['of']} heads removed, by each checkpoint's "
                "own scores.",
                ", ".join(["checkpoint", *(f"{point['removed']} removed" for point in points)]),
                [
                    (one["name"], *(style.score(point["value"]) for point in one["points"]))
                    for one in checkpoints
                ],
            ),
        ],
        figure=_figure(style, checkpoints),
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
        common; `by_chance`: the expected number by chance; `p`: the probability of at least as
        many by chance (see `agreement`).
    """
    whole, *kinds = compared_pair(scores, last)["correlations"]
    total = whole["units"]
    # Halves up, as in `curve.removals`.
    top = max(1, int(TOP * total + 0.5))
    shared = shared_units(scores, last, top, highest=True)
    return {
        "spearman": whole["spearman"],
        "kinds": {row["kind"]: row["spearman"] for row in kinds},
        "top": top,
        "shared": shared,
        "by_chance": top * top / total,
        "p": overlap_p(shared, top, total),
    }


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    correlations = (one["spearman"], *one["kinds"].values())
    return (
        one["name"],
        *(numbers.fixed(value, 3, sign=True) for value in correlations),
        numbers.ABSENT if one["shared"] is None else f"{one['shared']} of {one['top']}",
        numbers.fixed(one["by_chance"], 1),
        numbers.p_value(one["p"]),
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
    ranks = [absent if one["spearman"] is None else one["spearman"] for one in checkpoints]
    shares = [absent if one["p"] is None else one["shared"] / one["top"] for one in checkpoints]
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
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
