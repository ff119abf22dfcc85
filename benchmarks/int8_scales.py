"""int8 with activation ranges from calibration rows, and with a scale per token: quality and speed.

    python -m benchmarks.int8_scales --classifier FINE_TUNED --clinc DIR

Both are exported from the dense model (the bundled translator, and the classifier if it is given;
DIR holds valid.tsv and test.tsv), evaluated on the test rows, and timed interleaved with fp32. The
last column counts the answers to the first rows that are others in batches of 1, 7 or 64.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from compressor import example
from compressor.commands.console import Console
from compressor.pipeline.assemble import assemble
from compressor.pipeline.compare_artifacts import bench_artifacts, evaluate_artifacts
from compressor.pipeline.recipe import ExportRequest, as_flags
from compressor.pipeline.single_steps import export_checkpoint
from compressor.runtime import Classifier, Translator
from compressor.runtime.artifact import read_artifact
from compressor.tasks import read_rows
from compressor.throughput.hardware import describe

RESULTS = Path(__file__).parent / "results"
BATCHES = (1, 7, 64)
KINDS = {"a range, from calibration rows": True, "one per token": False}


def changed_answers(artifact: Path, texts: list[str]) -> int:
    """How many answers depend on the batch."""
    if read_artifact(artifact).task == "translation":
        translator = Translator(artifact, precision="int8", threads=1)
        answers = [translator.translate(texts, batch_size=size) for size in BATCHES]
    else:
        classifier = Classifier(artifact, precision="int8", threads=1)
        answers = [classifier.classify(texts, batch_size=size) for size in BATCHES]
    return sum(len(set(given)) > 1 for given in zip(*answers, strict=True))


def measure(
    name: str, model: str, calibration: str, test: str, args: argparse.Namespace
) -> list[list[str]]:
    """Rows of the table, for one model."""
    progress = Console()
    with tempfile.TemporaryDirectory() as directory:
        artifacts = []
        for number, ranged in enumerate(KINDS.values()):
            output = Path(directory, f"{name}-{number}")
            rows = {"calibration": calibration} if ranged else {}
            flags = as_flags({"model": model, "precision": ["fp32", "int8"], **rows})
            export_checkpoint(assemble(ExportRequest, flags), output)
            artifacts.append(output)
        precisions = ["fp32", "int8"]
        limit = {"limit": args.test_rows}
        quality = evaluate_artifacts(
            artifacts, test, limit, precisions=precisions, progress=progress
        )
        times = bench_artifacts(
            artifacts, test, limit, precisions=precisions, progress=progress,
            batch_sizes=args.batch_size, threads=args.threads,
        )  # fmt: skip
        compared_rows = read_rows(read_artifact(artifacts[0]).task, test, limit=args.changed)
        changed = [changed_answers(artifact, compared_rows.sources) for artifact in artifacts]
    lines = []
    for number, kind in enumerate(KINDS):
        int8 = quality[2 * number + 1]
        compared = int8.comparisons[0]
        timed = [row for row in times.rows if row.variant.endswith(f"{number}-int8")]
        speeds = [(row.speedup or 0, row.speedup_interval or (0, 0)) for row in timed]
        lines.append([
            name, kind, f"{compared.pruned:.2f}", f"{compared.difference:+.2f}",
            *(f"{speedup:.2f} [{low:.2f}, {high:.2f}]" for speedup, (low, high) in speeds),
            f"{changed[number]} of {len(compared_rows.sources)}",
        ])  # fmt: skip
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classifier", help="the fine-tuned classifier")
    parser.add_argument("--clinc", help="CLINC150: valid.tsv, test.tsv")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--test-rows", type=int, help="default: all")
    parser.add_argument("--changed", type=int, default=200, help="rows to compare batches on")
    args = parser.parse_args()
    lines = measure("translator", str(example.model()), str(example.calibration()),
                    str(example.test()), args)  # fmt: skip
    if args.classifier and args.clinc:
        rows = [f"{args.clinc}/{name}.tsv" for name in ("valid", "test")]
        lines += measure("classifier", args.classifier, rows[0], rows[1], args)
    speeds = [f"Speed-up at batch {size}" for size in args.batch_size]
    head = ["Model", "Scales of activations", "Quality", "Against fp32", *speeds, "Changed"]
    table = [head, ["---"] * len(head), *lines]
    hardware = describe()
    text = (
        "\n".join("| " + " | ".join(line) + " |" for line in table)
        + f"\n\n{hardware['cpu']} ({hardware.get('instructions', '')}), "
    )
    text += f"{args.threads} thread; dense models, quality is BLEU or accuracy.\n"
    (RESULTS / "int8-scales.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
