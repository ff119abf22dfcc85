"""Copy the measured tables into the README, between their markers.

    python -m benchmarks.readme [--demo TEXT_FILE]

Tables come from benchmarks/results/*.md; --demo takes the output of `compress demo`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def put(text: str, name: str, content: str) -> str:
    """Replace the text between `<!-- name:start -->` and `<!-- name:end -->`."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    if start not in text:
        raise SystemExit(f"README.md has no marker {start}")
    pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{start}\n\n{content.strip()}\n\n{end}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, help="the output of `compress demo`")
    args = parser.parse_args()
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    qualities = ("quality-translator-summary", "quality-classifier-summary")
    for name in ("translator", "classifier", "tradeoff-classifier", *qualities, "scoring"):
        table = (ROOT / "benchmarks" / "results" / f"{name}.md").read_text(encoding="utf-8")
        text = put(text, name, table)
    speed = ROOT / "benchmarks" / "results" / "speed-1-threads-summary.md"
    text = put(text, "speed", speed.read_text(encoding="utf-8"))
    if args.demo is not None:
        text = put(text, "demo", f"```text\n{args.demo.read_text(encoding='utf-8').strip()}\n```")
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
