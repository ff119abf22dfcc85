"""Peak memory of every stage of `compress run`, beside the size of the checkpoint.

    python -m benchmarks.memory --work DIR [--model NAME]

Models of OPUS-MT's and BERT-base's size with random weights, compressed to half of their
multiply-adds (heads and neurons by second-order scores, reconstructed: the defaults), exported in
float32 and int8, with as much memory for the statistics of sublayers as there is, and with little.
Each run is a process of its own. Three things are measured by themselves and subtracted, as far as
a stage has them: the memory of Python and its libraries before a model is loaded; `one batch`, what
a plain forward and backward pass over the largest scoring batch needs in addition to the model,
without gradients of the weights; `one sublayer`, what the linear algebra of the largest sublayer
needs. Models that were measured stay in the results where another is named, and runs in DIR are
not measured again.
Results: benchmarks/results/memory.md and .json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import stages
from benchmarks.pages import RESULTS, markdown_table, publish
from benchmarks.speed import models
from compressor.request import example

LIBRARIES = (
    "import torch, transformers, onnx, onnxscript, onnxruntime, sacrebleu, matplotlib.pyplot, "
    "scipy.stats, scipy.optimize, rich.progress\n"
    "from compressor.throughput.memory_process import host_peak_mib\nprint(host_peak_mib())"
)
# Stage -> what of it is not the model's: these run batches in PyTorch, or solve for sublayers.
SUBTRACTED = {"scores": ("batch_mib", "sublayer_mib"), "build": ("batch_mib", "sublayer_mib")}
SHORT = 0.15  # GiB for the statistics of sublayers where memory is short

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


SUBLAYER = """
import sys
import torch
from compressor.importance.removal_order import block_removal_order
from compressor.throughput.memory_process import host_peak_mib

width, neurons = map(int, sys.argv[1:])
torch.linalg.cholesky(torch.eye(64)), torch.linalg.eigh(torch.eye(64))
before = host_peak_mib()
covariance, sensitivity = torch.eye(neurons), torch.eye(width, dtype=torch.float64)
weight = torch.randn(width, neurons).double()
block_removal_order(weight, covariance, sensitivity, list(range(neurons)))
print(host_peak_mib() - before)
"""


def printed_mib(code: str, *arguments: object) -> float:
    """The number that a Python process prints last."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def measure(checkpoint: Path, rows: Path, count: int, memory: float | None) -> dict[str, Any]:
    """A run's stages; of a run that was measured in the same directory, those of then.

    Args:
        memory: GiB for the statistics of sublayers; None: as much as there is.
    """
    output = checkpoint.with_name(f"{checkpoint.name}-{memory or 'all'}")
    kept = output.with_suffix(f"{output.suffix}.json")
    if not kept.exists():
        if output.exists():
            raise SystemExit(f"{output} is of a run that was stopped; remove it")
        options = ["--macs", "0.5", "--calibration", str(rows), "--calibration-rows", str(count)]
        options += ["--test", str(rows), "--test-rows", str(count), "--precision", "fp32,int8"]
        options += ["--no-bench", "--output", str(output), "--model", str(checkpoint)]
        options += [] if memory is None else ["--statistics-memory", f"{memory:g}"]
        found = [asdict(stage) for stage in stages.measure(["run", *options])]
        kept.write_text(json.dumps(found), encoding="utf-8")
    return {"statistics_gib": memory, "stages": json.loads(kept.read_text(encoding="utf-8"))}


def case(checkpoint: Path, rows: Path, count: int) -> dict[str, Any]:
    """All that is measured of one model."""
    size = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors")) / 2**20
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    width = config.get("hidden_size") or config["d_model"]
    return {
        "checkpoint_mib": size,
        "batch_mib": printed_mib(BATCH, checkpoint, rows, count),
        "sublayer_mib": printed_mib(SUBLAYER, width, 4 * width),
        "runs": [measure(checkpoint, rows, count, memory) for memory in (None, SHORT)],
    }


def shares(found: dict[str, Any], libraries: float) -> list[dict[str, float]]:
    """Of each run: stage -> its peak less what is not the model's, in checkpoints."""
    result = []
    for run in found["runs"]:
        peaks: dict[str, float] = {}
        for row in run["stages"]:
            name = row["name"].partition("-")[0]
            own = row["peak_mib"] - libraries - sum(found[x] for x in SUBTRACTED.get(name, ()))
            peaks[name] = max(peaks.get(name, 0.0), own / found["checkpoint_mib"])
        result.append(peaks)
    return result


def table(results: dict[str, Any]) -> str:
    head = ["stage, in checkpoints"]
    columns = []
    for title, found in results["models"].items():
        for run, peaks in zip(found["runs"], shares(found, results["libraries_mib"]), strict=True):
            memory = run["statistics_gib"]
            limit = "" if memory is None else f", statistics within {memory * 1024:.0f} MiB"
            head.append(title + limit)
            columns.append(peaks)
    names = list(dict.fromkeys(name for peaks in columns for name in peaks))
    lines = [[name, *(f"{max(0, c[name]):.2f}" if name in c else "" for c in columns)]
             for name in names]  # fmt: skip
    sizes = [
        f"{title}: checkpoint {x['checkpoint_mib']:.0f} MiB, one batch {x['batch_mib']:.0f}, one "
        f"sublayer {x['sublayer_mib']:.0f}, peak of the run "
        + " and ".join(f"{max(s['peak_mib'] for s in r['stages']):.0f}" for r in x["runs"])
        for title, x in results["models"].items()
    ]
    about = (
        f"{results['rows']} calibration and test rows. Less Python and its libraries "
        f"({results['libraries_mib']:.0f} MiB); of `scores` and `build` one batch and one sublayer "
        f"are subtracted as well. {'; '.join(sizes)}."
    )
    return f"{markdown_table(head, 'lr', lines)}\n\n{about}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=128, help="calibration and test rows")
    parser.add_argument("--model", choices=["opus", "bert"], help="this one alone")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    labelled = models.labelled_sentences(args.work / "rows.tsv")
    cases = {
        "opus": ("OPUS-MT size", models.translator, example.calibration()),
        "bert": ("BERT-base size", models.encoder, labelled),
    }
    path = RESULTS / "memory.json"
    results: dict[str, Any] = {"models": {}}
    if args.model is not None and path.exists():
        results = json.loads(path.read_text(encoding="utf-8"))
    results |= {"libraries_mib": printed_mib(LIBRARIES), "rows": args.rows}
    for name, (title, make, rows) in cases.items():
        if args.model in (None, name):
            checkpoint = args.work / name
            if not (checkpoint / "tokenizer_config.json").exists():
                make(checkpoint)
            found = case(checkpoint, Path(rows), args.rows)
            results["models"][title] = found
            path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    publish("memory", table(results))


if __name__ == "__main__":
    main()
