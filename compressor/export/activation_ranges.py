"""Ranges of the activations that graphs multiply with their weights, on real rows.

int8 graphs round these activations with one fixed scale per product, so an output depends on its
own row alone. Rows are run in batches of one length, since padding would widen the ranges. Decoders
generate their own inputs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compressor.export.int8 import Range, products
from compressor.runtime.artifact import GRAPH_DIRECTORY, read_artifact
from compressor.runtime.batching import collate, in_chunks
from compressor.runtime.decoder import BEST
from compressor.runtime.session import open_session
from compressor.runtime.text import Encoded
from compressor.tasks import TASKS, Example

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

MOST_ROWS = 256
_BATCH_ROWS = 32
_EXTREMES = ("ReduceMin", "ReduceMax")

Array = NDArray[Any]


def activation_ranges(directory: Path, examples: Sequence[Example]) -> dict[str, dict[str, Range]]:
    """Run an artifact's float32 graphs and record the ranges of the products' first inputs.

    At most `MOST_ROWS` of the encoded rows are run.

    Returns:
        File name of the graph -> value -> its range, for graphs with products.
    """
    artifact = read_artifact(directory)
    by_length: dict[int, list[Encoded]] = defaultdict(list)
    for example in examples[:: math.ceil(len(examples) / MOST_ROWS)]:
        by_length[len(example.source)].append(Encoded(example.source, example.types))
    batches = [
        collate(rows, artifact.pad_token_id, artifact.inputs)
        for _, rows_of_length in sorted(by_length.items())
        for rows in in_chunks(rows_of_length, _BATCH_ROWS)
    ]
    graphs = TASKS[artifact.task].graphs
    observed_graphs = graphs.observe(directory / GRAPH_DIRECTORY, artifact, batches)
    return {graph.file: graph.ranges for graph in observed_graphs if graph.ranges}


@dataclass
class Observed:
    """A session of a graph that also outputs the extremes of some values, and their ranges."""

    file: str
    session: InferenceSession
    values: Sequence[str]
    ranges: dict[str, Range] = field(default_factory=dict)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run the graph with those of the feeds that it reads; returns its usual outputs."""
        read = {value.name: feeds[value.name] for value in self.session.get_inputs()}
        names = [value.name for value in self.session.get_outputs()]
        outputs = dict(zip(names, self.session.run(names, read), strict=True))
        for value in self.values:
            low, high = (float(outputs.pop(f"{value} {operator}")) for operator in _EXTREMES)
            before = self.ranges.get(value, (low, high))
            self.ranges[value] = min(low, before[0]), max(high, before[1])
        return outputs


@contextmanager
def observed(path: Path) -> Iterator[Observed]:
    """Open a graph and record the ranges of its products' first inputs while it runs."""
    import onnx
    from onnx import TensorProto
    from onnx.helper import make_node, make_tensor_value_info

    # Weights stay in their file: only nodes and outputs are added.
    model = onnx.load(path, load_external_data=False)
    values = list(dict.fromkeys(node.input[0] for node in products(model)))
    # Extremes are computed in the graph, since the activations would need much memory.
    for value in values:
        for operator in _EXTREMES:
            name = f"{value} {operator}"
            model.graph.node.append(make_node(operator, [value], [name], keepdims=0))
            model.graph.output.append(make_tensor_value_info(name, TensorProto.FLOAT, []))
    # In the same directory, since the graph names its file of weights by a relative path.
    extended = path.with_name(f"{path.stem}.observed.onnx")
    try:
        onnx.save_model(model, extended)
        yield Observed(path.name, open_session(extended), values)
    finally:
        extended.unlink(missing_ok=True)


def decode(
    decoder: Observed, source: Mapping[str, Array], start: int, ends: Sequence[int], steps: int
) -> None:
    """Generate greedily; finished rows are removed from the batch.

    Args:
        source: the decoder's constant inputs, [rows, ...].
    """
    inputs = {value.name: value.shape for value in decoder.session.get_inputs()}
    constant = {name: source[name] for name in inputs if name in source}
    rows = len(source["attention_mask"])
    past = {
        name: np.zeros((rows, shape[1], 0, shape[3]), np.float32)
        for name, shape in inputs.items()
        if name.startswith("past_")
    }
    tokens = np.full(rows, start)
    for position in range(steps):
        feeds = {"input_ids": tokens[:, None], "position": np.array([position])}
        outputs = decoder.run({**constant, **past, **feeds})
        left = np.flatnonzero(~np.isin(outputs[BEST], ends))  # padding would widen the ranges
        if len(left) == 0:
            return
        tokens = outputs[BEST][left]
        constant = {name: value[left] for name, value in constant.items()}
        past = {name: outputs[name.replace("past", "present")][left] for name in past}
