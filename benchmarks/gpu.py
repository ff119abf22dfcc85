"""What `benchmarks/gpu.sh` measured on a GPU: a short table of it, and docs/gpu.md.

    python -m benchmarks.gpu table FOLDER
    python -m benchmarks.gpu publish FOLDER

`publish` copies the measured files to benchmarks/results/gpu, in place of those there, and writes
docs/gpu.md from them. The folder may hold any of: `speed-*.json` (benchmarks.speed),
`*-report.json` (`compress run`), `distill-rate.json` (benchmarks.distill_rate), `*-forms.json`
(milliseconds of single forms of a graph), `about.json` (the version), `stages.tsv` (what each stage
of gpu.sh took, and how it ended), and `notes.md`, what a person says about the measurements.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import distill_rate
from benchmarks.pages import RESULTS, ROOT, arguments, markdown_table, read_json, write_json

PUBLISHED = RESULTS / "gpu"
PAGE = ROOT / "docs" / "gpu.md"
INTRO = """# On a GPU

`benchmarks/gpu.sh FOLDER` measures on a GPU in eight minutes; `python -m benchmarks.gpu publish
FOLDER` writes this page from its files, which are kept in
[benchmarks/results/gpu](../benchmarks/results/gpu). Everything here is one run on one card."""
ABOUT_RATES = (
    "Rows a second; in brackets times as fast as the fastest dense build in the table at that "
    "size, of any program. Builds of a table were timed in turns on the same batches."
)
ABOUT_FORMS = {
    "encoder": "Milliseconds a batch (rows × tokens) of forms of the same encoder in fp16, with "
    "12 layers of width 768. `dense` and `pruned` (half of heads and neurons) are this program's "
    "graphs; `torch` is PyTorch with SDPA; `fused` are graphs written by hand of onnxruntime's "
    "contrib operators, with 12 or 6 heads. `arrays`: rows are copied from and to the host; "
    "`bound`: they stay on the device. Each form was timed alone: differences under 10 % mean "
    "nothing.",
    "decoder": "Milliseconds of forms of the same decoder in fp16, by rows. `product` is this "
    "program's greedy search, of which `session` is onnxruntime's part. Each form was timed alone: "
    "differences under 10 % mean nothing.",
}


@dataclass(frozen=True)
class Timed:
    """One build at one size."""

    build: str  # as tables name it
    is_dense: bool
    size: str  # `256 × 128` or `256`: rows, and tokens where rows were cut or padded to a length
    rate: float  # rows a second
    ms: float  # of a batch, the median
    step_ms: float | None  # of a generated token, the encoder's share included; None for encoders


@dataclass(frozen=True)
class Comparison:
    """Builds of one model that were timed in turns."""

    name: str  # of the model; the title says more
    title: str
    rows: list[Timed]
    quality: dict[str, str]  # of builds that it was measured of, with the metric's name

    def best(self, size: str, dense: bool) -> Timed | None:
        """The fastest build, dense or pruned."""
        rows = (row for row in self.rows if (row.size, row.is_dense) == (size, dense))
        return max(rows, key=lambda row: row.rate, default=None)

    @property
    def sizes(self) -> list[str]:
        return list(dict.fromkeys(row.size for row in self.rows))


def comparisons(folder: Path) -> list[Comparison]:
    """What was timed in turns, model by model."""
    speeds, reports = (sorted(folder.glob(x)) for x in ("speed-*.json", "*-report.json"))
    found = [_of_speed(read_json(path, {})) for path in speeds]
    return found + [_of_report(read_json(path, {})) for path in reports]


def _of_speed(result: dict[str, Any]) -> Comparison:
    reference = result["timings"][0]["reference"]
    rows = [row for row in result["timings"] if row["reference"] == reference]
    lengths = {row["source_tokens"] for row in rows}
    fixed = all(length == int(length) for length in lengths) and result["target_length"] is None
    quality = {
        peer["name"]: f"{peer['quality']['value']:.2f} {peer['quality']['metric']}"
        for peer in result["peers"]
        if peer["quality"] is not None
    }
    options = " ".join(f"--{option} {value}" for option, value in result["budget"].items())
    title = f"{result['title']}; pruned with `{options}`: {_share(result['macs_share'])}"
    if result.get("unsorted"):
        title += "; batches in the order of the data"
    timed = [_timed(row, ", pruned" not in row["variant"], fixed) for row in rows]
    return Comparison(result["name"], title, timed, quality)


def _of_report(report: dict[str, Any]) -> Comparison:
    models = [report["dense"], *report["variants"]]
    dense = {model["name"] for model in models if model["budget"] == report["dense"]["budget"]}
    quality = {}
    for model in models:
        metrics = {c["metric"]: c["pruned"] for c in model["comparisons"]}
        metrics = metrics or (model["quality"] or {}).get("metrics", {})
        if metrics:
            quality[model["name"]] = ", ".join(f"{v:.2f} {name}" for name, v in metrics.items())
    pruned = next(model for model in models if model["name"] not in dense)
    name = f"{Path(report['model']).name}, compress run"
    title = f"`{report['command']}`: {pruned['name']} has {_share(pruned['macs_share'])}"
    rows = [_timed(r, r["variant"] in dense, False) for r in report["throughput"]["rows"]]
    return Comparison(name, title, rows, quality)


def _share(macs_share: float) -> str:
    return f"{macs_share:.0%} of the multiply-adds"


def _timed(row: dict[str, Any], is_dense: bool, fixed: bool) -> Timed:
    size = f"{row['batch_size']}" + (f" × {row['source_tokens']:.0f}" if fixed else "")
    ms, target = row["latency_ms"]["p50"], row["target_tokens"]
    step = ms / target if target else None
    return Timed(row["variant"], is_dense, size, row["sentences_per_second"], ms, step)


def gains(found: list[Comparison]) -> str:
    """A line for each model and size: the fastest pruned build over the fastest dense one."""
    lines = []
    for comparison in found:
        for size in comparison.sizes:
            dense, pruned = comparison.best(size, True), comparison.best(size, False)
            if dense and pruned:
                ratio = f"{pruned.rate / dense.rate:.2f}"
                cells = [f"{row.build} ({_number(row.rate)})" for row in (dense, pruned)]
                lines.append([comparison.name, size, *cells, ratio])
    titles = ["model", "rows (× tokens)", "fastest dense build (rows a second)", "fastest pruned"]
    return markdown_table([*titles, "times as fast"], "llllr", lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rates(comparison: Comparison) -> str:
    def cell(row: Timed) -> str:
        dense = comparison.best(row.size, True)
        return _number(row.rate) + (f" ({row.rate / dense.rate:.2f})" if dense else "")

    return _by_size(comparison, cell, comparison.quality)


def latencies(comparison: Comparison) -> str:
    def cell(row: Timed) -> str:
        return f"{row.ms:.2f}" + ("" if row.step_ms is None else f" / {row.step_ms:.2f}")

    return _by_size(comparison, cell, {})


def _by_size(
    comparison: Comparison, cell: Callable[[Timed], str], quality: Mapping[str, str]
) -> str:
    """A line for each build, a column for each size, and one for the quality where it is known."""
    cells = {(row.build, row.size): cell(row) for row in comparison.rows}
    lines = [
        [build, *(cells.get((build, size), "–") for size in comparison.sizes)]
        + ([quality.get(build, "–")] if quality else [])
        for build in dict.fromkeys(row.build for row in comparison.rows)
    ]
    titles = ["build", *comparison.sizes, *(["quality"] if quality else [])]
    return markdown_table(titles, "lr", lines)


def forms(found: dict[str, Any]) -> str:
    """A table of single forms: a line for each, a column for each size."""
    table: dict[str, dict[str, str]] = {}
    for key, value in found.items():
        parts = re.fullmatch(r"(.*?) (b\d+|\d+x\d+)(?: source \d+)?[:,]? (.*)", key)
        if parts and not isinstance(value, list):  # lists count the nodes of a graph
            form, size, how = parts.groups()
            size = size.removeprefix("b").replace("x", " × ")
            cell = "refused" if isinstance(value, str) else f"{value:.2f}"
            table.setdefault(f"{form}, {how}", {})[size] = cell
    sizes = list(dict.fromkeys(size for cells in table.values() for size in cells))
    lines = [[form, *(cells.get(size, "–") for size in sizes)] for form, cells in table.items()]
    return markdown_table(["form", *sizes], "lr", lines)


def page(folder: Path) -> str:
    """docs/gpu.md from the files of a folder."""
    return "\n\n".join(part.strip() for part in (INTRO, *_parts(folder))) + "\n"


def _parts(folder: Path) -> Iterator[str]:
    yield f"Measured with {_about(folder)}."
    if (folder / "notes.md").exists():
        yield (folder / "notes.md").read_text(encoding="utf-8")
    found = comparisons(folder)
    if found:
        yield f"## What pruning gains\n\n{gains(found)}"
    for comparison in found:
        title = comparison.title[0].upper() + comparison.title[1:]
        yield f"## {comparison.name}\n\n{title}."
        yield ABOUT_RATES
        yield rates(comparison)
        per_token = any(row.step_ms is not None for row in comparison.rows)
        more = " / for each token that it generates, the encoder included" if per_token else ""
        yield f"Milliseconds of a batch, the median{more}:\n\n{latencies(comparison)}"
    for path in sorted(folder.glob("*-forms.json"), reverse=True):  # encoder, decoder
        kind = path.name.removesuffix("-forms.json")
        yield f"## Forms of the {kind}\n\n{ABOUT_FORMS[kind]}\n\n{forms(read_json(path, {}))}"
    for title, text in _distillation_and_stages(folder).items():
        yield f"## {title}\n\n{text}"


def _distillation_and_stages(folder: Path) -> dict[str, str]:
    """Title -> table."""
    tables = {}
    distillation, stages = read_json(folder / "distill-rate.json", None), folder / "stages.tsv"
    if distillation is not None:
        tables["Distillation"] = distill_rate.draw(distillation)
    if stages.exists():
        lines = [line.split("\t") for line in stages.read_text(encoding="utf-8").splitlines()]
        tables["Stages"] = markdown_table(["stage", "seconds", "ended with"], "lr", lines)
    return tables


def _about(folder: Path) -> str:
    """Version, card and packages, from the files that name them."""
    about = read_json(folder / "about.json", {})
    paths = [*sorted(folder.glob("speed-*.json")), *sorted(folder.glob("*-report.json"))]
    machine = read_json(paths[0], {}) if paths else {"hardware": {}, "versions": {}}
    names = ("python", "torch", "transformers", "onnxruntime-gpu", "ctranslate2")
    hardware, versions = machine["hardware"], machine["versions"]
    card = hardware.get("gpu", "no GPU")
    driver = f" (driver {hardware['gpu driver']})" if "gpu driver" in hardware else ""
    packages = [f"{name} {versions[name]}" for name in names if name in versions]
    version = f"version {about['version']} on " if "version" in about else ""
    day = f", {about['date']}" if "date" in about else ""
    return f"{version}one {card}{driver}, with {', '.join(packages)}{day}"


def table(folder: Path) -> str:
    """The short table at the end of gpu.sh."""
    parts = [gains(found)] if (found := comparisons(folder)) else []
    return "\n\n".join([*parts, *_distillation_and_stages(folder).values()])


def publish(folder: Path) -> None:
    """Write the page, from copies of the measured files, unless it is their folder."""
    found = sorted(folder.iterdir())
    if folder.resolve() == PUBLISHED.resolve():
        found = []
    else:
        shutil.rmtree(PUBLISHED, ignore_errors=True)
        PUBLISHED.mkdir(parents=True)
    for path in found:
        if path.suffix == ".json":
            write_json(PUBLISHED / path.name, read_json(path, {}))
        elif path.name in ("notes.md", "stages.tsv"):
            shutil.copyfile(path, PUBLISHED / path.name)
    PAGE.write_text(page(PUBLISHED), encoding="utf-8")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("action", choices=["table", "publish"])
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    if args.action == "publish":
        publish(args.folder)
    else:
        print(table(args.folder))


if __name__ == "__main__":
    main()
