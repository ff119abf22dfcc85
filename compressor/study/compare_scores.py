"""Do scorings rank units alike?

Only ranks are compared: pruning uses the order of units, and the scales of methods differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import hypergeom, kendalltau, rankdata, spearmanr

from compressor.model.sublayers import KINDS, Scores, kind_of, units_of
from compressor.report import numbers
from compressor.report.facts import kind_label
from compressor.report.plots import COLORS, FAINT, MARKERS, is_plot, plot_style, save_figure
from compressor.report.table import Column, ReportTable
from compressor.study.plotting import legend
from compressor.study.run import by_kind, table, tables_as_text

Floats = NDArray[np.float64]
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)  # of all units, that are compared as "the lowest"
PERMUTATIONS = 10_000  # no p-value can be below 1 in 10,001
PLOT_TITLE = "Head scores compared by compress"
is_comparison_plot = partial(is_plot, title=PLOT_TITLE)


def compare_scores(scores: Sequence[Scores]) -> dict[str, Any]:
    """Compare every pair of scores of one model's units, by different methods; for `--json`.

    Args:
        scores: two or more.

    Returns:
        `units`, their number; `of`, what they are, in words; `scores`, the name, method and
        signature of each; `pairs`, for each pair `first`, `second` and what `compared_pair`
        returns.
    """
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

    Args:
        first: scores of all units.
        second: other scores of the same units.
        seed: of the permutations; None for no p-values.

    Returns:
        `correlations`, over all units and within each kind of sublayer: `spearman` and `kendall`
        (tau-b, Kendall 1945, which corrects for ties); None if all scores of one are the same.
        `lowest`, for several numbers of `units`: overlap of the two sets of lowest (`shared`) and
        the expected one of random sets (`by_chance`). With a seed also p-values `p`, see
        `permutation_p` and `overlap_p`.
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
    """All scores, or those of a kind of sublayer, in one array, layer by layer."""
    names = [name for name in scores.values if kind in (None, kind_of(name))]
    return np.concatenate([np.asarray(scores.values[name], dtype=np.float64) for name in names])


def shared_units(first: Scores, second: Scores, count: int, *, highest: bool = False) -> int | None:
    """Overlap of the two sets of the lowest, or highest, units.

    Args:
        first: scores of all units.
        second: other scores of the same units.
        count: size of both sets.
        highest: whether the sets are of the highest scores.

    Returns:
        None where the cut falls between equal scores: which of those units are in the set then
        depends on their position, not on their importance.
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
    """Probability that random sets of `first` and `second` of `total` units share as many or more.

    Args:
        shared: number of units that both sets have; None if it is undefined, as then is the result.
        total: number of all units.
        first: size of the first set.
        second: size of the second set.
    """
    # `sf` is the probability of more than its argument.
    return None if shared is None else float(hypergeom.sf(shared - 1, total, first, second))


def permutation_p(x: Floats, y: Floats, seed: int) -> float:
    """Two-sided p-value of Spearman's correlation by shuffling one side.

    (1 + number of shuffles with at least as large an absolute correlation) / (1 + shuffles).

    Args:
        x: [units].
        y: [units].
        seed: of the shuffles.
    """
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
    """Two tables of named pairs: correlations, and shared lowest units.

    Args:
        pairs: name -> the result of `compared_pair`.
        of: the units, in the plural.
    """
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
    """The tables of a comparison that `compare_scores` made, for a terminal."""
    pairs = {f"{pair['first']} and {pair['second']}": pair for pair in comparison["pairs"]}
    return tables_as_text(comparison_tables(pairs, comparison["of"]))


def comparison_plot(scores: Sequence[Scores], path: Path) -> None:
    """Draw every pair of scores as a scatter of ranks, 1 = the least important unit.

    Args:
        scores: two or more.
        path: of the file, PNG or SVG by its suffix.
    """
    with plot_style("compare-scores"):
        # By its title a plot is known as one that may be written over.
        save_figure(comparison_figure(scores), path, Title=PLOT_TITLE)


def comparison_figure(scores: Sequence[Scores]) -> Figure:
    """Plot ranks of every pair of scores, 1 = least important unit, in a triangle of panels."""
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
