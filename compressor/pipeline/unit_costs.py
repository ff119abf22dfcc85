"""The multiply-adds of a head and of a neuron, at the lengths of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from compressor.budgets.units import UnitCosts
from compressor.model.checkpoint import Checkpoint
from compressor.model.sublayers import Mask
from compressor.tasks import TASKS, Example, Task
from compressor.throughput.multiply_adds import ModelShape, WorkSize, shape_of, total_multiply_adds


def unit_costs(checkpoint: Checkpoint, task: Task, examples: Sequence[Example]) -> UnitCosts:
    """Multiply-adds of a dense model over encoded rows, one by one and without padding.

    Everything is counted, the vocabulary too. As all operations that belong to a unit are linear
    in the number of units, one unit less says what each costs.
    """
    return costs_at(checkpoint, [(len(x.source), task.target_tokens(x)) for x in examples])


def costs_at(checkpoint: Checkpoint, lengths: Sequence[tuple[int, int]]) -> UnitCosts:
    """See `unit_costs`; for rows of these source and target lengths."""
    full = Mask.full(checkpoint.layers)

    def count(shape: ModelShape) -> float:
        return sum_quadratic(lambda s, t: total_multiply_adds(shape, WorkSize(1, s, t)), lengths)

    shape = model_shape(checkpoint, full)
    dense = count(shape)
    of_units = {}
    for kind in full.kinds():
        first = next(name for name in full.keep if name.startswith(f"{kind}."))
        of_units[kind] = dense - count(model_shape(checkpoint, full.without([(first, 0)])))
    if not shape.decodes:
        return UnitCosts(dense, of_units)
    one_token_less = replace(shape, vocabulary=shape.vocabulary - 1)
    return UnitCosts(dense, of_units, shape.vocabulary, dense - count(one_token_less))


def model_shape(checkpoint: Checkpoint, mask: Mask) -> ModelShape:
    """The shape of a checkpoint's model with the units of a mask."""
    task = TASKS[checkpoint.task]
    config: dict[str, Any] = checkpoint.model.config.to_dict()  # type: ignore[union-attr,operator]
    tokens = task.graphs.output_tokens(checkpoint)
    return shape_of(task, config, mask.counts(), None if tokens is None else len(tokens))


def sum_quadratic(
    function: Callable[[int, int], float], lengths: Sequence[tuple[int, int]]
) -> float:
    """Sum of a function of (source, target) lengths over all rows, from six of its values at most.

    Multiply-adds are a polynomial of degree 2 in the two lengths: products with weights grow with
    either, attention with their products. Newton's forward differences from the smallest lengths
    give it exactly; thousands of rows are counted as fast as one.

    Args:
        function: a polynomial of degree 2 with whole values.
        lengths: of each row; the targets' are all 0, or all at least 1.
    """
    source, target = 1, min(t for _, t in lengths)
    steps = [(s - source, t - target) for s, t in lengths]

    def value(more_source: int, more_target: int) -> float:
        return function(source + more_source, target + more_target)

    start, one, two = (value(n, 0) for n in range(3))
    total = len(steps) * start
    total += sum(s for s, _ in steps) * (one - start)
    total += sum(s * (s - 1) // 2 for s, _ in steps) * (two - 2 * one + start)
    if any(t for _, t in steps):
        first, second, both = value(0, 1), value(0, 2), value(1, 1)
        total += sum(t for _, t in steps) * (first - start)
        total += sum(t * (t - 1) // 2 for _, t in steps) * (second - 2 * first + start)
        total += sum(s * t for s, t in steps) * (both - one - first + start)
    return total
