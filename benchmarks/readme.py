"""Copy the measured tables into README.md and docs/, between their markers.

    python -m benchmarks.readme [--demo TEXT_FILE]

Tables come from benchmarks/results; --demo takes the output of `compress demo`, of which
the last paragraph is shown.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from benchmarks import tradeoff
from benchmarks.pages import RESULTS, markdown_table, with_interval
from compressor.report.schema import Report
from compressor.results import Variant

ROOT = Path(__file__).parent.parent
# Page -> marker -> file in benchmarks/results.
PAGES = {
    "docs/results.md": {
        "classifier": "classifier.md",
        "tradeoff-translator": "tradeoff-translator.md",
        "tradeoff-classifier": "tradeoff-classifier.md",
        "quality-translator-summary": "quality-translator-summary.md",
        "quality-classifier-summary": "quality-classifier-summary.md",
        "scoring": "scoring.md",
    },
    "docs/budgets.md": {"equal-speed": "equal-speed.md"},
    "docs/serving.md": {
        "workers": "workers.md",
        "batch-tokens": "batch-tokens.md",
        "engines-classification": "engines-classification.md",
        "engines-translation": "engines-translation.md",
    },
    "docs/recovery.md": {"text-memory": "text-memory.md"},
    "docs/precision.md": {"int8-scales": "int8-scales.md"},
    "docs/embedding.md": {"embedding": "embedding.md"},
    "docs/costs.md": {"costs": "costs.md"},
    "docs/tokens.md": {
        "token-classification": "token-classification.md",
        "question-answering": "question-answering.md",
    },
    "docs/scores.md": {
        "scores-reranking": "scores-reranking.md",
        "scores-regression": "scores-regression.md",
    },
    "docs/speed.md": {
        "speed": "speed-1-threads-summary.md",
        "operators": "operators.md",
        "step": "step.md",
        "source-text": "source-text.md",
        "memory": "memory.md",
    },
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
    """Markdown: of each model the dense ones, and the fastest builds that lose at most a point."""
    batches = tradeoff.BATCHES
    rows, machines = [], []
    for name, title in NAMES.items():
        reports = tradeoff.load_reports(name)
        first = reports[0]
        quality = tradeoff.main_comparison(first, first.variants[0]).dense
        size = f"{first.dense.onnx_bytes / 1e6:.1f}"
        rows.append([title, "dense, fp32", f"{quality:.2f}", *("1" for _ in batches), size])
        rows += [_row(first, v) for v in first.variants if v.name == "dense-int8"]
        rows += [_fastest(reports, precision) for precision in tradeoff.LOOKS]
        assert first.throughput is not None
        cpu = first.hardware.get("cpu", "")
        machines.append(f"{first.throughput.threads} threads, {cpu}")
    titles = ["model, data, metric", "build", "quality", *(f"batch {batch}" for batch in batches)]
    about = (
        "The fastest builds at batch 64 that lose at most a point; times as fast as dense fp32, "
        f"timed in turns with it, {'; '.join(dict.fromkeys(machines))}."
    )
    return f"{markdown_table([*titles, 'ONNX, MB'], 'llr', rows)}\n\n{about}"


def _fastest(reports: list[Report], precision: str) -> list[str]:
    found = tradeoff.fastest(reports, precision, tradeoff.BATCHES[-1], MOST_LOST)
    assert found is not None
    return _row(*found)


def _row(report: Report, variant: Variant) -> list[str]:
    compared = tradeoff.main_comparison(report, variant)
    times = (tradeoff.speedup(report, variant.name, batch) for batch in tradeoff.BATCHES)
    return [
        "", variant.name,
        f"{compared.pruned:.2f} ({with_interval(compared.difference, compared.interval, '+')})",
        *(f"{time:.2f}" for time in times), f"{variant.onnx_bytes / 1e6:.1f}",
    ]  # fmt: skip


def with_tables() -> dict[Path, str]:
    """The pages as they are when every table is that of benchmarks/results."""
    pages = {}
    for page, tables in PAGES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        for name, file in tables.items():
            text = put(text, name, (RESULTS / file).read_text(encoding="utf-8"))
        pages[ROOT / page] = text
    first = ROOT / "README.md"
    pages[first] = put(first.read_text(encoding="utf-8"), "first-page", first_table())
    return pages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, help="the output of `compress demo`")
    args = parser.parse_args()
    for page, text in with_tables().items():
        page.write_text(text, encoding="utf-8")
    if args.demo is not None:
        *_, last = args.demo.read_text(encoding="utf-8").strip().split("\n\n")
        first = ROOT / "README.md"
        text = put(first.read_text(encoding="utf-8"), "demo", f"```text\n{last}\n```")
        first.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
