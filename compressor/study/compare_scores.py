"""Do two scoring methods agree? Rank correlations, overlap of the lowest units, and a plot.

Only ranks are compared: pruning uses the order of units, and the scales of methods differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compressor.model.sublayers import KINDS, Scores, kind_of, units_of
from compressor.report import numbers
from compressor.report.facts import kind_label
from compressor.report.plots import (
    COLORS,
    FAINT,
    MARKERS,
    is_plot,
    plot_style,
    save_figure,
)
from compressor.report.table import ReportTable
from compressor.study.output import table, tables_as_text
from compressor.study.plotting import by_kind, legend
from compressor.study.statistics import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Shares of all units that are compared as "the lowest": about as many as are pruned in practice.
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
TIED = "the cut falls between equal scores"
PLOT_TITLE = "Head scores compared by compress"
is_comparison_plot = partial(is_plot, title=PLOT_TITLE)


def compare_scores(scores: Sequence[Scores]) -> dict[str, Any]:
    """Compare every pair of scores of one model's units, by different methods.

    Returns:
        `units`: their number; `of`: what they are, in words; `scores`: `name`, `method` and
        `signature` of each; `pairs`: for each pair `first` and `second` (methods), `correlations`
        and `lowest`. A correlation holds `kind` (`all`, then each kind of sublayer), `units`,
        `spearman` and `kendall` (tau-b), between -1 and 1, None where all scores of one method are
        the same. An entry of `lowest` holds `units`, a number k; `shared`, the overlap of the two
        k-lowest sets (see `shared_units`); and `by_chance`, the expected overlap of random sets.
    """
    values = scores[0].values
    units: set[str] = {units_of(name) for name in values}
    return {
        "units": sum(map(len, values.values())),
        "of": units.pop() if len(units) == 1 else "units",
        "scores": [
            {"name": one.method, "method": one.method, "signature": one.signature} for one in scores
        ],
        "pairs": [
            {
                "first": first.method,
                "second": second.method,
                "correlations": _correlations(first, second),
                "lowest": _lowest(first, second),
            }
            for first, second in combinations(scores, 2)
        ],
    }


def kinds_of(scores: Scores) -> list[str]:
    """The kinds of sublayers that were scored, in the canonical order."""
    return list(by_kind(scores.values))


def flat(scores: Scores, kind: str | None = None) -> Floats:
    """All scores, or those of a kind, layer by layer."""
    names = [name for name in scores.values if kind in (None, kind_of(name))]
    return np.concatenate([np.asarray(scores.values[name], dtype=np.float64) for name in names])


def _correlations(first: Scores, second: Scores) -> list[dict[str, Any]]:
    rows = []
    for kind in (None, *kinds_of(first)):
        x, y = flat(first, kind), flat(second, kind)
        correlations = {"spearman": spearman(x, y), "kendall": kendall(x, y)}
        rows.append({"kind": kind or "all", "units": len(x), **correlations})
    return rows


def _lowest(first: Scores, second: Scores) -> list[dict[str, Any]]:
    total = sum(map(len, first.values.values()))
    rows = []
    # Of few units several shares are the same number.
    for count in sorted({max(1, round(share * total)) for share in SHARES}):
        shared = shared_units(first, second, count)
        # The mean of the hypergeometric distribution, which `overlap_p` tests with.
        rows.append({"units": count, "shared": shared, "by_chance": count * count / total})
    return rows


def shared_units(first: Scores, second: Scores, count: int, *, highest: bool = False) -> int | None:
    """Overlap of the two sets of the `count` lowest, or highest, units.

    None where the cut falls between equal scores: which of those units are in the set then depends
    on their position, not on their importance.
    """
    chosen = []
    for scores in (first, second):
        order = scores.ascending()
        if highest:
            order.reverse()
        values = [scores.values[name][unit] for name, unit in order]
        # Where all units are in the set, nothing is cut off.
        if count < len(order) and values[count - 1] == values[count]:
            return None
        chosen.append(set(order[:count]))
    return len(chosen[0] & chosen[1])


def overlap_p(shared: int | None, count: int, total: int) -> float | None:
    """Probability that two random sets of `count` out of `total` units share at least `shared`.

    None where the number of shared units is undefined.
    """
    from scipy.stats import hypergeom

    # `sf` is the probability of more than its argument.
    return None if shared is None else float(hypergeom.sf(shared - 1, total, count, count))


def spearman(x: Floats, y: Floats) -> float | None:
    """Spearman's rank correlation; None where it is undefined."""
    from scipy.stats import spearmanr

    return None if _constant(x) or _constant(y) else float(spearmanr(x, y).statistic)


