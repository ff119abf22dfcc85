"""What a head and a neuron cost in multiply-adds, at the lengths of the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from compressor.budgets.path import UnitCosts
from compressor.export.vocabulary import output_tokens
from compressor.model.checkpoint import Checkpoint
from compressor.model.sublayers import Mask
from compressor.tasks import Example, Task
from compressor.throughput.limits import WorkSize, operations, total_macs
from compressor.throughput.shapes import shape_of


def unit_costs(checkpoint: Checkpoint, task: Task, examples: Sequence[Example]) -> UnitCosts:
    """Multiply-adds of a dense model over encoded rows, one by one and without padding.

    Everything is counted, the vocabulary too. As all operations that belong to a unit are linear
    in the number of units, one unit less says what each costs.
    """
    generates = task.generates
    lengths = Counter((len(x.source), len(x.target) if generates else 0) for x in examples)
    config: dict[str, Any] = checkpoint.model.config.to_dict()  # type: ignore[union-attr,operator]
    tokens = output_tokens(checkpoint)
    scored = None if tokens is None else len(tokens)
    full = Mask.full(checkpoint.layers)

    def count(counts: Mapping[str, int]) -> float:
        shape = shape_of(config, counts, scored)
        return sum(
            rows * total_macs(operations(shape, WorkSize(1, source, target)))
            for (source, target), rows in lengths.items()
        )

    dense = count(full.counts())
    of_units = {}
    for kind in full.kinds():
        first = next(name for name in full.keep if name.startswith(f"{kind}."))
        of_units[kind] = dense - count(full.without([(first, 0)]).counts())
    return UnitCosts(dense, of_units)
