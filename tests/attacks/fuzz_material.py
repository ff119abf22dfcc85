"""What the fuzzer damages: toy checkpoints, artifacts of whole runs, scores, reports, rows."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from pathlib import Path
from unittest import mock

import torch

from compressor.commands import invoke
from compressor.pipeline.run import run
from compressor.report.schema import render_json
from tests.helpers import toy
from tests.helpers.exports import kept_exports
from tests.helpers.report_samples import translator_report
from tests.helpers.runs import recipe_for

ARTIFACTS = {"bert": "classify", "marian": "translate"}  # directory -> what runs it


def make_material(directory: Path) -> None:
    """Fill a directory; the same every time on the same machine, but for dates."""
    directory.mkdir(parents=True, exist_ok=True)
    seconds, threads = itertools.count(step=0.125), torch.get_num_threads()
    torch.set_num_threads(1)  # as the processes have that run the cases
    # Relative paths and made-up durations: neither is in the files, whose bytes are then the same.
    with contextlib.chdir(directory), mock.patch("time.perf_counter", seconds.__next__):
        _fill()
    torch.set_num_threads(threads)


def _fill() -> None:
    here = Path()
    toy.classifier(here / "bert")
    toy.marian_with_pieces(here / "marian")
    (here / "texts.txt").write_text("\n".join([*toy.sentences(6, 5), ""]), "utf-8")
    with kept_exports(here / "exports"):
        for name in ARTIFACTS:
            rows = here / f"{name}-rows"
            rows.mkdir()
            recipe = recipe_for(here / name, rows, bench=False, precision=["fp32"])
            run(recipe, here / f"{name}-run")
    words = ["score", "-m", "bert", "--method", "magnitude", "--prune", "both", "-o", "scores.json"]
    assert invoke([*words, "--device", "cpu", "-q"]) == 0
    # Outside of the artifacts, where no manifest lists them.
    (here / "reports").mkdir()
    sample = render_json(translator_report())
    (here / "reports" / "translator.json").write_text(sample, "utf-8")
    shutil.copy(here / "bert-run" / "report.json", here / "reports" / "bert.json")
    shutil.copy(here / "bert-run" / "recipe.yaml", here / "recipe.yaml")
