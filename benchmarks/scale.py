"""How throughput, latency and memory grow with batch size, sequence length and model size.

    python -m benchmarks.scale --work DIR [--device cuda] [--threads N]

Encoders with random weights, dense and with half of their heads, timed by `compressor.throughput`:
one of the three varies, the other two keep their middle value. The bundled translator, dense and
with half of its heads, at several batch sizes and generated lengths.

Results: benchmarks/results/scale.json, .md and .png (scale-cuda.* with --device cuda).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from benchmarks import pages
from benchmarks.speed import models
from compressor import example
from compressor.model.architectures import architecture
from compressor.model.pruning_record import read_pruning_record
from compressor.report.plots import COLORS, DENSE, FAINT
from compressor.tasks import TASKS
from compressor.throughput import Subject, benchmark
from compressor.throughput.hardware import cores, describe

Device = Literal["cpu", "cuda"]

SIZES = ((2, 128), (4, 256), (6, 384), (8, 512), (12, 768))  # layers, width
SIZE, BATCH, LENGTH = (6, 384), 8, 32  # middle values
BATCHES = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = (8, 16, 32, 64, 128, 256)
TARGETS = (4, 8, 16, 32, 64)  # generated tokens
PANELS = (
    ("sentences_per_second", "sentences per second"),
    ("p50", "latency of a batch, p50, ms"),
    ("peak_memory_mib", "peak memory, MiB"),
    ("speedup", "speed-up of half the heads"),
)


class Model:
    """Dense and pruned artifacts of one checkpoint."""

    def __init__(self, checkpoint: Path, rows: str, output: Path, device: Device) -> None:
        pages.compress(
            output, "python -m benchmarks.scale", model=str(checkpoint), keep=["0.5"],
            calibration=rows, calibration_rows=32, method="magnitude", recover="none", bench=False,
            device=device, precision=["fp32", "fp16"] if device == "cuda" else ["fp32"],
        )  # fmt: skip
        mask = read_pruning_record(output).mask
        self.config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        dense = output / ".compress" / "dense"
        self.subjects = [
            Subject("dense", dense, mask.totals()),
            Subject("half", output, mask.counts()),
        ]
        task = architecture(self.config["model_type"]).task
        self.rows = TASKS[task].read_rows(rows, languages=("en", "de"), minimum=2)

    def measure(self, args: argparse.Namespace, **settings: Any) -> list[dict[str, Any]]:
        found = benchmark(
            self.subjects, rows=self.rows, config=self.config, device=args.device,
            precision="fp16" if args.device == "cuda" else "fp32",
            threads=args.threads or cores(), seconds=args.seconds, **settings,
        )  # fmt: skip
        return [row.model_dump() for row in found.rows]


def sweeps(args: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Name of the varied quantity -> timings, each with the value of that quantity as `x`."""
    rows = str(models.labelled_sentences(args.work / "rows.tsv"))
    encoders = {}
    for layers, width in SIZES:
        directory = args.work / f"encoder-{layers}-{width}"
        checkpoint = models.encoder(directory, layers=layers, width=width)
        output = args.work / f"{checkpoint.name}-out"
        encoders[layers, width] = Model(checkpoint, rows, output, args.device)
    middle = encoders[SIZE]
    output = args.work / "translator-out"
    bundled = Path(example.model())
    translator = Model(bundled, str(example.calibration()), output, args.device)

    def points(x: float, model: Model, **settings: Any) -> list[dict[str, Any]]:
        timed = model.measure(args, **{"batch_sizes": [BATCH]} | settings)
        return [row | {"x": x or row["batch_size"]} for row in timed]

    def joined(parts: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        return [row for part in parts for row in part]

    return {
        "encoder: rows per batch": points(0, middle, batch_sizes=BATCHES, lengths=LENGTH),
        "encoder: tokens per row": joined(points(n, middle, lengths=n) for n in LENGTHS),
        "encoder: million weights in its layers": joined(
            points(layers * 12 * width**2 / 1e6, encoder, lengths=LENGTH)
            for (layers, width), encoder in encoders.items()
        ),
        "translator: rows per batch": points(0, translator, batch_sizes=BATCHES, target_length=16),
        "translator: generated tokens per row": joined(
            points(n, translator, target_length=n) for n in TARGETS
        ),
    }


def value(row: Mapping[str, Any], name: str) -> float | None:
    found = row["latency_ms"]["p50"] if name == "p50" else row[name]
    return None if found is None else float(found)


def draw(result: Mapping[str, list[dict[str, Any]]], path: Path) -> None:
    """A column per varied quantity, a row per measured quantity."""
    width, height = 3.4 * len(result), 2.7 * len(PANELS)
    with pages.drawing(path, width, height, nrows=len(PANELS), ncols=len(result)) as (_, axes):
        for (title, rows), column in zip(result.items(), axes.T, strict=True):
            column[0].set_title(title)
            for axis, (name, label) in zip(column, PANELS, strict=True):
                _panel(axis, rows, name)
                if title == next(iter(result)):
                    axis.set_ylabel(label)
                    axis.legend()


def _panel(axis: Any, rows: Sequence[Mapping[str, Any]], name: str) -> None:
    """One quantity of both models; both axes are logarithmic, but for ratios and memory."""
    from matplotlib.ticker import LogLocator, NullLocator

    for variant, color in (("dense", DENSE), ("half", COLORS[0])):
        points = [(r["x"], value(r, name)) for r in rows if r["variant"] == variant]
        shown = [(x, y) for x, y in points if y is not None]
        if shown or name == "peak_memory_mib":
            axis.plot([x for x, _ in shown], [y for _, y in shown], "o-", color=color,
                      label=variant)  # fmt: skip
    if name == "speedup":
        half = [r for r in rows if r["variant"] == "half"]
        for row in half:
            axis.plot([row["x"]] * 2, row["speedup_interval"], color=COLORS[0], lw=1)
        counted = [(r["x"], r["macs_ratio"]) for r in half if r["macs_ratio"] is not None]
        label = "ratio of multiply-adds"
        axis.plot(*zip(*counted, strict=True), "--", color=COLORS[1], label=label)
        axis.axhline(1, color=FAINT, lw=0.8)
    elif name != "peak_memory_mib":
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted({r["x"] for r in rows}))
    axis.xaxis.set_major_formatter("{x:.3g}")
    axis.xaxis.set_minor_locator(NullLocator())


