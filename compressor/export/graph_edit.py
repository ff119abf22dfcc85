"""Reading and rewriting ONNX graphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto, NodeProto, TensorProto
from onnx.external_data_helper import ExternalDataInfo, uses_external_data
from onnx.helper import get_attribute_value, make_node, make_opsetid, tensor_dtype_to_np_dtype
from onnx.numpy_helper import from_array, to_array

from compressor.storage.input_files import inner_path

CONTRIBUTED = "com.microsoft"  # the domain of onnxruntime's own operators


def stored_array(tensor: TensorProto, directory: Path) -> NDArray[Any]:
    """The values of a weight, memory-mapped and read-only if they are in a file.

    Args:
        tensor: of a graph.
        directory: of the graph, and of that file.

    Raises:
        ValueError: the graph names a file outside of its directory.
    """
    if not uses_external_data(tensor) or 0 in tensor.dims:  # an empty weight cannot be mapped
        return to_array(tensor, str(directory))
    info = ExternalDataInfo(tensor)
    return np.memmap(
        directory / inner_path(info.location),
        tensor_dtype_to_np_dtype(tensor.data_type),
        mode="r",
        offset=info.offset or 0,
        shape=tuple(tensor.dims),
    )


def readers_of(nodes: Iterable[NodeProto]) -> dict[str, list[NodeProto]]:
    """Value -> the nodes that read it."""
    readers: dict[str, list[NodeProto]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    return readers


def read_nodes(
    nodes: Sequence[NodeProto], outputs: Iterable[str]
) -> tuple[list[NodeProto], set[str]]:
    """The nodes that outputs depend on, in their order, and the names of all values read."""
    read = set(outputs)
    kept = []
    for node in reversed(nodes):
        if read.intersection(node.output):
            kept.append(node)
            read.update(node.input)
    return kept[::-1], read


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """The value of an attribute of a node."""
    values = (get_attribute_value(item) for item in node.attribute if item.name == name)
    return next(values, default)


def has_rank(tensor: TensorProto | None, dimensions: int) -> bool:
    """Whether there is a tensor, with so many dimensions."""
    return tensor is not None and len(tensor.dims) == dimensions


class GraphEdit:
    """A copy of a model, to be changed.

    Args:
        model: stays as it is.
        directory: of its external data.
    """

    def __init__(self, model: ModelProto, directory: Path = Path()) -> None:
        self.model, self.directory = ModelProto(), directory
        self.model.CopyFrom(model)
        graph = self.model.graph
        self.nodes = list(graph.node)
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        values = (*graph.input, *graph.value_info, *graph.output)
        self.ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in values}
        self.outputs = [value.name for value in graph.output]
        self._index()

    def _index(self) -> None:
        self.makes = {name: node for node in self.nodes for name in node.output if name}
        self._readers = readers_of(self.nodes)

    def maker(self, value: str, *kinds: str) -> NodeProto | None:
        """The node that computes a value, if it is of one of these kinds."""
        node = self.makes.get(value)
        return node if node is not None and node.op_type in kinds else None

    def readers(self, value: str) -> list[NodeProto]:
        """All nodes that read a value."""
        return list(self._readers.get(value, []))

    def only_reader(self, value: str, *kinds: str) -> NodeProto | None:
        """The only node that reads a value, if it is of one of these kinds."""
        readers = self.readers(value)
        alone = len(readers) == 1 and value not in self.outputs and readers[0].op_type in kinds
        return readers[0] if alone else None

    def array(self, name: str) -> NDArray[Any] | None:
        """The values of an initializer; None for any other value."""
        tensor = self.constants.get(name)
        return None if tensor is None else stored_array(tensor, self.directory)

    def constant(self, name: str, values: ArrayLike) -> str:
        """The name of an initializer, which is created if missing."""
        if name not in self.constants:
            self.constants[name] = from_array(np.asarray(values), name)
        return name

    def ancestors(self, value: str) -> Iterator[NodeProto]:
        """The nodes that a value depends on."""
        waiting, seen = [value], set[str]()
        while waiting:
            node = self.makes.get(waiting.pop())
            if node is not None and node.output[0] not in seen:
                seen.add(node.output[0])
                waiting += node.input
                yield node

    def node(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **more: Any) -> Any:
        """Make a node, without inserting it.

        Args:
            kind: the operator.
            inputs: names of values; "" for an optional one that is left out.
            outputs: names of values.
            more: its domain and attributes.
        """
        kept = list(inputs)
        while kept and not kept[-1]:  # optional inputs at the end
            kept.pop()
        return make_node(kind, kept, list(outputs), **more)

    def replace(self, old: Sequence[NodeProto], at: NodeProto, *new: NodeProto) -> None:
        """Insert nodes before `at`, and remove the old ones."""
        removed = {id(node) for node in old}
        nodes: list[NodeProto] = []
        for node in self.nodes:
            nodes += new if node is at else []
            nodes += [] if id(node) in removed else [node]
        self.nodes = nodes
        self._index()

    def prepend(self, *nodes: NodeProto) -> None:
        """Insert nodes before all others."""
        self.nodes = [*nodes, *self.nodes]
        self._index()

    def redirect_readers(self, old: str, new: str) -> None:
        """Let all readers of a value read another one."""
        for node in self.readers(old):
            node.input[:] = [new if name == old else name for name in node.input]
        self._index()

    def drop_unread(self) -> None:
        """Remove the nodes that no output depends on."""
        self.nodes, _ = read_nodes(self.nodes, self.outputs)
        self._index()

    def finish(self) -> ModelProto:
        """The model, with the remaining nodes and the weights that they read."""
        self.drop_unread()
        graph = self.model.graph
        del graph.node[:]
        graph.node.extend(self.nodes)
        used = [tensor for name, tensor in self.constants.items() if name in self._readers]
        del graph.initializer[:]
        graph.initializer.extend(used)
        del graph.value_info[:]  # some of these values no longer exist
        domains = {opset.domain for opset in self.model.opset_import}
        if CONTRIBUTED not in domains and any(x.domain == CONTRIBUTED for x in self.nodes):
            self.model.opset_import.append(make_opsetid(CONTRIBUTED, 1))
        return self.model
