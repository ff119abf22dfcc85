"""Peak memory of `compress run`, beside the size of the checkpoint.

    python -m benchmarks.memory --work DIR

Models of OPUS-MT's and BERT-base's size with random weights, compressed to half of their
multiply-adds (heads and neurons by second-order scores, reconstructed: the defaults), exported in
float32 and int8. Each run is a process of its own. The memory of Python and its libraries before
a model is loaded is measured and subtracted. The column `one batch` is what a plain forward and
backward pass over the largest scoring batch needs in addition to the model, without gradients of
the weights.
Results: benchmarks/results/memory.md and .json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.pages import RESULTS, markdown_table, publish
from benchmarks.speed import models
from compressor.request import example

LIBRARIES = (
    "import torch, transformers, onnx, onnxscript, onnxruntime, sacrebleu, matplotlib.pyplot, "
    "scipy.stats, scipy.optimize, rich.progress"
)
PEAK = "from compressor.throughput.memory_process import host_peak_mib; print(host_peak_mib())"
RUN = "import sys; from compressor.commands import main; sys.argv[0] = 'compress'; main()"

BATCH = """
import sys
from compressor.model.checkpoint import open_checkpoint
from compressor.tasks import TASKS
from compressor.throughput.memory_process import host_peak_mib

checkpoint = open_checkpoint(sys.argv[1])
model, name = checkpoint.model.requires_grad_(False), checkpoint.task
task = TASKS[name]
labels = task.label_names(model.config)
rows = TASKS[name].read_rows(sys.argv[2], labels=labels, limit=int(sys.argv[3]), minimum=1)
examples = task.encode(rows, checkpoint.tokenizer, model.config.max_position_embeddings)
batches = task.batches(examples, model)
batch = max(batches, key=lambda batch: batch.inputs()["input_ids"].numel())
sum(float(weight.sum()) for weight in model.parameters())  # reads all weights into memory
before = host_peak_mib()
model.get_input_embeddings().register_forward_hook(lambda _, __, out: out.requires_grad_())
task.loss(model, batch).backward()
print(host_peak_mib() - before)
"""


def batch_mib(checkpoint: Path, rows: Path, count: int) -> float:
    """Memory that a forward and backward pass over one batch needs in addition to the model."""
    command = [sys.executable, "-c", BATCH, str(checkpoint), str(rows), str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def peak_mib(code: str, arguments: list[str]) -> float:
    """Peak memory of a Python process that runs `code`, also where that ends in an exit."""
    whole = f"import atexit\natexit.register(lambda: exec({PEAK!r}))\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", whole, *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=128, help="calibration and test rows")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    labelled = models.labelled_sentences(args.work / "rows.tsv")
    cases = {
        "OPUS-MT size": (models.translator(args.work / "opus"), example.calibration()),
        "BERT-base size": (models.encoder(args.work / "bert"), labelled),
    }
    libraries = peak_mib(LIBRARIES, [])
    found = []
    for title, (checkpoint, rows) in cases.items():
        size = sum(p.stat().st_size for p in checkpoint.glob("*.safetensors")) / 2**20
        output = args.work / f"{checkpoint.name}-out"
        options = ["--macs", "0.5", "--calibration", str(rows), "--calibration-rows", args.rows]
        options += ["--test", str(rows), "--test-rows", args.rows, "--precision", "fp32,int8"]
        options += ["--no-bench", "--output", output, "--model", checkpoint]
        peak = peak_mib(RUN, ["run", *map(str, options)])
        batch = batch_mib(checkpoint, rows, args.rows)
        found.append(
            {
                "model": title, "checkpoint_mib": size, "peak_mib": peak, "batch_mib": batch,
                "share": (peak - libraries - batch) / size,
            }
        )  # fmt: skip
        print(found[-1], file=sys.stderr)
    result = {"libraries_mib": libraries, "rows": args.rows, "runs": found}
    (RESULTS / "memory.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    titles = ["model", "checkpoint MiB", "peak of `compress run` MiB", "one batch MiB"]
    titles.append("less libraries and batch, checkpoints")
    lines = []
    for row in found:
        sizes = (row[name] for name in ("checkpoint_mib", "peak_mib", "batch_mib"))
        lines.append([str(row["model"]), *(f"{size:.0f}" for size in sizes), f"{row['share']:.2f}"])
    text = markdown_table(titles, "lr", lines)
    publish("memory", f"{text}\n\nPython and its libraries alone: {libraries:.0f} MiB.\n")


if __name__ == "__main__":
    main()
