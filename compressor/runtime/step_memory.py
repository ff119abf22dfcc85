"""What the steps of a decoder read and write on a CPU, bound once."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from compressor.runtime.batching import Floats
from compressor.runtime.graph_names import BEST, present
from compressor.runtime.session import bind, to_device

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Cache = Floats  # [rows, heads, length, head_dim]


class StepMemory:
    """The memory of the steps of some rows, with caches that are changed in place.

    The sources are not bound: their keys and values, their mask, and candidates.

    Args:
        session: of the step.
        past: the caches by their names.
        rows: of the batch.
        scored: how many tokens are scored.
    """

    def __init__(
        self, session: InferenceSession, past: Mapping[str, Cache], rows: int, scored: int
    ) -> None:
        self.past = dict(past)
        self.rows, self.scored = rows, scored
        self.tokens = np.empty((rows, 1), np.int64)
        self.position = np.empty(1, np.int64)
        self.logits = np.empty((rows, scored), np.float32)
        self.best = np.empty(rows, np.int64)
        self.logits_value = to_device(self.logits, "cpu")
        values = {name: to_device(array, "cpu") for name, array in past.items()}
        inputs: dict[str, Any] = {**values, "input_ids": self.tokens, "position": self.position}
        outputs = {"logits": self.logits_value, BEST: to_device(self.best, "cpu")}
        outputs |= {present(name): value for name, value in values.items()}
        self.binding = bind(session, inputs, outputs)


def empty_caches(shapes: Mapping[str, tuple[int, int, int, int]]) -> dict[str, Cache]:
    """Caches of these shapes by their names, not filled."""
    # In one block: the system takes several back when they are freed.
    sizes = [prod(shape) for shape in shapes.values()]
    parts = np.split(np.empty(sum(sizes), np.float32), np.cumsum(sizes)[:-1])
    return {name: x.reshape(shapes[name]) for name, x in zip(shapes, parts, strict=False)}
