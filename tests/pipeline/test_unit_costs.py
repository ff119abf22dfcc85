"""Multiply-adds of units: over many rows, and as shares of the dense model."""

from __future__ import annotations

import pytest

from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask
from compressor.pipeline.unit_costs import unit_costs
from compressor.tasks import TASKS, Example
from compressor.throughput.multiply_adds import WorkSize, total_multiply_adds
from compressor.throughput.shapes import shape_of
from tests.helpers import toy
from tests.helpers.tiny import TRANSLATORS, uneven_mask

LENGTHS = ((3, 4), (1, 2), (9, 2), (9, 7), (30, 1), (12, 21), (3, 4))


@pytest.mark.parametrize("name", ["bert", "marian"])
def test_all_rows_are_counted_and_a_mask_leaves_what_its_shape_costs(tmp_path, name: str):
    """Against counting every row of both models by itself."""
    checkpoint = open_checkpoint(str(toy.checkpoint(tmp_path / "model", name)))
    task, translates = TASKS[checkpoint.task], name in TRANSLATORS
    examples = [
        Example(row, (5,) * source, (5,) * target) for row, (source, target) in enumerate(LENGTHS)
    ]
    costs = unit_costs(checkpoint, task, examples)

    def counted(mask: Mask, tokens: int | None = None) -> float:
        shape = shape_of(task, checkpoint.model.config.to_dict(), mask.counts(), tokens)
        return sum(
            total_multiply_adds(shape, WorkSize(1, source, target * translates))
            for source, target in LENGTHS
        )

    full, mask = Mask.full(checkpoint.layers), uneven_mask(checkpoint.layers)
    assert costs.dense == counted(full)
    assert costs.share(full) == 1
    assert costs.share(mask) == pytest.approx(counted(mask) / counted(full), rel=1e-12)
    if translates:
        fewer = counted(mask, tokens=17) / counted(full)
        assert costs.share(mask, tokens=17) == pytest.approx(fewer, rel=1e-12)
        assert fewer < costs.share(mask)
