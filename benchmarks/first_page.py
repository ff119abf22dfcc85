"""What the first page shows: a line for each kind of model, and quality against what is gained.

    python -m benchmarks.first_page

draws benchmarks/results/first-page.png from the reports there; `python -m benchmarks.readme` puts
the table into README.md, and the one of engines into docs/engines.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import tradeoff
from benchmarks.pages import NNCF, RESULTS, drawing, markdown_table, read_json, with_interval
from compressor.report.plots import COLORS, DENSE, FAINT

if TYPE_CHECKING:
    from compressor.report.schema import Report
    from compressor.steps.results import Variant

Row = dict[str, Any]  # one build of `benchmarks.engines` at one shape

FIGURE = RESULTS / "first-page.png"
BATCH = 16  # rows, of all that is shown
SHOWN = 3.0  # points lost, in the figure
CURVES: list[tuple[str, str, str, dict[str, Any]]] = [
    (
        "classifier", "reconstruct+distill", "classifier (MiniLM-L6), distilled (AMX)",
        {"color": COLORS[0], "marker": "o"},
    ),
    (
        "classifier", "reconstruct+distill, tokens", "the same, fewer tokens too (AVX2 alone)",
        {"color": COLORS[0], "marker": "^", "linestyle": ":"},
    ),
    (
        "classifier", "reconstruct+distill, layers, augmented",
        "three layers, text augmented (AVX-512 VNNI)",
        {"color": COLORS[0], "marker": "*", "markersize": 12, "linestyle": ""},
    ),
    (
        "translator", "reconstruct+distill, layers, target text, by time",
        "translator (ours), distilled",
        {"color": COLORS[1], "marker": "*", "markersize": 12, "linestyle": ""},
    ),
    (
        "translator", "reconstruct+distill, layers of both stacks, target text, by time",
        "the same, three encoder layers less",
        {"color": COLORS[1], "marker": "^", "linestyle": ""},
    ),
    (
        "translator", "reconstruct", "translator (ours), without training",
        {"color": COLORS[1], "marker": "s", "linestyle": "--"},
    ),
]  # fmt: skip
# Name of the reports -> the recovery and the build that are shown, the model, and the metric.
KINDS = {
    "classifier": (
        "reconstruct+distill, layers, augmented", "macs-0.185-int8",
        "Classifier: MiniLM-L6, CLINC150",
        "points of accuracy",
    ),
    "long-classifier": (
        "reconstruct+distill, tokens, layers", "macs-0.05-int8",
        "Longer texts: MiniLM-L6, R8", "points of accuracy",
    ),
    "translator": (
        "reconstruct+distill, layers, target text, by time", "speedup-3.05-at-batch-1-int8",
        "Translator: ours, 12.6 M weights", "BLEU",
    ),
}  # fmt: skip
ENCODER = "Sentence encoder: all-MiniLM-L6-v2"
# Texts a second in int8, dense and cut, 512 texts in one call: docs/embedding.md, a single trial.
ENCODER_RATES = (1378, 3296)
ENCODER_MACS = 0.25
DISTILLED = "reconstruct+distill"
TASKS = {"classification": "classifier", "translation": "translator"}
ENGINES = {"onnxruntime": "onnxruntime", "openvino": "OpenVINO", "ctranslate2": "CTranslate2"}


def table() -> str:
    """Markdown: size, speed and quality before and after; a row is one pruned build.

    Before is the fastest dense build of any engine; of sizes, dense int8.
    """
    *classifiers, translator = (_line(name, *parts) for name, parts in KINDS.items())
    titles = ["model, share of multiply-adds kept", "int8, MB", f"texts a second, batch {BATCH}"]
    rows = [*classifiers, _encoder_line(), translator]
    return markdown_table([*titles, "quality, 95 % interval"], "l", rows)


def _line(name: str, recovery: str, build: str, model: str, metric: str) -> list[str]:
    """A row of the table: a build beside the fastest dense one at the batch size."""
    report = _report(name, recovery)
    cut = next(variant for variant in report.variants if variant.name == build)
    dense = max(
        (x for x in [report.dense, *report.variants] if x is report.dense or tradeoff.is_dense(x)),
        key=lambda x: tradeoff.timing(report, x.name, BATCH).sentences_per_second,
    )
    before, after = (
        tradeoff.timing(report, x.name, BATCH).sentences_per_second for x in (dense, cut)
    )
    compared = tradeoff.main_comparison(report, cut)
    change = with_interval(compared.difference, compared.interval, "+")
    int8 = next(x for x in report.variants if x.name == "dense-int8")
    sizes = f"{int8.onnx_bytes / 1e6:.0f} → {cut.onnx_bytes / 1e6:.0f}"
    gain = tradeoff.gain(report, build, BATCH)
    return [
        f"{model}, {cut.macs_share:.0%} ({_processor(' '.join(report.hardware.values()))})", sizes,
        f"{before:,.0f} → {after:,.0f} (**{gain:.1f} times**)", f"{change} {metric}",
    ]  # fmt: skip


def _encoder_line() -> list[str]:
    """The mean difference over independent sets of rows; its interval by MOVER."""
    rows = [
        row for row in read_json(RESULTS / "embedding.json", [])
        if row["precision"] == "int8" and abs(row["macs"] - ENCODER_MACS) < 0.01
        and row["distilled"]
    ]  # fmt: skip
    changes, lows, highs = zip(
        *((row["difference"], *row["interval"]) for row in rows), strict=True
    )
    count, (dense, cut) = len(rows), ENCODER_RATES
    mean = sum(changes) / count
    # Zou & Donner 2008: of a sum, the squares of the distances to the ends add up.
    low, high = (
        math.hypot(*(x - end for x, end in zip(changes, ends, strict=True))) / count
        for ends in (lows, highs)
    )
    interval = with_interval(mean, (mean - low, mean + high), "+")
    return [
        f"{ENCODER}, {ENCODER_MACS:.0%} (Intel, AMX)", "not recorded",
        f"{dense:,} → {cut:,} (**{cut / dense:.1f} times**, single trial, 512 texts)",
        f"{interval} Spearman, mean of {count} sets",
    ]  # fmt: skip


def _report(name: str, recovery: str) -> Report:
    return next(x for x in tradeoff.load_reports(name) if tradeoff.of_report(x) == recovery)


def choice() -> str:
    """Markdown: the fastest dense and pruned build, by task, processor and shape of batches."""
    lines = []
    for name, task in TASKS.items():
        for machine, rows in read_json(RESULTS / f"engines-{name}.json", {}).items():
            if all(map(_is_dense, rows)):  # nothing that could win over them
                continue
            shapes = sorted({(row["rows"], row["tokens"]) for row in rows}, key=_by_work)
            found = [_winners(rows, shape) for shape in shapes]
            for builds, group in groupby(found, lambda pair: (_build(pair[0]), _build(pair[1]))):
                pruned = [best for _, best in group]
                where = ", ".join(f"{row['rows']} × {row['tokens']}" for row in pruned)
                gains = ", ".join(f"{row['fastest'][0]:.1f}" for row in pruned)
                lost = pruned[-1]["quality"] - rows[0]["quality"]
                model = f"{pruned[-1]['model']}: {lost:+.1f}"
                lines.append([task, _processor(machine), where, *builds, gains, model])
    titles = ["task", "processor", "rows × tokens", "fastest dense build", "fastest pruned build"]
    return markdown_table([*titles, "times as fast", "pruned model: points"], "l", lines)


def _by_work(shape: tuple[int, int]) -> tuple[int, int]:
    return shape[0] * shape[1], shape[1]


def _winners(rows: list[Row], shape: tuple[int, int]) -> tuple[Row, Row]:
    """The fastest dense build of any program, and the fastest pruned one that `compress` writes."""
    there = sorted(
        (row for row in rows
         if (row["rows"], row["tokens"]) == shape and not row["model"].endswith(" tokens")),
        key=lambda row: -row["rows_per_second"],
    )  # fmt: skip
    dense = next(row for row in there if _is_dense(row))
    pruned = next(row for row in there if not _is_dense(row) and row["precision"] != NNCF)
    return dense, pruned


def _is_dense(row: Row) -> bool:
    return row["model"].startswith("dense")


def _build(row: Row) -> str:
    return f"{ENGINES[row['engine']]} {row['precision']}"


def _processor(machine: str) -> str:
    maker = "Intel" if machine.startswith("Intel") else "AMD"
    kinds = {"amx_int8": "AMX", "avx512_vnni": "AVX-512 VNNI"}
    return f"{maker}, {next((kinds[x] for x in kinds if x in machine), 'AVX2 alone')}"


@dataclass(frozen=True)
class _Point:
    """A build in the figure."""

    gain: float
    gains: Sequence[float]  # its interval
    lost: float
    losses: Sequence[float]  # its interval
    label: str


def draw(path: Path = FIGURE) -> None:
    """Quality against the gain over the fastest dense build, of pruned models and dense int8."""
    with drawing(path, 7.2, 4.4) as (_, ((axes,),)):
        axes.plot([1], [0], color=DENSE, marker="D", linestyle="", label="fastest dense build")
        axes.axhline(0, color=FAINT, linewidth=1, zorder=0)
        for number, name in enumerate(dict.fromkeys(name for name, *_ in CURVES)):
            point = _point(_report(name, DISTILLED), "dense-int8", "")
            look = {"color": COLORS[number], "marker": "D", "markersize": 4, "linestyle": ""}
            _draw(axes, [point], f"{name}, dense int8", look)
        for name, recovery, label, look in CURVES:
            points = [point for point in _curve(name, recovery) if point.lost > -SHOWN]
            _draw(axes, points, label, look, below=look.get("linestyle") in ("--", ":"))
        axes.set_xlabel(f"times as fast as the fastest dense build of any engine, batch {BATCH}")
        axes.set_ylabel("points of accuracy or BLEU, against dense")
        axes.margins(x=0.1, y=0.12)
        axes.legend(loc="lower right", frameon=False, fontsize=8)


def _draw(
    axes: Any, points: Sequence[_Point], label: str, look: dict[str, Any], below: bool = False
) -> None:
    """Points with both intervals and what they keep."""
    x, y = [point.gain for point in points], [point.lost for point in points]
    bars = [
        [[abs(value - ends[side]) for value, ends in zip(values, intervals, strict=True)]
         for side in (0, 1)]
        for values, intervals in (
            (x, [point.gains for point in points]), (y, [point.losses for point in points])
        )
    ]  # fmt: skip
    axes.errorbar(x, y, xerr=bars[0], yerr=bars[1], label=label, elinewidth=0.8, **look)
    for number, point in enumerate(points):
        # Neighbors of one series are labelled at two heights.
        place, side = ((6, -10), "left") if below else ((6, 18 if number % 2 else 6), "left")
        if below and number == 0:  # the next one is beside it
            place, side = (-6, -4), "right"
        where = {"textcoords": "offset points", "ha": side, "fontsize": 7.5}
        axes.annotate(point.label, (point.gain, point.lost), place, **where)


def _point(report: Report, name: str, label: str) -> _Point:
    timed = tradeoff.timing(report, name, BATCH)
    variant = next(x for x in report.variants if x.name == name)
    compared = tradeoff.main_comparison(report, variant)
    gain = tradeoff.gain(report, name, BATCH)
    return _Point(
        gain, timed.fastest_speedup_interval or (gain, gain), compared.difference,
        compared.interval, label,
    )  # fmt: skip


def _curve(name: str, recovery: str) -> list[_Point]:
    """Each cut in its fastest build, the mildest first."""
    report = _report(name, recovery)
    fastest: dict[str, Variant] = {}
    for variant in report.variants:
        if tradeoff.is_dense(variant):
            continue
        cut = variant.base or variant.name
        known = fastest.setdefault(cut, variant)
        if tradeoff.gain(report, variant.name, BATCH) > tradeoff.gain(report, known.name, BATCH):
            fastest[cut] = variant
    return [
        _point(report, variant.name, f"{variant.macs_share:.0%} kept")
        for variant in sorted(fastest.values(), key=lambda x: -x.macs_share)
    ]


if __name__ == "__main__":
    draw()
