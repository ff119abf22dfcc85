"""A penalty per head instead of a number of heads, in a whole run."""

from __future__ import annotations

import json

import pytest

from compressor.pipeline.run import run
from tests.helpers.runs import Progress, recipe_for

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("no_graphs")
def test_a_penalty_decides_how_many_heads_are_left(checkpoints, tmp_path):
    """Far above the loss it closes every gate that it may; the floors keep one head a layer."""
    options = recipe_for(
        checkpoints["bert"],
        tmp_path,
        method="hard-concrete",
        keep=None,
        penalty=500.0,
        gate_epochs=40,
        recover="none",
        bench=False,
        test=None,
    )
    progress = Progress()
    (variant,) = run(options, tmp_path / "out", progress=progress).variants
    record = json.loads((tmp_path / "out" / "units.json").read_text("utf-8"))
    assert variant.budget == "penalty 500"
    heads = [kept for name, kept in record["kept"].items() if name.startswith("encoder_self")]
    assert [len(kept) for kept in heads] == [1, 1, 1]
    assert any("penalty 500" in message for message in progress.messages)
    assert f"  {variant.selection}" in progress.messages
