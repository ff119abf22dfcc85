"""Do scorings rank heads alike? Two methods (`compress score --compare`), two data sets (Michel,
Levy & Neubig 2019, section 4), or the checkpoints of one training (section 6).

Only ranks are compared: pruning uses the order of units, and the scales of methods differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import hypergeom, kendalltau, rankdata, spearmanr

from compressor.budgets.units import HEADS
from compressor.errors import UsageError
from compressor.model.sublayers import KINDS, Mask, Scores, kind_of, units_of
from compressor.pipeline.inputs import load, read
from compressor.pipeline.values import DataRows
from compressor.report import numbers
from compressor.report.facts import MetricStyle, kind_label, metric_style
from compressor.report.plots import COLORS, FAINT, MARKERS, is_plot, plot_style, save_figure
from compressor.report.table import Column, ReportTable
from compressor.study.options import AgreementStudy, TrainingStudy
from compressor.study.quality import Effect, MeasuredQuality, removals
from compressor.study.run import (
    Result,
    StudiedModel,
    by_kind,
    draw_lines,
    facts_of,
    legend,
    panels,
    require_same_attention,
    table,
    tables_as_text,
)
from compressor.tasks.rows import some_rows

Floats = NDArray[np.float64]
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)  # of all units, that are compared as "the lowest"
TOP = 0.25  # share of the heads that count as the most important
PERMUTATIONS = 10_000  # no p-value can be below 1 in 10,001
PLOT_TITLE = "Head scores compared by compress"
is_comparison_plot = partial(is_plot, title=PLOT_TITLE)


def agreement(model: StudiedModel, rows: DataRows, options: AgreementStudy) -> Result:
    method, seed = options.method, model.seed
    if not method.needs_rows:
        raise UsageError(
            f"--method {method.name} uses no data, so two data sets always agree; choose another",
            id="method-without-data",
        )
    section = options.data.model_copy(update={"calibration": options.data.other})
    other = read(section, model.checkpoint, model.task, model.progress)
    sets = {"first": rows.fitted, "other": other.fitted}
    scores = {name: model.score(method, part) for name, part in sets.items()}
    pairs = {"the two data sets": compared_pair(scores["first"], scores["other"], seed)}
    for name, part in sets.items():
        # Two halves of one set differ by noise alone, which the sets' difference is held against.
        both = (some_rows(part, range(which, part.count, 2)) for which in (0, 1))
        first, second = (model.score(method, half) for half in both)
        pairs[f"two halves of the {name}"] = compared_pair(first, second, seed)
    signature = scores["first"].signature
    spearman = (pair["correlations"][0]["spearman"] for pair in pairs.values())
    whole, *halves = (numbers.fixed(value, 2, sign=True) for value in spearman)
    # The axes of the figure are named by methods.
    named = [replace(one, method=f"the {name} data set") for name, one in scores.items()]
    return Result(
        title=f"Agreement of two data sets on the heads of {model.checkpoint.name}",
        data={
            "other": facts_of(other.fitted),
            "signature": signature,
            "scores": {name: dict(one.values) for name, one in scores.items()},
            "pairs": pairs,
        },
        sentences=[
            f"Spearman's correlation of the two data sets' scores is {whole}; of two halves of the "
            f"same data set, {' and '.join(halves)}.",
            f"Scores: {signature}.",
        ],
        tables=comparison_tables(pairs),
        figure=comparison_figure(named),
    )


def compare_scores(scores: Sequence[Scores]) -> dict[str, Any]:
    """Compare every pair of scores of one model's units, by different methods; for `--json`."""
    units: set[str] = {units_of(name) for name in scores[0].values}
    return {
        "units": len(flat(scores[0])),
        "of": units.pop() if len(units) == 1 else "units",
        "scores": [
            {"name": x.method, "method": x.method, "signature": x.signature} for x in scores
        ],
        "pairs": [
            {"first": first.method, "second": second.method, **compared_pair(first, second)}
            for first, second in combinations(scores, 2)
        ],
    }