def table(result: Mapping[str, list[dict[str, Any]]], facts: str) -> str:
    head = ["", "dense sent/s", "half sent/s", "speed-up", "ratio of multiply-adds"]
    head += ["dense p50 ms", "half p50 ms", "dense MiB", "half MiB"]
    parts = []
    for title, rows in result.items():
        lines = []
        for x in dict.fromkeys(row["x"] for row in rows):
            dense, half = (
                r for v in ("dense", "half") for r in rows if (r["variant"], r["x"]) == (v, x)
            )
            memory = [
                "–" if r["peak_memory_mib"] is None else f"{r['peak_memory_mib']:.0f}"
                for r in (dense, half)
            ]
            cells = [
                f"{x:.3g}", f"{dense['sentences_per_second']:.1f}",
                f"{half['sentences_per_second']:.1f}",
                pages.with_interval(half["speedup"], half["speedup_interval"]),
                "–" if half["macs_ratio"] is None else f"{half['macs_ratio']:.2f}",
                f"{dense['latency_ms']['p50']:.1f}", f"{half['latency_ms']['p50']:.1f}", *memory,
            ]  # fmt: skip
            lines.append(cells)
        parts.append(f"### {title}\n\n{pages.markdown_table(head, 'lr', lines)}")
    return "\n\n".join([*parts, facts]) + "\n"


def main() -> None:
    parser = pages.arguments(__doc__)
    parser.add_argument("--work", type=Path, required=True, help="models, reused by later calls")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="minimum time per model and point"
    )
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    result = sweeps(args)
    name = "scale-cuda" if args.device == "cuda" else "scale"
    pages.write_json(pages.RESULTS / f"{name}.json", result)
    hardware = ", ".join(f"{key}: {found}" for key, found in describe().items())
    layers, width = SIZE
    facts = (
        f"Encoders of {layers} layers and width {width}, {BATCH} rows of {LENGTH} tokens, where "
        f"these do not vary; the bundled translator with {BATCH} rows and 16 tokens. "
        f"{'fp16' if args.device == 'cuda' else 'fp32'}, {args.threads or cores()} threads. "
        f"{hardware}."
    )
    draw(result, pages.RESULTS / f"{name}.png")
    pages.publish(name, table(result, facts))


if __name__ == "__main__":
    main()
