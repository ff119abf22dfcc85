"""The table and the figure of the quality comparison."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.pages import drawing, markdown_table
from benchmarks.quality.cells import CHOOSERS, MACS, RECOVERED_BY, SHARES
from compressor.report.plots import COLORS, DENSE

UNIT = {"translator": "BLEU", "classifier": "accuracy, %"}
_MARKERS = "os^DvPX*<>hp"

_SHARES = {"heads": SHARES, "macs": MACS}
_OF = {"heads": "heads", "macs": "multiply-adds"}
_PRUNED = {"heads": "heads alone", "neurons": "neurons alone", "both": "heads and neurons"}
Row = dict[str, Any]
Line = tuple[str, str]  # method (with its steps) and recovery


def lines(rows: Sequence[Row]) -> dict[Line, dict[int, list[Row]]]:
    """(method, recovery) -> percent kept -> the cells of all seeds, in the order of the tool."""
    grouped: dict[Line, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        steps = f", {row['steps']} steps" if row["steps"] > 1 else ""
        what = f", {_PRUNED[row['prune']]}" if row.get("of") == "macs" else ""
        grouped[row["method"] + what + steps, row["recover"]][row["kept"]].append(row)

    def place(line: Line) -> tuple[int, int, str]:
        return RECOVERED_BY.index(line[1]), CHOOSERS.index(line[0].partition(",")[0]), line[0]

    return {line: grouped[line] for line in sorted(grouped, key=place)}


def table(rows: Sequence[Row], name: str, what: str = "heads") -> str:
    """Markdown: a line per method and recovery, a column per share kept; best ones bold."""
    found = lines(rows)
    shares = _SHARES[what]
    best = {
        kept: max((_mean(cells[kept]) for cells in found.values() if kept in cells), default=0)
        for kept in shares
    }
    dense = rows[0]["dense"]
    cells_of = (
        [recovery, method, *(_cell(cells.get(kept, []), best[kept]) for kept in shares)]
        for (method, recovery), cells in found.items()
    )
    titles = ["recovery", "method", *(f"{kept} %" for kept in shares)]
    return (
        f"{UNIT[name]} on the test rows by share of the {_OF[what]} kept; dense {dense:.2f}. "
        "Mean and half the range where several seeds were run, else one seed; – was not run; bold: "
        "the best of its column and all whose 95 % interval (paired bootstrap against dense) "
        f"reaches it.\n\n{markdown_table(titles, 'llr', cells_of)}\n"
    )


# What docs/results.md shows: from no recovery at all to everything.
SUMMARY = (
    ("random", "none"),
    ("taylor", "none"),
    ("taylor", "reconstruct"),
    ("taylor (not normalized)", "reconstruct"),
    ("fisher", "reconstruct"),
    ("fisher (not normalized)", "none"),
    ("fisher (not normalized)", "reconstruct"),
    ("second-order", "none"),
    ("second-order", "reconstruct"),
    ("second-order", "distill"),
    ("second-order", "reconstruct+distill"),
    ("ablation", "reconstruct"),
    ("subset", "reconstruct"),
    ("hard-concrete", "none"),
    ("hard-concrete", "reconstruct"),
)
SUMMARY_SHARES = (80, 60, 40, 20)


def summary(rows: Sequence[Row], name: str) -> str:
    """A short form of `table`, for docs/results.md."""
    found = lines(rows)
    chosen = [line for line in SUMMARY if line in found]
    titles = [f"heads of the {name} chosen by", "recovery"]
    titles += [f"{kept} % kept" for kept in SUMMARY_SHARES]
    rest = []
    for line in chosen:
        cells = found[line]
        values = (f"{_mean(cells[k]):.2f}" if cells.get(k) else "–" for k in SUMMARY_SHARES)
        rest.append([*line, *values])
    about = f"{UNIT[name]} on the test rows; dense {rows[0]['dense']:.2f}."
    return f"{markdown_table(titles, 'llr', rest)}\n\n{about}\n"


def _mean(cells: Sequence[Row]) -> float:
    return fmean(cell["quality"] for cell in cells)


def _cell(cells: Sequence[Row], best: float) -> str:
    if not cells:
        return "–"
    value = _mean(cells)
    qualities = [cell["quality"] for cell in cells]
    text = f"{value:.2f}"
    if len(cells) > 1:
        text += f" ± {(max(qualities) - min(qualities)) / 2:.2f}"
    reaches = max(cell["dense"] + cell["interval"][1] for cell in cells) >= best
    return f"**{text}**" if reaches else text


def figure(rows: Sequence[Row], name: str, path: Path, what: str = "heads") -> None:
    """A panel per recovery, a line per method."""
    found = lines(rows)
    recoveries = [name for name in RECOVERED_BY if any(line[1] == name for line in found)]
    methods = list(dict.fromkeys(line[0] for line in found))
    width, count = 4.2 * len(recoveries), len(recoveries)
    with drawing(path, width, 4.6, ncols=count, sharey=True) as (drawn, (panels,)):
        for panel, recovery in zip(panels, recoveries, strict=True):
            panel.axhline(rows[0]["dense"], color=DENSE, linewidth=1, linestyle=":")
            for place, method in enumerate(methods):
                cells = found.get((method, recovery), {})
                shares = sorted(cells)
                marker, color = _MARKERS[place % len(_MARKERS)], COLORS[place % len(COLORS)]
                values = [_mean(cells[kept]) for kept in shares]
                line = "-" if place < len(COLORS) else "--"
                look = {"marker": marker, "color": color, "linestyle": line}
                panel.plot(shares, values, label=method, **look)
            panel.set_title(f"recovery: {recovery}", loc="left")
            panel.set_xlabel(f"{_OF[what]} kept, %")
            panel.set_xlim(95, min(_SHARES[what]) - 5)
        panels[0].set_ylabel(UNIT[name])
        handles = {
            label: handle
            for panel in panels
            for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6)
