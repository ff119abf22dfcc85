"""Copy the measured tables into README.md and docs/, between their markers.

    python -m benchmarks.readme [--demo TEXT_FILE]

Tables come from benchmarks/results; --demo takes the output of `compress demo`, of which
the last paragraph is shown.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks import tradeoff
from benchmarks.pages import RESULTS, arguments, markdown_table, with_interval
from compressor.report.schema import Report
from compressor.results import Variant

ROOT = Path(__file__).parent.parent
# Page -> marker -> file in benchmarks/results.
PAGES = {
    "docs/results.md": {
        "tradeoff-translator": "tradeoff-translator.md",
        "tradeoff-classifier": "tradeoff-classifier.md",
        "quality-translator-summary": "quality-translator-summary.md",
        "quality-classifier-summary": "quality-classifier-summary.md",
    },
    "docs/serving.md": {
        "engines-classification": "engines-classification.md",
        "engines-translation": "engines-translation.md",
    },
    "docs/embedding.md": {"embedding": "embedding.md"},
    "docs/costs.md": {"costs": "costs.md"},
    "docs/tokens.md": {
        "token-classification": "token-classification.md",
        "question-answering": "question-answering.md",
    },
    "docs/scores.md": {
        "scores-reranking": "scores-reranking.md",
        "scores-embedding": "scores-embedding.md",
        "scores-regression": "scores-regression.md",
    },
    "docs/speed.md": {"speed": "speed-1-threads-summary.md", "memory": "memory.md"},
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
    """Markdown: of each model the dense builds, and the fastest cuts that lose at most a point."""
    batches = tradeoff.BATCHES
    rows, machines = [], []
    for name, title in NAMES.items():
        reports = tradeoff.load_reports(name)
        first = reports[0]
        quality = tradeoff.main_comparison(first, first.variants[0]).dense
        rows.append([title, "dense, fp32", f"{quality:.2f}", *_numbers(first, first.dense)])
        builds = tradeoff.looks(reports)
        rows += [
            _row(first, variant)
            for variant in first.variants
            if tradeoff.is_dense(variant) and tradeoff.build_of(variant) in builds
        ]
        rows += [_fastest(reports, build) for build in builds]
        assert first.throughput is not None
        threads = first.throughput.threads
        cpu = first.hardware.get("cpu", "")
        machines.append(f"{threads} thread{'s' * (threads != 1)}, {cpu}")
    titles = ["model, data, metric", "build", "quality"]
    titles += [f"× dense fp32, batch {batch}" for batch in batches]
    titles += [f"× fastest dense, batch {batch}" for batch in batches]
    about = (
        "The fastest cuts at batch 64 that lose at most a point, in each engine and precision; "
        "times as fast as dense fp32, and as the fastest dense build of any engine, timed in "
        f"turns with them, {'; '.join(dict.fromkeys(machines))}."
    )
    return f"{markdown_table([*titles, 'ONNX, MB'], 'llr', rows)}\n\n{about}"


def _fastest(reports: list[Report], build: tuple[str, str]) -> list[str]:
    found = tradeoff.fastest(reports, [build], tradeoff.BATCHES[-1], MOST_LOST)
    assert found is not None
    return _row(*found)


def _row(report: Report, variant: Variant) -> list[str]:
    compared = tradeoff.main_comparison(report, variant)
    difference = with_interval(compared.difference, compared.interval, "+")
    quality = f"{compared.pruned:.2f} ({difference})"
    return ["", variant.name, quality, *_numbers(report, variant)]


def _numbers(report: Report, variant: Variant) -> list[str]:
    batches, name = tradeoff.BATCHES, variant.name
    return [
        *(f"{tradeoff.speedup(report, name, batch):.2f}" for batch in batches),
        *(f"{tradeoff.gain(report, name, batch):.2f}" for batch in batches),
        f"{variant.onnx_bytes / 1e6:.1f}",
    ]


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
    parser = arguments(__doc__)
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
