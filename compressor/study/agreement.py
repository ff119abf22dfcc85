"""Do two scorings rank heads alike? Two methods (`compress score --compare`), or two data sets.

The study is Michel, Levy & Neubig 2019, section 4 (importance on one test set against another).
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

from compressor.errors import UsageError
from compressor.model.sublayers import KINDS, Scores, kind_of, units_of
from compressor.pipeline.inputs import DataRows, read
from compressor.report import numbers
from compressor.report.facts import kind_label
from compressor.report.plots import COLORS, FAINT, MARKERS, is_plot, plot_style, save_figure
from compressor.report.table import ReportTable
from compressor.study.options import AgreementStudy
from compressor.study.run import (
    Result,
    StudiedModel,
    by_kind,
    facts_of,
    legend,
    table,
    tables_as_text,
)
from compressor.tasks.rows import some_rows

Floats = NDArray[np.float64]
# Shares of all units that are compared as "the lowest": about as many as are pruned in practice.
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
PERMUTATIONS = 10_000  # no p-value can be below 1 in 10,001
PLOT_TITLE = "Head scores compared by compress"
is_comparison_plot = partial(is_plot, title=PLOT_TITLE)


def agreement(model: StudiedModel, rows: DataRows, options: AgreementStudy) -> Result:
    """Score on both data sets and on halves of each, and compare."""
    method, seed = options.method, model.seed
    if not method.needs_rows:
        raise UsageError(
            f"--method {method.name} uses no data, so two data sets always agree; choose another",
            id="method-without-data",
        )
    section = options.data.model_copy(update={"calibration": options.data.other})
    other = read(section, model.checkpoint, model.task, model.progress).calibration
    assert rows.calibration is not None
    assert other is not None
    sets = {"first": rows.calibration, "other": other}
    scores = {name: model.score(method, part) for name, part in sets.items()}
    pairs = {"the two data sets": compared_pair(scores["first"], scores["other"], seed)}
    for name, part in sets.items():
        # Two halves of one set differ by noise alone, which the sets' difference is held against.
        # They have half the rows, so they agree less than two whole samples would.
        halves = (some_rows(part, range(which, part.count, 2)) for which in (0, 1))
        first, second = (model.score(method, half) for half in halves)
        pairs[f"two halves of the {name}"] = compared_pair(first, second, seed)
    signature = scores["first"].signature
    # As methods, which the axes of the figure are named by.
    named = [replace(one, method=f"the {name} data set") for name, one in scores.items()]
    return Result(
        title=f"Agreement of two data sets on the heads of {model.checkpoint.name}",
        data={
            "other": facts_of(other),
            "signature": signature,
            "scores": {name: dict(one.values) for name, one in scores.items()},
            "pairs": pairs,
        },
        sentences=[verdict(pairs), f"Scores: {signature}."],
        tables=comparison_tables(pairs),
        figure=comparison_figure(named),
    )


def verdict(pairs: Mapping[str, Any]) -> str:
    """Compare the correlation of the data sets, the first pair, with those of their halves."""
    spearman = [pair["correlations"][0]["spearman"] for pair in pairs.values()]
    if None in spearman:
        return "Where all heads have the same score, it is not known whether the data differ."
    whole, *halves = (numbers.fixed(value, 2, sign=True) for value in spearman)
    return (
        f"Spearman's correlation of the two data sets' scores is {whole}; of two halves of the "
        f"same data set, {' and '.join(halves)}. If the first is clearly below these, the data "
        "differ; if it is near them, the difference is noise."
    )


def compare_scores(scores: Sequence[Scores]) -> dict[str, Any]:
    """Compare every pair of scores of one model's units, by different methods.

    Returns:
        `units`: their number; `of`: what they are, in words; `scores`: `name`, `method` and
        `signature` of each; `pairs`: for each pair `first` and `second` (methods), and what
        `compared_pair` returns.
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
            {"first": first.method, "second": second.method, **compared_pair(first, second)}
            for first, second in combinations(scores, 2)
        ],
    }


