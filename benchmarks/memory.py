"""Peak memory of every stage of `compress run`, beside the size of the checkpoint.

    python -m benchmarks.memory --work DIR [--model NAME]
    python -m benchmarks.memory --draw

Models of OPUS-MT's and BERT-base's size and an encoder of 500 million parameters (that of
`benchmarks.costs`) with random weights, compressed to half of their multiply-adds (heads and
neurons by second-order scores, reconstructed: the defaults), exported in float32 and int8, with
little memory for the statistics of sublayers.
Each run is a process of its own. Three things are measured by themselves and subtracted, as far as
a stage has them: the peak of the same stage for a model of 0.2 million parameters, which is that of
Python, its libraries and what they keep of an export; `one batch`, what
a plain forward and backward pass over the largest scoring batch needs in addition to the model,
without gradients of the weights; `one sublayer`, what the linear algebra of the largest sublayer
needs. Models that were measured stay in the results where another is named, and runs in DIR are
not measured again.
Results: benchmarks/results/memory.md and .json.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import stages
from benchmarks.pages import RESULTS, arguments, markdown_table, publish, read_json, write_json
from benchmarks.speed import models
from compressor import example

# Stage -> what of it is not the model's: these run batches in PyTorch, or solve for sublayers.
SUBTRACTED = {"scores": ("batch_mib", "sublayer_mib"), "build": ("sublayer_mib",)}
# GiB for the statistics of sublayers, as where memory is short. Of the largest model those of one
# sublayer take 0.24.
STATISTICS = {"opus": 0.15, "bert": 0.15, "large": 0.6}
LARGE: dict[str, Any] = {"layers": 20, "width": 1408, "pieces": 18_000}
LARGE_ROWS = 32  # one batch

BATCH = """
import sys
from compressor.model.checkpoint import open_checkpoint
from compressor.model.languages import direction
from compressor.tasks import TASKS
from compressor.throughput.memory import host_peak_mib

checkpoint = open_checkpoint(sys.argv[1])
model, name = checkpoint.model.requires_grad_(False), checkpoint.task
task = TASKS[name]
labels = task.label_names(model.config)
known = {"labels": labels, "languages": direction(checkpoint.tokenizer)}
rows = TASKS[name].read_rows(sys.argv[2], **known, limit=int(sys.argv[3]), minimum=1)
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
from compressor.importance.second_order import block_removal_order
from compressor.throughput.memory import host_peak_mib

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


def measure(checkpoint: Path, rows: Path, count: int, statistics: float) -> list[dict[str, Any]]:
    """A run's stages; of the same run that was measured in the directory, those of then."""
    output = checkpoint.with_name(f"{checkpoint.name}-{count}-{statistics:g}-out")
    kept = output.with_suffix(".json")
    if not kept.exists():
        if output.exists():
            raise SystemExit(f"{output} is of a run that was stopped; remove it")
        limit = ("--statistics-memory", f"{statistics:g}")
        found = stages.halve(checkpoint, rows, count, output, *limit)
        kept.write_text(json.dumps([asdict(stage) for stage in found]), encoding="utf-8")
    return list(json.loads(kept.read_text(encoding="utf-8")))


def case(checkpoint: Path, rows: Path, count: int, statistics: float) -> dict[str, Any]:
    """All that is measured of one model."""
    size = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors")) / 2**20
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    width = config.get("hidden_size") or config["d_model"]
    return {
        "checkpoint_mib": size,
        "batch_mib": printed_mib(BATCH, checkpoint, rows, count),
        "sublayer_mib": printed_mib(SUBLAYER, width, 4 * width),
        "rows": count,
        "statistics_mib": 1024 * statistics,
        "stages": measure(checkpoint, rows, count, statistics),
    }


