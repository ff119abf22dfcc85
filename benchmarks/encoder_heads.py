"""Most of a translator's encoder heads removed, as Voita et al. 2019 did with trained gates.

    python -m benchmarks.encoder_heads --output OUT --tatoeba DIR [--rows 20000] [--epochs 4]

Their English-Russian model lost 38 of its 48 encoder heads for 0.15 BLEU, with its weights trained
together with the gates. Here the bundled translator keeps as many, 10 of 48, and all heads of its
decoder. The heads are chosen by scores and the model repaired, or chosen by gates, with and
without training the weights too. Writes benchmarks/results/encoder-heads.md; the same command
resumes a stopped run.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.pages import markdown_table, publish, with_interval
from compressor.commands.console import Console
from compressor.pipeline.run import run
from compressor.report.schema import Report
from compressor.request import example
from compressor.request.recipe import make_recipe

KEEP = "encoder_self=10"
FEW_ROWS = 1000  # where the weights are not trained together with the gates


def experiments(rows: int, epochs: int) -> dict[str, dict[str, Any]]:
    """Title -> options of `compress run`."""
    few: dict[str, Any] = {"calibration_rows": FEW_ROWS}
    many: dict[str, Any] = {"calibration_rows": rows}
    gates: dict[str, Any] = {"method": "hard-concrete"}
    trained = many | gates | {"recover": "none", "gate_epochs": epochs}
    return {
        "second-order, not repaired": few | {"recover": "none"},
        "second-order, reconstruct": few,
        "second-order, reconstruct+distill": few | {"recover": "reconstruct+distill"},
        "hard-concrete, reconstruct": few | gates,
        "hard-concrete, encoder trained along": trained | {"train_weights": "encoder"},
        "hard-concrete, all weights trained along": trained | {"train_weights": "all"},
        "second-order, reconstruct+distill, more rows": {"calibration_rows": rows // 4}
        | {"recover": "reconstruct+distill", "distill_epochs": epochs},
        "hard-concrete, all weights trained along, then distilled": gates
        | {"calibration_rows": 2 * rows, "gate_epochs": 2, "train_weights": "all"}
        | {"recover": "distill", "distill_epochs": 2},
    }


def line(title: str, options: dict[str, Any], report: Report) -> list[str]:
    """One row of the table."""
    (variant,) = report.variants
    found = next(c for c in variant.comparisons if c.metric == "bleu")
    kept = {kind: sum(len(v) for k, v in variant.kept.items() if k.startswith(kind))
            for kind in ("encoder_self", "cross", "decoder_self")}  # fmt: skip
    return [
        title, f"{options['calibration_rows']:,}", " + ".join(map(str, kept.values())),
        f"{found.pruned:.2f}", with_interval(found.difference, found.interval, "+"),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output", type=Path, required=True, help="directory of the runs, one subdirectory each"
    )
    parser.add_argument("--tatoeba", type=Path, required=True, help="train.tsv, test.tsv")
    parser.add_argument(
        "--rows",
        type=int,
        default=20_000,
        help="calibration rows where weights are trained with the gates; a quarter of them for "
        "distillation, twice as many for both",
    )
    parser.add_argument("--epochs", type=int, default=4, help="epochs where weights are trained")
    parser.add_argument("--test-rows", type=int)
    args = parser.parse_args()
    lines = []
    for number, (title, options) in enumerate(experiments(args.rows, args.epochs).items(), 1):
        recipe = make_recipe(
            model=str(example.model()), calibration=str(args.tatoeba / "train.tsv"),
            test=str(args.tatoeba / "test.tsv"), test_rows=args.test_rows, keep=[KEEP],
            bench=False, device="cpu", **options,
        )  # fmt: skip
        report = run(recipe, args.output / str(number), "benchmarks.encoder_heads", Console())
        lines.append(line(title, options, report))
        dense = report.dense.quality
        assert dense is not None
        assert report.test is not None
        titles = ["encoder heads chosen by", "rows", "heads kept (encoder, cross, decoder)"]
        foot = (
            f"{report.test.rows:,} test rows; dense {dense.metrics['bleu']:.2f} BLEU with "
            f"48 + 48 + 48 heads; {args.epochs} epochs where weights are trained along with gates "
            f"or distilled on more rows, 2 of each with {2 * args.rows:,}, else at most 5."
        )
        text = markdown_table([*titles, "BLEU", "against dense"], "lrlr", lines)
        publish("encoder-heads", f"{text}\n\n{foot}\n")


if __name__ == "__main__":
    main()
