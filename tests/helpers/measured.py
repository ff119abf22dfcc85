"""Shared by tests of budgets that are measured: a run up to its search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from compressor.budgets import Choice
from compressor.model.sublayers import Mask
from compressor.pipeline.inputs import load
from compressor.pipeline.search import RunEvaluator
from compressor.pipeline.setup import prepare
from compressor.progress import SILENT
from compressor.request.recipe import Recipe
from compressor.request.resolve import resolve
from compressor.results import Variant
from compressor.steps import open_steps


@contextmanager
def before_search(
    recipe: Recipe,
    out: Path,
    progress=SILENT,
    build: Callable[[str, Choice, Path], None] | None = None,
) -> Iterator[RunEvaluator]:
    """A run up to the search for its only budget; the dense model is only a name."""
    setup = prepare(resolve(recipe), load(recipe.model), out, progress)
    full = Mask.full(setup.dense.checkpoint.layers)
    dense = Variant(
        name="dense", directory=str(out / "nowhere"), budget="", kept=full.to_json(),
        heads=full.counts(), neurons={}, kept_neurons={}, macs_share=1.0, parameters=0,
        checkpoint_bytes=0, onnx_bytes=0, precision="fp32",
    )  # fmt: skip
    with open_steps(out, setup.identity(progress), progress, setup.written_bytes) as steps:
        (artifact,) = setup.artifacts
        evaluator = RunEvaluator(steps, setup, artifact, dense, build)
        evaluator.scores()
        yield evaluator


def finished_steps(out: Path) -> Counter[str]:
    """Names of finished steps; nothing temporary may be left."""
    entries = list((out / ".compress").iterdir())
    assert not [path for path in entries if path.name.startswith(".writing")]
    records = [path.stem for path in entries if path.suffix == ".json" and path.stem != "run"]
    return Counter(name.rpartition("-")[0] for name in records)
