"""What `compress inspect` counts, and what units cost, against sums by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask
from compressor.pipeline.inspection import Inspection, inspect_checkpoint
from compressor.pipeline.unit_costs import unit_costs
from compressor.tasks import TASKS, Example
from compressor.throughput.multiply_adds import WorkSize, shape_of, total_multiply_adds
from tests.helpers import toy
from tests.helpers.tiny import BUILDERS, LABELS, TRANSLATORS, uneven_mask

LAYERS, WIDTH, NEURONS, TOKENS = 3, 32, 48, 60


def inspection(directory: Path, name: str) -> Inspection:
    return inspect_checkpoint(open_checkpoint(str(toy.checkpoint(directory, name))))


def test_a_classifiers_parts(tmp_path):
    found = inspection(tmp_path, "bert")
    parts = {part.name: part for part in found.parts}
    # Four projections with biases, but the output's stays; likewise up and down.
    assert parts["encoder_self"].parameters == LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH)
    assert parts["encoder_ffn"].parameters == LAYERS * (2 * WIDTH * NEURONS + NEURONS)
    assert parts["embeddings"].parameters == (TOKENS + 40 + 2) * WIDTH  # positions, token types
    # Its tokenizer gives 32 tokens at most.
    assert [(x.batch_size, x.source_tokens) for x in found.shapes] == [(16, 16), (16, 32)]
    for position, (batch, tokens) in enumerate([(16, 16), (16, 32)]):
        rows = batch * tokens
        heads = LAYERS * (4 * rows * WIDTH * WIDTH + 2 * rows * tokens * WIDTH)
        neurons = LAYERS * 2 * rows * WIDTH * NEURONS
        rest = batch * (WIDTH * WIDTH + WIDTH * LABELS)
        total = heads + neurons + rest
        shape = found.shapes[position]
        assert (shape.batch_size, shape.source_tokens, shape.target_tokens) == (batch, tokens, 0)
        assert shape.fixed_share == pytest.approx(rest / total)
        # Every head may go, and of 48 neurons the last 16, which are no group of 32, may too.
        assert shape.least_share == pytest.approx(rest / total)
        assert parts["encoder_self"].macs_share[position] == pytest.approx(heads / total)
        assert parts["encoder_ffn"].macs_share[position] == pytest.approx(neurons / total)
        assert parts["other"].macs_share[position] == pytest.approx(rest / total)


def test_a_translators_vocabulary_projection(tmp_path):
    found = inspection(tmp_path, "marian")
    parts = {part.name: part for part in found.parts}
    assert found.tied
    assert parts["vocabulary"].parameters == 0
    assert parts["embeddings"].parameters == TOKENS * WIDTH  # positions are computed
    assert parts["decoder_ffn"].units == [40] * LAYERS
    batch, tokens = 16, 16
    work = batch * tokens * WIDTH * TOKENS
    assert parts["vocabulary"].macs_share[0] == pytest.approx(found.shapes[0].fixed_share)
    share = parts["vocabulary"].macs_share[0] / parts["decoder_ffn"].macs_share[0]
    assert share == pytest.approx(work / (LAYERS * 2 * batch * tokens * WIDTH * 40))


@pytest.mark.parametrize("name", BUILDERS)
def test_parts_add_up_to_the_whole(name: str, tmp_path):
    found = inspection(tmp_path, name)
    assert sum(part.parameters for part in found.parts) == found.parameters
    assert all(part.parameters > 0 for part in found.parts if part.name != "vocabulary")
    for position in range(len(found.shapes)):
        assert sum(part.macs_share[position] for part in found.parts) == pytest.approx(1)


def test_a_pruned_checkpoint_has_the_units_that_are_left(tmp_path):
    directory = toy.classifier(tmp_path / "dense", "bert")
    pruned = toy.pruned(directory, tmp_path / "pruned")
    found = inspect_checkpoint(open_checkpoint(str(pruned)))
    parts = {part.name: part for part in found.parts}
    assert all(shape.least_share is None for shape in found.shapes)
    assert parts["encoder_self"].units == [3, 2, 0]
    assert parts["encoder_ffn"].units == [47, 46, 0]
    assert parts["encoder_ffn"].parameters == (47 + 46) * (2 * WIDTH + 1)


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