def compared_pair(
    first: Scores, second: Scores, seed: int | None = None
) -> dict[str, list[dict[str, Any]]]:
    """How alike two scorings rank units.

    `correlations`, over all units and within each kind of sublayer: `spearman` and `kendall`
    (tau-b, Kendall 1945, which corrects for ties); None where all scores of one are the same.
    `lowest`, for several numbers of units: overlap of the lowest sets, and by chance. With a seed
    also the p-values `p` of `permutation_p` and `overlap_p`.
    """
    correlations: list[dict[str, Any]] = []
    for kind in (None, *by_kind(first.values)):
        x, y = flat(first, kind), flat(second, kind)
        # If one is constant scipy warns and returns NaN, which JSON does not have.
        defined = np.ptp(x) > 0 and np.ptp(y) > 0
        row = {
            "kind": kind or "all",
            "units": len(x),
            "spearman": float(spearmanr(x, y).statistic) if defined else None,
            "kendall": float(kendalltau(x, y).statistic) if defined else None,
        }
        if seed is not None:
            row["p"] = permutation_p(x, y, seed) if defined else None
        correlations.append(row)
    lowest: list[dict[str, Any]] = []
    total = len(flat(first))
    # With few units several shares are the same number.
    for count in sorted({max(1, round(share * total)) for share in SHARES}):
        shared = shared_units(first, second, count)
        row = {"units": count, "shared": shared, "by_chance": count * count / total}
        if seed is not None:
            row["p"] = overlap_p(shared, total, count, count)
        lowest.append(row)
    return {"correlations": correlations, "lowest": lowest}


def flat(scores: Scores, kind: str | None = None) -> Floats:
    names = [name for name in scores.values if kind in (None, kind_of(name))]
    return np.concatenate([np.asarray(scores.values[name], dtype=np.float64) for name in names])


def shared_units(first: Scores, second: Scores, count: int, *, highest: bool = False) -> int | None:
    """Overlap of the two sets of the `count` lowest, or highest, units.

    None where the cut falls between equal scores: which of those units are in the set then depends
    on their position, not on their importance.
    """
    chosen = []
    for scores in (first, second):
        values = -flat(scores) if highest else flat(scores)
        order = np.argsort(values, kind="stable")
        # Where all units are in the set, nothing is cut off.
        if count < len(order) and values[order[count - 1]] == values[order[count]]:
            return None
        chosen.append(set(order[:count].tolist()))
    return len(chosen[0] & chosen[1])


def overlap_p(shared: int | None, total: int, first: int, second: int) -> float | None:
    """Probability that random sets of `first` and `second` of `total` share `shared` or more."""
    # `sf` is the probability of more than its argument.
    return None if shared is None else float(hypergeom.sf(shared - 1, total, first, second))


def permutation_p(x: Floats, y: Floats, seed: int) -> float:
    """Two-sided p-value of Spearman's correlation by shuffling one side."""
    # It is Pearson's correlation of ranks. Shuffling changes no variance, so products of centered
    # ranks stand for the correlations.
    middle = (len(x) + 1) / 2
    a, b = rankdata(x) - middle, rankdata(y) - middle
    observed = abs(float(a @ b))
    generator = np.random.default_rng(seed)
    shuffled = generator.permuted(np.tile(b, (PERMUTATIONS, 1)), axis=1)  # [shuffles, values]
    # Products of ranks are multiples of 1/4: what is closer than that is equal.
    larger = np.abs(shuffled @ a) >= observed - 1e-6
    # The order as it was counts as one of the shuffles, so that no p-value is 0.
    return (1 + int(np.count_nonzero(larger))) / (1 + PERMUTATIONS)


