"""Shared by tests of whole runs: a short recipe, a record of the messages, hashes of files."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from compressor.model.sublayers import Mask
from compressor.options.recipe import Recipe
from compressor.options.requests import make_recipe, make_request
from compressor.pipeline.setup import open_run, prepare
from compressor.progress import SILENT
from compressor.recovery.planning import prepare_recovery
from compressor.selection.choose import select_units
from compressor.steps.results import Variant
from compressor.steps.values import ChosenUnits, DecoderTokens, Exported
from tests.helpers import toy

# As the command line has them: `recipe(model="m", keep=["0.5"], steps=3)`.
recipe, request = make_recipe, make_request


class Progress:
    """Keeps what a run says; may stop it at a message, as Ctrl-C would."""

    def __init__(self, stop_at: str | None = None) -> None:
        self.messages: list[str] = []
        self.stop_at = stop_at

    def message(self, text: str) -> None:
        self.messages.append(text)
        if self.stop_at is not None and self.stop_at in text:
            raise KeyboardInterrupt

    def detail(self, text: str) -> None:
        assert text.endswith(" s")

    def update(self, what: str, done: int, total: int) -> None:
        assert 0 <= done <= total


TIMED = {"batch_size": "4,8", "bench_seconds": 0.05, "threads": 1}
SHORT = {"keep": ["0.5"], "resamples": 100, "device": "cpu"}


def short(**options: Any) -> Recipe:
    """A recipe that runs in seconds; options by the names of their flags, None for none."""
    timed = {} if options.get("bench") is False else TIMED
    return recipe(**SHORT | timed | options)


def recipe_for(model: Path, tmp_path: Path, **options: Any) -> Recipe:
    """A short run of a model on toy rows that are written to `tmp_path`."""
    write = toy.pairs_file if "marian" in str(model) else toy.labels_file
    values = {
        "model": str(model),
        "calibration": str(write(tmp_path / "calibration.tsv")),
        "test": str(write(tmp_path / "test.tsv", seed=1)),
    }
    return short(**values | options)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def hashes(directory: Path) -> dict[str, str]:
    """The files that decide what is served: weights, heads, graphs, tokenizer."""
    names = ("*.safetensors", "units.json", "onnx/*", "recipe.yaml")
    return {
        path.relative_to(directory).as_posix(): sha256(path)
        for name in names
        for path in directory.glob(name)
        if path.is_file()
    }


def check_manifest(out: Path) -> None:
    """The manifest lists the files of an artifact, all of them, with their hashes."""
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    listed = manifest["files"]
    read = (manifest["calibration"] or {"files": []})["files"]
    assert read == [Path(name).name for name in read]  # no directories of the machine
    on_disk = {
        path.relative_to(out).as_posix()
        for path in out.rglob("*")
        if path.is_file() and ".compress" not in path.parts and path.name != "manifest.json"
    }
    assert set(listed) == on_disk
    for name, facts in listed.items():
        assert sha256(out / name) == facts["sha256"]
    needed = {"config.json", "units.json", "recipe.yaml", "report.html", "README.md"}
    assert needed <= on_disk
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert ("modeling_pruned.py" in on_disk) == ("kept_units" in config)


def chosen_by_run(recipe: Recipe, out: Path, progress=SILENT) -> ChosenUnits:
    """What a run chooses for its only budget, without exporting or building anything.

    The dense model is only a name.
    """
    plan, opened = prepare(recipe, out, progress)
    full = Mask.full(opened.dense.checkpoint.layers)
    facts = Variant(
        name="dense", directory="", budget="", kept=full.to_json(),
        heads=full.counts(), neurons={}, kept_neurons={}, macs_share=1.0, parameters=0,
        checkpoint_bytes=0, onnx_bytes=0, precision="fp32",
    )  # fmt: skip
    with open_run(plan, opened, progress) as context:
        (artifact,) = plan.removal.artifacts
        dense = Exported(context.steps.state / "dense", facts)
        dense.directory.mkdir(exist_ok=True)
        recovery = prepare_recovery(opened.recovery, dense, context)
        return select_units(
            artifact,
            opened.prunable.limits,
            recovery,
            DecoderTokens(None),
            dense,
            plan.measuring,
            opened=opened.prunable,
            context=context,
        )


def finished_steps(out: Path) -> Counter[str]:
    """Names of finished steps; nothing temporary may be left."""
    entries = list((out / ".compress").iterdir())
    assert not [path for path in entries if path.name.startswith(".writing")]
    records = [path.stem for path in entries if path.suffix == ".json" and path.stem != "run"]
    return Counter(name.rpartition("-")[0] for name in records)