def kendall(x: Floats, y: Floats) -> float | None:
    """Kendall's tau-b (Kendall 1945), which corrects for ties; None where it is undefined."""
    from scipy.stats import kendalltau

    return None if _constant(x) or _constant(y) else float(kendalltau(x, y).statistic)


def _constant(values: Floats) -> bool:
    # For these scipy warns and gives NaN, which JSON does not have.
    return np.unique(values).size < 2


def comparison_tables(pairs: Mapping[str, Any], of: str = "heads") -> list[ReportTable]:
    """Two tables of named pairs, the correlations and the lowest units that both share.

    Args:
        pairs: of `compare_scores`, by name; with a p-value in each row or in none.
        of: what the units are, in words.
    """
    correlations, lowest = [], []
    for name, pair in pairs.items():
        rows = pair["correlations"]
        # With a single kind of sublayer, the rows of all units and of the kind are the same.
        for row in rows[:1] if len(rows) == 2 else rows:
            kind = f"all {of}" if row["kind"] == "all" else kind_label(row["kind"])
            values = (numbers.fixed(row[key], 3, sign=True) for key in ("spearman", "kendall"))
            correlations.append((name, kind, str(row["units"]), *values, *_p_cell(row)))
        for row in pair["lowest"]:
            chance = numbers.fixed(row["by_chance"], 1)
            shared = numbers.fixed(row["shared"], 0)
            lowest.append((name, str(row["units"]), shared, chance, *_p_cell(row)))
    tested = all("p" in row for pair in pairs.values() for row in pair["lowest"])
    kinds, p_title = "attention" if of == "heads" else "sublayer", ", p" if tested else ""
    by_shuffling = f"; p by shuffling {of} (two-sided, Spearman)" if tested else ""
    at_least = f"; p is the probability of at least as many shared {of} by chance" if tested else ""
    return [
        table(
            f"Rank correlations{by_shuffling}.",
            f"compared, kind of {kinds}, {of}, Spearman, Kendall{p_title}",
            correlations,
            texts=2,
        ),
        table(
            f"Overlap of the two sets of {of} with the lowest scores{at_least}. "
            f"{numbers.ABSENT}: {TIED}.",
            f"compared, {of}, shared, by chance{p_title}",
            lowest,
        ),
    ]


def _p_cell(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (numbers.p_value(row["p"]),) if "p" in row else ()


def comparison_text(comparison: Mapping[str, Any]) -> str:
    """What `compare_scores` found, for a terminal."""
    pairs = {f"{pair['first']} and {pair['second']}": pair for pair in comparison["pairs"]}
    return tables_as_text(comparison_tables(pairs, comparison["of"]))


def comparison_plot(scores: Sequence[Scores], path: Path) -> None:
    """Draw every pair of scores as a scatter of ranks, 1 = the least important unit; PNG or SVG."""
    with plot_style("compare-scores"):
        # By its title a plot is known as one that may be written over.
        save_figure(comparison_figure(scores), path, Title=PLOT_TITLE)


def comparison_figure(scores: Sequence[Scores]) -> Figure:
    """The figure of `comparison_plot`: one panel per pair, in a triangle; a marker per kind."""
    from matplotlib.figure import Figure

    comparison = compare_scores(scores)
    # They come in the order of the combinations below, which `compare_scores` goes through too.
    pairs = iter(comparison["pairs"])
    size = len(scores) - 1
    side = 3.6 if size == 1 else 2.8
    figure = Figure(figsize=(side * size, side * size + 0.5), layout="constrained")
    for column, row in combinations(range(len(scores)), 2):
        axes = figure.add_subplot(size, size, (row - 1) * size + column + 1)
        _scatter(axes, scores[column], scores[row], next(pairs))
    legend(figure, figure.axes[0], min(3, size + 1))
    return figure


def _scatter(axes: Axes, first: Scores, second: Scores, pair: dict[str, Any]) -> None:
    from scipy.stats import rankdata

    x, y = rankdata(flat(first)), rankdata(flat(second))
    kinds = np.array([kind_of(name) for name, values in first.values.items() for _ in values])
    axes.axline((0, 0), slope=1, color=FAINT, linewidth=1)
    # There are more colors and markers than kinds.
    for kind, color, marker in zip(KINDS, COLORS, MARKERS, strict=False):
        here = kinds == kind
        if here.any():
            axes.scatter(x[here], y[here], s=14, color=color, marker=marker, label=kind_label(kind))
    axes.set_xlabel(f"rank by {pair['first']}")
    axes.set_ylabel(f"rank by {pair['second']}")
    value = numbers.fixed(pair["correlations"][0]["spearman"], 2, sign=True)
    axes.set_title(f"Spearman {value}", loc="left", fontsize=9)
    axes.set_aspect("equal")
    axes.set_xlim(0, len(x) + 1)
    axes.set_ylim(0, len(x) + 1)
