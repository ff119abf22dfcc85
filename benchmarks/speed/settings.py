"""The models that are compared, and their preparation: compressing, converting, reading rows."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pages import compress
from benchmarks.speed import models
from benchmarks.speed.peers import Peer, convert
from compressor import example
from compressor.export.ctranslate2 import STORED
from compressor.export.task_graphs import graph_bytes
from compressor.options.requests import ExportRequest, make_request
from compressor.pipeline.single import export_checkpoint
from compressor.progress import Progress
from compressor.runtime.artifact import GRAPH_DIRECTORY
from compressor.storage.hashes import sha256_of
from compressor.tasks import TASKS, Rows

# Of models with random weights. A share of the multiply-adds would be taken from the attention
# alone, whose random heads are the smallest; trained models lose some of both kinds. Scores from
# data mean nothing.
_RANDOM: dict[str, Any] = {
    "trained": False, "batches": 2, "warmup": 3, "budget": {"keep": "heads=0.5,neurons=0.5"},
    "recipe": {"calibration_rows": 32, "method": "magnitude", "recover": "none"},
}  # fmt: skip
_TRAINED: dict[str, Any] = {"trained": True, "batches": 8, "warmup": 10}
NAMES = ("translator", "opus-size", "classifier", "bert-base-size")


@dataclass(frozen=True)
class Setting:
    """One model.

    Args:
        checkpoint: the dense checkpoint.
        output: the artifact of `compress run`; the dense artifact to compare with is in a
            subdirectory.
        budget: what the pruned model keeps, as `compress run` is told: `macs` and `prune`, or
            `keep`.
        macs_share: the share of the multiply-adds that this is, from the run's report.
        rows: the rows that are timed and, if the model is `trained`, whose quality is measured.
        restricted: an artifact with the same heads whose decoder scores only the tokens that occur
            in a target text.
        parallel: sentence pairs to make CTranslate2's vocabulary map from.
        target_length: tokens that translators generate for every row while they are timed.
        batches: maximum number of timed batches per batch size.
        warmup: calls of every peer before it is timed.
    """

    name: str
    title: str
    checkpoint: Path
    output: Path
    rows: Rows
    trained: bool
    target_length: int | None
    batches: int
    warmup: int
    budget: dict[str, str]
    macs_share: float | None
    restricted: Path | None = None
    parallel: str | None = None

    @property
    def task(self) -> str:
        return self.rows.task

    @property
    def generates(self) -> bool:
        return self.task == "translation"

    @property
    def dense(self) -> Path:
        return self.output / ".compress" / "dense"


def prepare(name: str, args: argparse.Namespace, progress: Progress) -> Setting:
    """Create the model if it does not exist, and compress it."""
    work: Path = args.work / name
    work.mkdir(parents=True, exist_ok=True)
    found = _model(name, args, work)
    other = "fp16" if args.device == "cuda" else "int8"
    budget = " ".join(f"--{option} {value}" for option, value in found["budget"].items())
    progress.message(f"{name}: {found['checkpoint']} with {budget}")
    report = compress(
        work / "out", f"python -m benchmarks.speed {name}", model=str(found["checkpoint"]),
        precision=["fp32", other], bench=False, device=args.device,
        **found["budget"], **found["recipe"],
    )  # fmt: skip
    rows = TASKS[found["task"]].read_rows(
        found["test"], languages=("en", "de"), limit=found.get("test_rows"), minimum=2
    )
    text, restricted = found.get("target_text"), None
    if text:
        restricted = work / f"target-text-{sha256_of(Path(text))[:12]}"
        if not (restricted / GRAPH_DIRECTORY).exists():
            progress.message(f"{name}: exporting with the tokens of {text}")
            options = {"model": str(work / "out"), "precision": ["fp32", other]}
            options["target_text"] = text
            if other == "int8":
                options["calibration"] = found["recipe"]["calibration"]
            export_checkpoint(make_request(ExportRequest, **options), restricted)
    return Setting(
        name=name, title=found["title"], checkpoint=Path(found["checkpoint"]),
        output=work / "out", rows=rows, trained=found["trained"],
        target_length=found.get("length"), batches=found["batches"], warmup=found["warmup"],
        budget=found["budget"], macs_share=report.variants[-1].macs_share,
        restricted=restricted, parallel=found.get("parallel"),
    )  # fmt: skip


def _model(name: str, args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """What is known of a model before it is compressed."""
    if name == "translator":
        return _TRAINED | {
            "title": "the bundled translator (6 + 6 layers, width 256, 6,000 pieces)",
            "task": "translation", "checkpoint": example.model(), "length": 12,
            "test": args.tatoeba or str(example.test()), "test_rows": args.test_rows,
            "target_text": args.target_text, "parallel": args.parallel, "budget": {"macs": "0.7"},
            "recipe": {"calibration": str(example.calibration())},
        }  # fmt: skip
    if name == "opus-size":
        return _RANDOM | {
            "title": "a translator of OPUS-MT's size (6 + 6 layers, width 512, 58,101 pieces), "
            "random weights",
            "task": "translation", "checkpoint": models.translator(work / "checkpoint"),
            "length": 24, "test": str(example.test()),
            "recipe": _RANDOM["recipe"] | {"calibration": str(example.calibration())},
        }  # fmt: skip
    if name == "bert-base-size":
        test = str(models.labelled_sentences(work / "rows.tsv"))
        return _RANDOM | {
            "title": "an encoder of BERT-base's size (12 layers, width 768), random weights",
            "task": "classification", "checkpoint": models.encoder(work / "checkpoint"),
            "test": test, "recipe": _RANDOM["recipe"] | {"calibration": test},
        }  # fmt: skip
    if not (args.classifier and args.clinc):
        raise SystemExit("the classifier needs --classifier and --clinc")
    return _TRAINED | {
        "title": "MiniLM-L6 on CLINC150 (6 layers, width 384)",
        "task": "classification", "checkpoint": args.classifier,
        "budget": {"macs": "0.4", "prune": "both"},
        "test": f"{args.clinc}/test.tsv", "test_rows": args.test_rows,
        "recipe": {"calibration": f"{args.clinc}/valid.tsv", "calibration_rows": 1024},
    }  # fmt: skip


def peers(setting: Setting, device: str, threads: int, programs: Sequence[str]) -> list[Peer]:
    """Everything that serves the setting's model; eager transformers first, it is the reference."""
    task, low = setting.task, "fp16" if device == "cuda" else "int8"
    stored = sum(path.stat().st_size for path in setting.checkpoint.glob("*.safetensors"))
    plain = "fp16" if device == "cuda" else "fp32"
    found = [
        Peer(f"transformers, {title}", program, str(setting.checkpoint), task, plain, stored)
        for program, title in (("eager", "eager"), ("compile", "torch.compile"))
        if program in programs
    ]
    if "ctranslate2" in programs and setting.generates:
        found += _ctranslate2(
            setting, tuple(dict.fromkeys((plain, low))), workers=threads if device == "cpu" else 1
        )
    for build, directory in (("dense", setting.dense), ("pruned", setting.output)):
        for precision in ("fp32", low):
            size = graph_bytes(directory, precision)
            name = f"compress, {build}, {precision}"
            found.append(Peer(name, "compress", str(directory), task, precision, size))
    if setting.restricted is not None:
        size = graph_bytes(setting.restricted, low)
        name = f"compress, pruned, target text, {low}"
        found.append(Peer(name, "compress", str(setting.restricted), task, low, size))
    return found