def compared_pair(
    first: Scores, second: Scores, seed: int | None = None
) -> dict[str, list[dict[str, Any]]]:
    """How alike two scorings rank units.

    Returns:
        `correlations`, over all units and within each kind of sublayer: `kind` (`all` first),
        `units`, `spearman` and `kendall` (tau-b, Kendall 1945, which corrects for ties), between -1
        and 1; None where all scores of one are the same. `lowest`: `units`, a number k; `shared`,
        the overlap of the two k-lowest sets (see `shared_units`); `by_chance`, the expected overlap
        of random sets. With a seed also the p-values `p` of `permutation_p` and `overlap_p`.
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
        # The mean of the hypergeometric distribution, which `overlap_p` tests with.
        row = {"units": count, "shared": shared, "by_chance": count * count / total}
        if seed is not None:
            row["p"] = overlap_p(shared, total, count, count)
        lowest.append(row)
    return {"correlations": correlations, "lowest": lowest}


def flat(scores: Scores, kind: str | None = None) -> Floats:
    """All scores, or those of a kind, layer by layer."""
    names = [name for name in scores.values if kind in (None, kind_of(name))]
    return np.concatenate([np.asarray(scores.values[name], dtype=np.float64) for name in names])


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


def overlap_p(shared: int | None, total: int, first: int, second: int) -> float | None:
    """Probability that random sets of `first` and `second` of `total` share `shared` or more."""
    # `sf` is the probability of more than its argument.
    return None if shared is None else float(hypergeom.sf(shared - 1, total, first, second))


def permutation_p(x: Floats, y: Floats, seed: int) -> float:
    """Two-sided p-value of Spearman's correlation by shuffling one side.

    (1 + number of shuffles with at least as large an absolute correlation) / (1 + shuffles).
    """
    # Spearman's correlation is Pearson's of ranks. Shuffling changes no variance, so products of
    # centered ranks stand for the correlations.
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
            p = numbers.p_value(row.get("p"))
            ranks.append((name, kind, str(row["units"]), *values, p))
        for row in pair["lowest"]:
            shared, chance = numbers.fixed(row["shared"], 0), numbers.fixed(row["by_chance"], 1)
            p = numbers.p_value(row.get("p"))
            lowest.append((name, str(row["units"]), shared, chance, p))
    tested = all("p" in row for pair in pairs.values() for row in pair["lowest"])
    by_shuffling = f"; p by shuffling {of} (two-sided, Spearman)" if tested else ""
    at_least = f"; p is the probability of at least as many shared {of} by chance" if tested else ""
    sublayers = "attention" if of == "heads" else "sublayer"
    fill = partial(table, left_out=[] if tested else ["p"], of=of, sublayers=sublayers)
    correlations = fill("correlations", ranks, tested=by_shuffling)
    return [correlations, fill("overlap", lowest, tested=at_least)]


def comparison_text(comparison: Mapping[str, Any]) -> str:
    """The result of `compare_scores`, for a terminal."""
    pairs = {f"{pair['first']} and {pair['second']}": pair for pair in comparison["pairs"]}
    return tables_as_text(comparison_tables(pairs, comparison["of"]))


def comparison_plot(scores: Sequence[Scores], path: Path) -> None:
    """Draw every pair of scores as a scatter of ranks, 1 = the least important unit; PNG or SVG."""
    with plot_style("compare-scores"):
        # By its title a plot is known as one that may be written over.
        save_figure(comparison_figure(scores), path, Title=PLOT_TITLE)


def comparison_figure(scores: Sequence[Scores]) -> Figure:
    """The figure of `comparison_plot`: one panel per pair, in a triangle; a marker per kind."""
    size = len(scores) - 1
    side = 3.6 if size == 1 else 2.8
    figure = Figure(figsize=(side * size, side * size + 0.5), layout="constrained")
    names = scores[0].values
    kinds = np.array([kind_of(name) for name, values in names.items() for _ in values])
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
