"""Quality against how much is kept, for every method and recovery, of two models.

    python -m benchmarks.quality --tatoeba DIR --classifier FINE_TUNED --clinc DIR

Each DIR holds train.tsv, valid.tsv and test.tsv. Train the classifier with
benchmarks.finetune first; the translator is the bundled one. Calibration rows come from
valid.tsv, on which the models were not trained. Kept are shares of the heads, or of the
multiply-adds (where heads, neurons or both go). Each finished cell is a line of
benchmarks/results/quality-NAME.jsonl, or of quality-NAME-macs.jsonl. The same command resumes where
it stopped (with the scores in --work and the learned masks in the lines) and draws the tables and
the figures of all finished cells.

--of, --prune, --methods, --recoveries and --seeds restrict what is computed; --draw computes
nothing.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from benchmarks.pages import RESULTS, arguments
from benchmarks.quality.cells import RANDOM, Cell, Experiment, fill, read
from benchmarks.quality.draw import figure, summary, table
from compressor import example
from compressor.commands.console import Console
from compressor.options.sections import Data

CALIBRATION_ROWS = 1000
FILES = {"macs": "-macs", "heads": ""}  # what a share is kept of -> ending of the file's name


def wanted(args: argparse.Namespace, what: str, cell: Cell) -> bool:
    return (
        cell.of == what
        and (not args.methods or cell.method in args.methods)
        and (not args.recoveries or cell.recover in args.recoveries)
        and args.of in (None, cell.of)
        and args.prune in (None, cell.prune)
        and (cell.method not in RANDOM or cell.seed < args.seeds)
    )


def _problem(args: argparse.Namespace) -> str:
    there = args.draw or args.tatoeba or (args.classifier and args.clinc)
    return "" if there else "give --tatoeba, or --classifier and --clinc, or --draw"


def main() -> None:
    parser = arguments(__doc__, _problem)
    parser.add_argument("--tatoeba", help="sentence pairs: valid.tsv, test.tsv")
    parser.add_argument("--classifier", help="the fine-tuned classifier")
    parser.add_argument("--clinc", help="CLINC150: valid.tsv, test.tsv")
    parser.add_argument("--methods", nargs="+", default=[])
    parser.add_argument("--recoveries", nargs="+", default=[])
    parser.add_argument("--of", choices=["heads", "macs"])
    parser.add_argument("--prune", choices=["heads", "neurons", "both"])
    parser.add_argument("--seeds", type=int, default=3, help="seeds of methods that are random")
    parser.add_argument("--test-rows", type=int, help="default: 1000 sentences, all texts")
    parser.add_argument("--work", type=Path, default=Path("quality-work"), help="for the scores")
    parser.add_argument("--draw", action="store_true", help="only draw the table and the figure")
    args = parser.parse_args()
    progress = Console()
    if not args.draw:
        models = {}  # name -> checkpoint, directory of its rows, number of test rows
        if args.tatoeba:
            models["translator"] = (str(example.model()), args.tatoeba, args.test_rows or 1000)
        if args.classifier and args.clinc:
            models["classifier"] = (args.classifier, args.clinc, args.test_rows)
        for name, (model, rows, test_rows) in models.items():
            progress.message(f"{name}: {model}")
            data = Data(
                calibration=f"{rows}/valid.tsv", calibration_rows=CALIBRATION_ROWS,
                test=f"{rows}/test.tsv", test_rows=test_rows,
            )  # fmt: skip
            work = args.work / name
            work.mkdir(parents=True, exist_ok=True)
            experiment = Experiment(model, data, progress, work)
            for what, ending in FILES.items():
                path = RESULTS / f"quality-{name}{ending}.jsonl"
                fill(experiment, path, partial(wanted, args, what), progress)
    for name in ("translator", "classifier"):
        for what, ending in FILES.items():
            draw(name, what, RESULTS / f"quality-{name}{ending}")


def draw(name: str, what: str, path: Path) -> None:
    """Table and figure of the finished cells that keep a share of something."""
    rows = read(path.with_suffix(".jsonl"))
    if not rows:
        return
    text = table(rows, name, what)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    figure(rows, name, path.with_suffix(".png"), what)
    if what == "heads":
        short = path.with_name(f"{path.name}-summary.md")
        short.write_text(summary(rows, name), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
