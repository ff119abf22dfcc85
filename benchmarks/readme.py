"""Copy the measured tables into README.md and docs/, between their markers.

    python -m benchmarks.readme [--demo TEXT_FILE]

Tables come from benchmarks/results; --demo takes the output of `compress demo`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from benchmarks import tradeoff
from compressor.report.schema import Report, load_report

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
# Page -> marker -> file in benchmarks/results.
PAGES = {
    "docs/results.md": {
        "translator": "translator.md",
        "classifier": "classifier.md",
        "tradeoff-translator": "tradeoff-translator.md",
        "tradeoff-classifier": "tradeoff-classifier.md",
        "quality-translator-summary": "quality-translator-summary.md",
        "quality-classifier-summary": "quality-classifier-summary.md",
        "scoring": "scoring.md",
    },
    "docs/serving.md": {"batch-tokens": "batch-tokens.md"},
    "docs/precision.md": {"int8-scales": "int8-scales.md"},
    "docs/speed.md": {"speed": "speed-1-threads-summary.md", "operators": "operators.md"},
}
MOST_LOST = 1.0  # points, of what the README's table shows
NAMES = {
    "classifier": "MiniLM-L6, CLINC150, accuracy in %",
    "translator": "bundled translator, Tatoeba, BLEU",
}


def put(text: str, name: str, content: str) -> str:
    """Replace the text between `<!-- name:start -->` and `<!-- name:end -->`."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    if start not in text:
        raise SystemExit(f"there is no marker {start}")
    pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{start}\n\n{content.strip()}\n\n{end}", text)


def first_table() -> str:
    """Markdown: of each model the dense one, and the fastest builds that lose at most a point."""
    batches = " | ".join(f"batch {batch}" for batch in tradeoff.BATCHES)
    lines = [
        f"| model, data, metric | build | quality | {batches} | ONNX, MB |",
        "| --- | --- | ---: |" + " ---: |" * len(tradeoff.BATCHES) + " ---: |",
    ]
    for name, title in NAMES.items():
        paths = sorted(RESULTS.glob(f"tradeoff-{name}-*.json"))
        reports = [load_report(path) for path in paths]
        dense = reports[0].dense
        quality = next(
            iter(tradeoff.main_comparison(r, v).dense for r in reports for v in r.variants)
        )
        size = f"{dense.onnx_bytes / 1e6:.1f}"
        once = " | ".join("1" for _ in tradeoff.BATCHES)
        lines.append(f"| {title} | dense, fp32 | {quality:.2f} | {once} | {size} |")
        lines += [_fastest(reports, precision) for precision in ("fp32", "int8")]
    first = reports[0]
    assert first.throughput is not None
    return "\n".join([
        *lines, "",
        "The fastest builds at batch 64 that lose at most a point; times as fast as dense fp32, "
        f"timed in turns with it, {first.throughput.threads} threads, "
        f"{first.hardware.get('cpu', '')}.",
    ])  # fmt: skip


def _fastest(reports: list[Report], precision: str) -> str:
    last = tradeoff.BATCHES[-1]
    found = [
        (tradeoff.timing(report, variant.name, last).speedup or 1, report, variant)
        for report in reports
        for variant in report.variants
        if variant.precision == precision
        and tradeoff.main_comparison(report, variant).difference >= -MOST_LOST
    ]
    _, report, variant = max(found, key=lambda item: item[0])
    compared = tradeoff.main_comparison(report, variant)
    times = [
        tradeoff.timing(report, variant.name, batch).speedup or 1 for batch in tradeoff.BATCHES
    ]
    low, high = compared.interval
    return (
        f"| | {variant.name} | {compared.pruned:.2f} ({compared.difference:+.2f} [{low:+.2f}, "
        f"{high:+.2f}]) | {' | '.join(f'{time:.2f}' for time in times)} | "
        f"{variant.onnx_bytes / 1e6:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, help="the output of `compress demo`")
    args = parser.parse_args()
    for page, tables in PAGES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        for name, file in tables.items():
            text = put(text, name, (RESULTS / file).read_text(encoding="utf-8"))
        (ROOT / page).write_text(text, encoding="utf-8")
    text = put((ROOT / "README.md").read_text(encoding="utf-8"), "first-page", first_table())
    if args.demo is not None:
        text = put(text, "demo", f"```text\n{args.demo.read_text(encoding='utf-8').strip()}\n```")
    (ROOT / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
