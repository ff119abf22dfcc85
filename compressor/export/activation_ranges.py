"""Ranges of the activations that graphs multiply with their weights, on real rows.

int8 graphs round these activations with one fixed scale per product, so an output depends on its
own row alone. Rows are run in batches of one length, since padding would widen the ranges. Decoders
generate their own inputs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.artifact import GRAPH_DIRECTORY, read_artifact
from compressor.runtime.batching import collate
from compressor.runtime.decoder import BEST
from compressor.runtime.session import open_session
from compressor.runtime.text import Encoded
from compressor.tasks import TASKS, Example

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto
    from onnxruntime import InferenceSession

MOST_ROWS = 256
_BATCH_ROWS = 32
_SMALLEST, _LARGEST = "ReduceMin", "ReduceMax"

Array = NDArray[Any]
Range = tuple[float, float]  # smallest and largest
Finder = Callable[["ModelProto"], Sequence["NodeProto"]]


def activation_ranges(
    directory: Path, examples: Sequence[Example], products: Finder
) -> dict[str, dict[str, Range]]:
    """Run an artifact's float32 graphs and record the ranges of the products' first inputs.

    Args:
        directory: an artifact with float32 graphs.
        examples: encoded rows; a sample of at most `MOST_ROWS` is run.
        products: finds the nodes of a graph whose inputs are recorded.

    Returns:
        File name of the graph -> value -> its range, for graphs with products.
    """
    artifact = read_artifact(directory)
    graphs = directory / GRAPH_DIRECTORY
    chosen = examples[:: math.ceil(len(examples) / MOST_ROWS)]
    batches = [_collate(rows, artifact) for rows in _of_one_length(chosen)]
    observed_graphs = TASKS[artifact.task].graphs.observe(graphs, artifact, batches, products)
    return {graph.file: graph.ranges for graph in observed_graphs if graph.ranges}


def _of_one_length(examples: Iterable[Example]) -> Iterator[list[Example]]:
    by_length = defaultdict(list)
    for example in examples:
        by_length[len(example.source)].append(example)
    for _, rows in sorted(by_length.items()):
        yield from (rows[i : i + _BATCH_ROWS] for i in range(0, len(rows), _BATCH_ROWS))


def _collate(examples: Sequence[Example], artifact: Any) -> dict[str, Array]:
    rows = [Encoded(example.source, example.types) for example in examples]
    return dict(collate(rows, artifact.pad_token_id, artifact.inputs))


@dataclass
class Observed:
    """A session of a graph with additional outputs, and the ranges so far."""

    file: str
    session: InferenceSession
    values: Sequence[str]
    ranges: dict[str, Range] = field(default_factory=dict)

    @property
    def inputs(self) -> dict[str, Any]:
        return {value.name: value for value in self.session.get_inputs()}

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run the graph with those of the feeds that it reads; returns all its outputs."""
        read = {name: feeds[name] for name in self.inputs}
        names = [value.name for value in self.session.get_outputs()]
        # Ranges are computed in the graph, since the activations would need much memory.
        outputs = dict(zip(names, self.session.run(names, read), strict=True))
        for value in self.values:
            low, high = (float(outputs.pop(_output(value, op))) for op in (_SMALLEST, _LARGEST))
            before = self.ranges.get(value, (low, high))
            self.ranges[value] = min(low, before[0]), max(high, before[1])
        return outputs


def _output(value: str, operator: str) -> str:
    return f"{value} {operator}"


@contextmanager
def observed(path: Path, products: Finder) -> Iterator[Observed]:
    """Open a graph and record the ranges of its products' first inputs while it runs."""
    import onnx
    from onnx import TensorProto
    from onnx.helper import make_node, make_tensor_value_info

    # Weights stay in their file: only nodes and outputs are added.
    model = onnx.load(path, load_external_data=False)
    values = list(dict.fromkeys(node.input[0] for node in products(model)))
    for value in values:
        for operator in (_SMALLEST, _LARGEST):
            name = _output(value, operator)
            model.graph.node.append(make_node(operator, [value], [name], keepdims=0))
            model.graph.output.append(make_tensor_value_info(name, TensorProto.FLOAT, []))
    # In the same directory, since the graph names its file of weights by a relative path.
    observed = path.with_name(f"{path.stem}.observed.onnx")
    try:
        onnx.save_model(model, observed)
        yield Observed(path.name, open_session(observed), values)
    finally:
        observed.unlink(missing_ok=True)


def decode(
    decoder: Observed, source: Mapping[str, Array], start: int, ends: Sequence[int], steps: int
) -> None:
    """Generate greedily; finished rows are removed from the batch.

    Args:
        source: the decoder's constant inputs, [rows, ...].
    """
    inputs = decoder.inputs
    constant = {name: source[name] for name in inputs if name in source}
    rows = len(source["attention_mask"])
    past = {
        name: np.zeros((rows, value.shape[1], 0, value.shape[3]), np.float32)
        for name, value in inputs.items()
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
