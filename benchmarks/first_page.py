"""What the first page shows: a line for each kind of model, and quality against what is gained.

    python -m benchmarks.first_page

draws benchmarks/results/first-page.png from the reports there; `python -m benchmarks.readme` puts
the table into README.md, and the one of engines into docs/engines.md.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks import tradeoff
from benchmarks.pages import RESULTS, drawing, markdown_table, read_json, with_interval
from compressor.report.plots import COLORS, DENSE, FAINT
from compressor.steps.results import Variant

Row = dict[str, Any]  # one build of `benchmarks.engines` at one shape

FIGURE = RESULTS / "first-page.png"
MOST_LOST = 1.0  # points, of what is shown
SHOWN = 3.0  # points, in the figure
CURVES: list[tuple[str, str, str, dict[str, Any]]] = [
    (
        "classifier", "reconstruct+distill", "classifier (MiniLM-L6), distilled",
        {"color": COLORS[0], "marker": "o"},
    ),
    (
        "translator", "reconstruct+distill", "translator (ours), distilled",
        {"color": COLORS[1], "marker": "*", "markersize": 12, "linestyle": ""},
    ),
    (
        "translator", "reconstruct", "translator (ours), without training",
        {"color": COLORS[1], "marker": "s", "linestyle": "--"},
    ),
]  # fmt: skip
# Kind of model -> its reports, what was measured, what it learned from, and the metric's name.
_CLASSIFIER = ("MiniLM-L6 on CLINC150", "15,000 unlabeled texts", "points of accuracy")
KINDS = {
    "Classifier": ("classifier", *_CLASSIFIER),
    "Translator": ("translator", "ours, 12.6 M weights", "130,000 unlabeled sentences", "BLEU"),
}
ENCODER = ("Sentence encoder", "MiniLM-L6 on three sets of pairs", "20,000 unlabeled texts")
# Texts a second in int8, dense and cut: docs/embedding.md, a single trial.
ENCODER_RATES = (1378, 3296)
ENCODER_MACS = 0.25
WHERE = "Intel Xeon with AMX, 1 thread"
TASKS = {"classification": "classifier", "translation": "translator"}
ENGINES = {"onnxruntime": "onnxruntime", "openvino": "OpenVINO", "ctranslate2": "CTranslate2"}


def table() -> str:
    """Markdown: what is gained over the fastest dense build, where, and for what."""
    classifier, translator = (_line(kind, *parts) for kind, parts in KINDS.items())
    titles = ["model", "removed", "times the fastest dense build", "measured on", "distilled on"]
    rows = [classifier, _encoder_line(), translator]
    return markdown_table([*titles, "quality, difference [95 %]"], "l", rows)


def _line(kind: str, name: str, model: str, texts: str, metric: str) -> list[str]:
    reports = tradeoff.load_reports(name)
    builds = list(tradeoff.looks(reports))
    gains, cut = [], None
    for batch in tradeoff.BATCHES:
        found = tradeoff.fastest(reports, builds, batch, MOST_LOST)
        assert found is not None
        report, cut = found
        label = f"{ENGINES[cut.engine]} {cut.precision}"
        gains.append(f"**{tradeoff.gain(report, cut.name, batch):.1f}** at batch {batch} ({label})")
    assert cut is not None
    compared = tradeoff.main_comparison(report, cut)
    change = with_interval(compared.difference, compared.interval, "+")
    return [
        f"{kind}: {model}", f"{1 - cut.macs_share:.0%} of the multiply-adds", "; ".join(gains),
        WHERE, texts, f"{change} {metric}",
    ]  # fmt: skip


def _encoder_line() -> list[str]:
    rows = read_json(RESULTS / "embedding.json", [])
    means = []
    for macs, distilled in ((1.0, False), (ENCODER_MACS, True)):
        scores = [
            row["spearman"] for row in rows
            if row["precision"] == "int8" and abs(row["macs"] - macs) < 0.01
            and bool(row["distilled"]) is distilled
        ]  # fmt: skip
        means.append(sum(scores) / len(scores))
    kind, model, texts = ENCODER
    dense, cut = ENCODER_RATES
    return [
        f"{kind}: {model}", f"{1 - ENCODER_MACS:.0%} of the multiply-adds",
        f"**{cut / dense:.1f}** for 512 texts in one call (onnxruntime int8, a single trial)",
        WHERE, texts, f"{means[1] - means[0]:+.1f} Spearman (mean of three sets)",
    ]  # fmt: skip


def choice() -> str:
    """Markdown: the fastest dense and pruned build, by task, processor and shape of batches."""
    lines = []
    for name, task in TASKS.items():
        for machine, rows in read_json(RESULTS / f"engines-{name}.json", {}).items():
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
    """The fastest dense build and the fastest pruned one, of what `compress` writes unasked."""
    there = sorted(
        (row for row in rows
         if (row["rows"], row["tokens"]) == shape
         and "NNCF" not in row["precision"] and not row["model"].endswith(" tokens")),
        key=lambda row: -row["rows_per_second"],
    )  # fmt: skip
    dense, pruned = (
        next(row for row in there if row["model"].startswith("dense") is dense)
        for dense in (True, False)
    )
    return dense, pruned


def _build(row: Row) -> str:
    return f"{ENGINES[row['engine']]} {row['precision']}"


def _processor(machine: str) -> str:
    maker = "Intel" if machine.startswith("Intel") else "AMD"
    return f"{maker}, {'AMX' if 'amx_int8' in machine else 'AVX2 alone'}"


def draw(path: Path = FIGURE) -> None:
    """Quality against the gain over the fastest dense build, at the largest batch."""
    batch = tradeoff.BATCHES[-1]
    with drawing(path, 7.2, 4.2) as (_, ((axes,),)):
        axes.plot([1], [0], color=DENSE, marker="D", linestyle="", label="fastest dense build")
        axes.axhline(0, color=FAINT, linewidth=1, zorder=0)
        for name, recovery, label, look in CURVES:
            points = [point for point in _curve(name, recovery, batch) if point[1] > -SHOWN]
            axes.plot([x for x, *_ in points], [y for _, y, _ in points], label=label, **look)
            beside = look.get("linestyle") == "--"  # a steep line, which labels above would hide
            for number, (x, y, text) in enumerate(points):
                place, side = ((9, -4), "left") if beside and number else ((0, 8), "center")
                axes.annotate(text, (x, y), place, textcoords="offset points", ha=side, fontsize=9)
        axes.set_xlabel(f"times as fast as the fastest dense build of any engine, batch {batch}")
        axes.set_ylabel("points of accuracy or BLEU, against dense")
        axes.margins(x=0.08, y=0.15)
        axes.legend(loc="lower right", frameon=False)


def _curve(name: str, recovery: str, batch: int) -> list[tuple[float, float, str]]:
    """Gain, difference in quality and size of each cut in its fastest build, the mildest first."""
    by_cut: dict[str, tuple[float, Variant, float]] = {}
    for report in tradeoff.load_reports(name):
        for variant in report.variants:
            if tradeoff.is_dense(variant) or tradeoff.recovery_of(variant) != recovery:
                continue
            cut = variant.base or variant.name
            gain = tradeoff.gain(report, variant.name, batch)
            if cut not in by_cut or gain > by_cut[cut][0]:
                by_cut[cut] = gain, variant, tradeoff.main_comparison(report, variant).difference
    return [
        (gain, difference, f"{variant.macs_share:.0%}")
        for gain, variant, difference in sorted(by_cut.values(), key=lambda x: -x[1].macs_share)
    ]


if __name__ == "__main__":
    draw()
