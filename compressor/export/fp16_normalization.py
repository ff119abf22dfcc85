"""Normalization by the root mean square (T5) in float16 graphs, computed in float32.

Layer normalization is one operator, which sums in float32. This normalization is several operators,
`x * 1 / sqrt(mean(x ** 2) + epsilon)`: the square of 256 exceeds float16, and hidden states of T5
are in the thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import GraphProto, NodeProto, TensorProto
from onnx.helper import make_node
from onnx.numpy_helper import from_array, to_array

_CHAIN = ("Pow", "ReduceMean", "Add", "Sqrt", "Reciprocal", "Mul")


@dataclass(frozen=True)
class Norm:
    """The operations of one normalization, from `Pow` to `Mul`.

    Args:
        hidden: name of the normalized value.
        epsilon: the initializer, in float32.
    """

    nodes: Sequence[NodeProto]
    hidden: str
    epsilon: TensorProto


def find_norms(graph: GraphProto, directory: Path = Path()) -> list[Norm]:
    """The normalizations of a float32 graph.

    Args:
        directory: of its external data, if it has any.
    """
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    constants = {x.name: x for x in graph.initializer}
    return [
        Norm(chain, chain[0].input[0], from_array(to_array(epsilon, str(directory))))
        for node in graph.node
        for chain in _chains(node, readers)
        for epsilon in (constants[x] for x in chain[2].input if x in constants)
    ]


def _chains(first: NodeProto, readers: dict[str, list[NodeProto]]) -> Iterator[list[NodeProto]]:
    """The normalization that begins with a node, if any."""
    chain = [first]
    while len(chain) < len(_CHAIN):
        after = readers.get(chain[-1].output[0], [])
        if chain[-1].op_type != _CHAIN[len(chain) - 1] or len(after) != 1:
            return
        chain += after
    if chain[-1].op_type == _CHAIN[-1] and first.input[0] in chain[-1].input:
        yield chain


def keep_float32(graph: GraphProto, norms: Sequence[Norm]) -> None:
    """Make a graph compute its normalizations in float32; changes the graph.

    Args:
        graph: in float16.
        norms: its normalizations.
    """
    before: dict[str, list[NodeProto]] = {}
    after: dict[str, NodeProto] = {}
    nodes = {node.output[0]: node for node in graph.node if node.output}
    for norm in norms:
        square, mean, add, _, _, product = (nodes[x.output[0]] for x in norm.nodes)
        single, whole = f"{square.output[0]}.single", product.output[0]
        cast = make_node("Cast", [norm.hidden], [single], to=TensorProto.FLOAT)
        before[square.output[0]] = [cast]
        # The exponent of `Pow` was converted to float16; a product needs none.
        square.op_type = "Mul"
        square.input[:] = [single, single]
        epsilon = f"{add.output[0]}.epsilon"
        norm.epsilon.name = epsilon
        graph.initializer.append(norm.epsilon)
        add.input[:] = [mean.output[0], epsilon]
        product.input[:] = [single if x == norm.hidden else x for x in product.input]
        product.output[:] = [f"{whole}.single"]
        after[f"{whole}.single"] = make_node(
            "Cast", [f"{whole}.single"], [whole], to=TensorProto.FLOAT16
        )
    # ONNX requires topological order.
    ordered = []
    for node in graph.node:
        name = node.output[0] if node.output else ""
        ordered += [*before.get(name, []), node, *([after[name]] if name in after else [])]
    del graph.node[:]
    graph.node.extend(ordered)
