"""Copy the measured tables into README.md and docs/, between their markers.

    python -m benchmarks.readme [--demo TEXT_FILE]

Tables come from benchmarks/results; --demo takes the output of `compress demo`, of which
the paragraph about the classifier is shown.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks import first_page
from benchmarks.pages import RESULTS, ROOT, arguments

# Page -> marker -> file in benchmarks/results.
PAGES = {
    "docs/results.md": {
        "tradeoff-translator": "tradeoff-translator.md",
        "tradeoff-classifier": "tradeoff-classifier.md",
        "tradeoff-long-classifier": "tradeoff-long-classifier.md",
        "quality-translator-summary": "quality-translator-summary.md",
        "quality-classifier-summary": "quality-classifier-summary.md",
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
    "docs/guide-one-pair.md": {"one-pair": "one-pair.md"},
    "CONTRIBUTING.md": {"mutants": "mutants.md"},
    "docs/speed.md": {
        "speed": "speed-1-threads-summary.md",
        "memory": "memory.md",
        "candidates": "candidates.md",
    },
}


def put(text: str, name: str, content: str) -> str:
    """Replace the text between `<!-- name:start -->` and `<!-- name:end -->`."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    if start not in text:
        raise SystemExit(f"there is no marker {start}")
    pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{start}\n\n{content.strip()}\n\n{end}", text)


def with_tables() -> dict[Path, str]:
    """The pages as they are when every table is that of benchmarks/results."""
    pages = {}
    for page, tables in PAGES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        for name, file in tables.items():
            text = put(text, name, (RESULTS / file).read_text(encoding="utf-8"))
        pages[ROOT / page] = text
    drawn = {page: ("first-page", first_page.table()) for page in ("README.md", "docs/README.md")}
    drawn["docs/engines.md"] = ("choice", first_page.choice())
    for page, (name, content) in drawn.items():
        pages[ROOT / page] = put((ROOT / page).read_text(encoding="utf-8"), name, content)
    return pages


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--demo", type=Path, help="the output of `compress demo`")
    args = parser.parse_args()
    for page, text in with_tables().items():
        page.write_text(text, encoding="utf-8")
    if args.demo is not None:
        classifier, _ = args.demo.read_text(encoding="utf-8").strip().split("\n\n")[-2:]
        first = ROOT / "README.md"
        text = put(first.read_text(encoding="utf-8"), "demo", f"```text\n{classifier}\n```")
        first.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
