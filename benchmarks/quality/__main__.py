"""Quality against heads kept, for every method and repair, on a translator and a classifier.

    python -m benchmarks.quality --tatoeba DIR --classifier FINE_TUNED --clinc DIR

DIR hold train.tsv, valid.tsv and test.tsv; the classifier is made by benchmarks/finetune_minilm.py
first, the translator is the bundled one. Calibration rows are those of valid.tsv: the models were
not trained on them. Each finished cell is a line of benchmarks/results/quality-NAME.jsonl; the same
command goes on where it stopped (scores wait in --work, learned masks in the lines), and draws the
table and the figure anew from what is there.

Parts: --only NAME, --methods, --repairs, --kept restrict what is computed; --draw computes nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.quality.cells import RANDOM, SHARES, Cell, Laboratory, fill, read
from benchmarks.quality.draw import figure, summary, table
from compressor import example
from compressor.commands.console import Console
from compressor.pipeline.recipe import Recipe

RESULTS = Path(__file__).parent.parent / "results"
CALIBRATION_ROWS = 1000
GATE_EPOCHS = 10  # about 300 steps, which hard-concrete needs (docs/gates.md)


def recipes(args: argparse.Namespace) -> dict[str, Recipe]:
    found = {}
    if args.tatoeba:
        found["translator"] = Recipe(
            model=str(example.model()),
            calibration=f"{args.tatoeba}/valid.tsv",
            test=f"{args.tatoeba}/test.tsv",
            calibration_rows=CALIBRATION_ROWS,
            gate_epochs=GATE_EPOCHS,
            test_rows=args.test_rows or 1000,
        )
    if args.classifier and args.clinc:
        found["classifier"] = Recipe(
            model=args.classifier,
            calibration=f"{args.clinc}/valid.tsv",
            test=f"{args.clinc}/test.tsv",
            calibration_rows=CALIBRATION_ROWS,
            gate_epochs=GATE_EPOCHS,
            test_rows=args.test_rows,
        )
    return {name: recipe for name, recipe in found.items() if args.only in (None, name)}


def wanted(args: argparse.Namespace, cell: Cell) -> bool:
    return (
        (not args.methods or cell.method in args.methods)
        and (not args.repairs or cell.recover in args.repairs)
        and (not args.kept or cell.kept in args.kept)
        and (args.steps is None or cell.steps == args.steps)
        and (cell.method not in RANDOM or cell.seed < args.seeds)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tatoeba", help="sentence pairs: valid.tsv, test.tsv")
    parser.add_argument("--classifier", help="the fine-tuned classifier")
    parser.add_argument("--clinc", help="CLINC150: valid.tsv, test.tsv")
    parser.add_argument("--only", choices=["translator", "classifier"])
    parser.add_argument("--methods", nargs="+", default=[])
    parser.add_argument("--repairs", nargs="+", default=[])
    parser.add_argument("--kept", nargs="+", type=int, default=[], choices=SHARES)
    parser.add_argument("--steps", type=int, help="only cells of so many steps")
    parser.add_argument("--seeds", type=int, default=3, help="of methods that are random")
    parser.add_argument("--test-rows", type=int, help="default: 1000 sentences, all texts")
    parser.add_argument("--work", type=Path, default=Path("quality-work"), help="scores")
    parser.add_argument("--draw", action="store_true", help="only table and figure")
    args = parser.parse_args()
    progress = Console()
    RESULTS.mkdir(exist_ok=True)
    if not args.draw:
        made = recipes(args)
        if not made:
            parser.error("give --tatoeba, or --classifier and --clinc, or --draw")
        for name, recipe in made.items():
            progress.message(f"{name}: {recipe.model}")
            path = RESULTS / f"quality-{name}.jsonl"
            work = args.work / name
            work.mkdir(parents=True, exist_ok=True)
            fill(
                Laboratory(recipe, progress, work), path, lambda cell: wanted(args, cell), progress
            )
    for name in ("translator", "classifier"):
        rows = read(RESULTS / f"quality-{name}.jsonl")
        if rows:
            text = table(rows, name)
            (RESULTS / f"quality-{name}.md").write_text(text, encoding="utf-8")
            short = summary(rows, name)
            (RESULTS / f"quality-{name}-summary.md").write_text(short, encoding="utf-8")
            figure(rows, name, RESULTS / f"quality-{name}.png")
            print(text)


if __name__ == "__main__":
    main()
