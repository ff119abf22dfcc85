"""Heads over a training: do checkpoints rank them alike?

Michel, Levy & Neubig 2019, section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from compressor.budgets.units import HEADS
from compressor.model.sublayers import Mask, Scores
from compressor.options.inputs import load
from compressor.report import numbers
from compressor.report.facts import MetricStyle, kind_label, metric_style
from compressor.report.table import Column, ReportTable
from compressor.study.compare_scores import (
    compared_pair,
    overlap_p,
    shared_units,
)
from compressor.study.options import TrainingStudy
from compressor.study.plotting import draw_lines, panels
from compressor.study.quality import Effect, MeasuredQuality, removals
from compressor.study.run import Result, StudiedModel, require_same_attention, table
from compressor.tasks.opened import DataRows

TOP = 0.25  # share of the heads that count as the most important


def training(model: StudiedModel, rows: DataRows, options: TrainingStudy) -> Result:
    """Compare the checkpoints of a training with the last one: ranking of heads, cost of pruning.

    Raises:
        InputError: the checkpoints are not of one model.
    """
    *earlier, _ = sections = options.checkpoints()
    for section in earlier:  # a wrong one is an error before anything is computed
        require_same_attention(load(section), model.checkpoint)
    names = [Path(section.path).name for section in sections]
    if len(set(names)) < len(names):
        names = [section.path for section in sections]
    # Opened again and not kept: all checkpoints together may not fit into memory.
    measured = [_measure(replace(model, checkpoint=load(x)), rows, options) for x in earlier]
    measured.append(_measure(model, rows, options))
    last, levels = measured[-1]
    checkpoints = []
    for name, section, (scores, points) in zip(names, sections, measured, strict=True):
        of_model = {"name": name, "directory": section.path, "scores": dict(scores.values)}
        checkpoints.append(of_model | {"points": points} | ranking(scores, last))
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
        figure=_training_figure(checkpoints),
    )


def _measure(
    model: StudiedModel, rows: DataRows, options: TrainingStudy
) -> tuple[Scores, list[Effect]]:
    """The scores of a checkpoint's heads, and its quality with more and more of them removed."""
    scores = model.score(options.method, rows.calibration)
    quality = MeasuredQuality(model, rows, options.evaluation)
    model.progress.message(f"pruning {model.checkpoint.name} at {len(options.points)} levels …")
    masks = removals(scores, Mask.full(model.layers), HEADS, options.points)
    return scores, [
        {"removed": mask.total() - mask.count(), "of": mask.total(), **quality.without(mask)}
        for mask in masks
    ]


def ranking(scores: Scores, last: Scores) -> dict[str, Any]:
    """Compare a checkpoint's ranking of heads with the last one's.

    Args:
        scores: of the checkpoint.
        last: of the last checkpoint.

    Returns:
        `spearman`, over all heads, and by `kinds`; `top`, the number of heads in the most important
        quarter; `shared`, how many both have there, the expected number `by_chance`, and `p` of
        `overlap_p`. None where it is undefined.
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


def _training_figure(checkpoints: Sequence[dict[str, Any]]) -> Figure:
    # matplotlib leaves points out that are not numbers.
    ranks = [np.nan if one["spearman"] is None else one["spearman"] for one in checkpoints]
    shares = [np.nan if one["p"] is None else one["shared"] / one["top"] for one in checkpoints]
    figure, (axes,) = panels(4.8, 4.0)
    x = range(len(checkpoints))
    draw_lines(
        axes, {"rank correlation with the last": (x, ranks), "top quarter shared": (x, shares)}
    )
    axes.set_ylabel("share, correlation")
    axes.set_xticks(x, [one["name"] for one in checkpoints], rotation=30, ha="right")
    axes.legend(fontsize=8)
    return figure