def peaks_of(stages: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Stage without what tells it from others of its kind -> its highest peak, MiB."""
    peaks: dict[str, float] = {}
    for row in stages:
        name = row["name"].partition("-")[0]
        peaks[name] = max(peaks.get(name, 0.0), row["peak_mib"])
    return peaks


def shares(found: Mapping[str, Any], libraries: Mapping[str, float]) -> dict[str, float]:
    """Stage -> its peak less what is not the model's, in checkpoints.

    Args:
        libraries: stage -> its peak for a tiny model, MiB.
    """
    shares = {}
    for name, peak in peaks_of(found["stages"]).items():
        own = peak - libraries[name] - sum(found[x] for x in SUBTRACTED.get(name, ()))
        shares[name] = own / found["checkpoint_mib"]
    return shares


def whole_run(found: Mapping[str, Any], libraries: Mapping[str, float]) -> str:
    """The run's peak, and what it is less the libraries, one batch and one sublayer."""
    peaks = peaks_of(found["stages"])
    stage = max(peaks, key=lambda name: peaks[name])
    own = peaks[stage] - libraries[stage] - found["batch_mib"] - found["sublayer_mib"]
    return (
        f"the whole run at its peak {peaks[stage]:,.0f}, which is "
        f"{own / found['checkpoint_mib']:.2f} checkpoints beside the libraries, one batch and one "
        "sublayer"
    )


def table(results: Mapping[str, Any]) -> str:
    """Stages against models."""
    models_, libraries = results["models"], results["libraries_mib"]
    columns = [shares(found, libraries) for found in models_.values()]
    names = list(dict.fromkeys(name for peaks in columns for name in peaks))
    lines = [
        [name, *(f"{max(0, c[name]):.2f}" if name in c else "" for c in columns)] for name in names
    ]
    sizes = "; ".join(
        f"{title}: {x['rows']} rows to calibrate and to test, checkpoint "
        f"{x['checkpoint_mib']:,.0f} MiB, statistics of sublayers within "
        f"{x['statistics_mib']:.0f}, one batch {x['batch_mib']:,.0f}, one sublayer "
        f"{x['sublayer_mib']:,.0f}, {whole_run(x, libraries)}"
        for title, x in models_.items()
    )
    about = (
        f"Peaks of stages in checkpoints. Subtracted: the stage's peak for a tiny model "
        f"({min(libraries.values()):.0f} to {max(libraries.values()):.0f} MiB), of `scores` one "
        f"batch and one sublayer, of `build` one sublayer. {sizes}."
    )
    return f"{markdown_table(['stage', *models_], 'lr', lines)}\n\n{about}\n"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--work", type=Path, default=Path("memory-work"))
    parser.add_argument("--rows", type=int, default=128, help="calibration and test rows")
    parser.add_argument("--model", choices=["opus", "bert", "large"], help="this one alone")
    parser.add_argument("--draw", action="store_true", help="only write the table")
    args = parser.parse_args()
    path = RESULTS / "memory.json"
    if args.draw:
        publish("memory", table(read_json(path, {})))
        return
    args.work.mkdir(parents=True, exist_ok=True)
    labelled = models.labelled_sentences(args.work / "rows.tsv")
    cases: dict[str, tuple[str, Callable[[Path], Path], Path]] = {
        "opus": ("OPUS-MT size", models.translator, Path(example.calibration())),
        "bert": ("BERT-base size", models.encoder, labelled),
        "large": ("500 million", partial(models.encoder, **LARGE), labelled),
    }
    results = read_json(path, {"models": {}}) if args.model is not None else {"models": {}}
    tiny = models.encoder(args.work / "tiny", layers=1, width=64, pieces=400)
    results["libraries_mib"] = peaks_of(measure(tiny, labelled, 16, STATISTICS["bert"]))
    for name, (title, make, rows) in cases.items():
        if args.model in (None, name):
            checkpoint = make(args.work / name)
            count = min(args.rows, LARGE_ROWS) if name == "large" else args.rows
            found = case(checkpoint, rows, count, STATISTICS[name])
            results["models"][title] = found
            write_json(path, results)
    publish("memory", table(results))


if __name__ == "__main__":
    main()