def comparison_tables(pairs: Mapping[str, Any], of: str = "heads") -> list[ReportTable]:
    """Two tables of named pairs (see `compared_pair`): correlations, and shared lowest units."""
    ranks, lowest = [], []
    for name, pair in pairs.items():
        rows = pair["correlations"]
        # With a single kind of sublayer, the rows of all units and of the kind are the same.
        for row in rows[:1] if len(rows) == 2 else rows:
            kind = f"all {of}" if row["kind"] == "all" else kind_label(row["kind"])
            values = (numbers.fixed(row[key], 3, sign=True) for key in ("spearman", "kendall"))
            p = [numbers.p_value(row["p"])] if "p" in row else []
            ranks.append((name, kind, str(row["units"]), *values, *p))
        for row in pair["lowest"]:
            shared, chance = numbers.fixed(row["shared"], 0), numbers.fixed(row["by_chance"], 1)
            p = [numbers.p_value(row["p"])] if "p" in row else []
            lowest.append((name, str(row["units"]), shared, chance, *p))
    tested = all("p" in row for pair in pairs.values() for row in pair["lowest"])
    by_shuffling = f"; p by shuffling {of} (two-sided, Spearman)" if tested else ""
    at_least = f"; p is the probability of at least as many shared {of} by chance" if tested else ""
    sublayers = "attention" if of == "heads" else "sublayer"
    fill = partial(table, more=[Column("p")] if tested else [], of=of, sublayers=sublayers)
    correlations = fill("correlations", ranks, tested=by_shuffling)
    return [correlations, fill("overlap", lowest, tested=at_least)]


def comparison_text(comparison: Mapping[str, Any]) -> str:
    pairs = {f"{pair['first']} and {pair['second']}": pair for pair in comparison["pairs"]}
    return tables_as_text(comparison_tables(pairs, comparison["of"]))


def comparison_plot(scores: Sequence[Scores], path: Path) -> None:
    """Write `comparison_figure` as PNG or SVG."""
    with plot_style("compare-scores"):
        # By its title a plot is known as one that may be written over.
        save_figure(comparison_figure(scores), path, Title=PLOT_TITLE)


def comparison_figure(scores: Sequence[Scores]) -> Figure:
    """Ranks of every pair of scores, 1 = the least important unit: panels in a triangle."""
    size = len(scores) - 1
    figure = Figure(figsize=(3 * size, 3 * size + 0.5), layout="constrained")
    units = scores[0].values.items()
    kinds = np.array([kind_of(name) for name, values in units for _ in values])
    for column, row in combinations(range(len(scores)), 2):
        axes = figure.add_subplot(size, size, (row - 1) * size + column + 1)
        first, second = scores[column], scores[row]
        x, y = rankdata(flat(first)), rankdata(flat(second))
        axes.axline((0, 0), slope=1, color=FAINT, linewidth=1)
        # There are more colors and markers than kinds.
        for kind, color, marker in zip(KINDS, COLORS, MARKERS, strict=False):
            of_kind = kinds == kind
            if of_kind.any():
                label, drawn = kind_label(kind), (x[of_kind], y[of_kind])
                axes.scatter(*drawn, s=14, color=color, marker=marker, label=label)
        axes.set(xlabel=f"rank by {first.method}", ylabel=f"rank by {second.method}")
        spearman = compared_pair(first, second)["correlations"][0]["spearman"]
        axes.set_title(f"Spearman {numbers.fixed(spearman, 2, sign=True)}", loc="left", fontsize=9)
        axes.set(aspect="equal", xlim=(0, len(x) + 1), ylim=(0, len(x) + 1))
    legend(figure, figure.axes[0], min(3, size + 1))
    return figure


def training(model: StudiedModel, rows: DataRows, options: TrainingStudy) -> Result:
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

    `spearman`, over all heads and by `kinds`; `top`, the number of heads in the most important
    quarter; of those `shared` ones, the expected number `by_chance`, and `p` of `overlap_p`.
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