def _ctranslate2(setting: Setting, precisions: Sequence[str], workers: int) -> list[Peer]:
    """The dense model and the pruned one, as `--layout ctranslate2` writes them.

    With the dense model also CTranslate2's vocabulary map, which its own converter writes.
    """
    found = []

    def add(title: str, directory: Path, kind: str) -> None:
        size = (directory / "model.bin").stat().st_size
        for count in sorted({1, workers}):
            more = "" if count == 1 else f", {count} workers"
            program = "ctranslate2" if count == 1 else "ctranslate2-workers"
            found.append(Peer(title + more, program, str(directory), setting.task, kind, size))

    models = {"dense": setting.checkpoint, "pruned": setting.output}
    for (build, model), precision in itertools.product(models.items(), precisions):
        directory = setting.output.parent / f"ctranslate2-{build}-{precision}"
        if not directory.exists():
            options = {"model": str(model), "precision": [precision], "layout": "ctranslate2"}
            export_checkpoint(make_request(ExportRequest, **options), directory)
        add(f"CTranslate2, {build}, {precision}", directory, STORED[precision])
    if setting.parallel is not None:
        for precision in precisions:
            kind, directory = STORED[precision], setting.output.parent / f"map-{precision}"
            convert(setting.checkpoint, directory, kind, setting.parallel)
            add(f"CTranslate2, dense, {precision}, vocabulary map", directory, kind)
    return found
