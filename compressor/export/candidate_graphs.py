"""A decoder's step that scores candidates alone: its output layer takes gathered rows as inputs.

A graph beside it gathers the rows, once a batch. Both have their weights in the decoder's file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.helper import make_graph, make_model, make_node, make_tensor_value_info

from compressor.export.graph_edit import GraphEdit, attribute
from compressor.runtime.artifact import GRAPH_DIRECTORY
from compressor.runtime.graph_names import (
    BEST,
    CANDIDATE_DECODER,
    CANDIDATES,
    GATHER_CANDIDATES,
    gathered,
)
from compressor.storage.files import write_json
from compressor.storage.manifest import GRAPHS_FILE
from compressor.storage.names import BASE

LOGITS = "logits"
_PRODUCTS = ("Gemm", "MatMul", "MatMulIntegerToFloat")
_AFTER_PRODUCT = ("Add", "Mul")  # of a bias, and of a scale for each row


@dataclass(frozen=True)
class _TokenWeight:
    """A weight of the output layer with a row, column or number for each token.

    Args:
        value: its name in the graph.
        tensor: as it is stored.
        axis: of the tokens, in the stored tensor.
        transposed: whether the graph reads it transposed.
    """

    value: str
    tensor: TensorProto
    axis: int
    transposed: bool = False


def write_candidate_graphs(decoder: Path, suffix: str = ".onnx") -> dict[str, str]:
    """Write the step that scores candidates, and what gathers their rows, beside a decoder.

    The step has two branches: with candidates, and with all tokens where there are none. So one
    session serves all batches, and holds the weights once.

    Args:
        decoder: the graph of a step, in float32 or int8, with its weights beside it.
        suffix: of the files.

    Returns:
        Role of each graph -> file name.
    """
    step = _Step(onnx.load(decoder, load_external_data=False))
    files = {role: f"{role}{suffix}" for role in (CANDIDATE_DECODER, GATHER_CANDIDATES)}
    models = {CANDIDATE_DECODER: step.branching(), GATHER_CANDIDATES: step.gathering()}
    for role, model in models.items():
        path = decoder.with_name(files[role])
        onnx.save(model, path)
        onnx.checker.check_model(path)
    return files


def add_candidates(directory: Path, table: Path) -> None:
    """Let the decoder of an artifact with float32 graphs score candidates.

    Args:
        directory: of the artifact.
        table: of `candidate_table`.
    """
    graphs = directory / GRAPH_DIRECTORY
    copyfile(table, graphs / table.name)
    data = json.loads((graphs / GRAPHS_FILE).read_text(encoding="utf-8"))
    files = data["precisions"][BASE]
    files |= write_candidate_graphs(graphs / files["decoder"])
    write_json(graphs / GRAPHS_FILE, data | {"candidates": table.name})


class _Step(GraphEdit):
    """The graph of a step, and its output layer."""

    def __init__(self, model: ModelProto) -> None:
        super().__init__(model)
        self.layer = self._output_layer(LOGITS)  # from the product to the logits
        self.weights = [x for node in self.layer for x in self._token_weights(node)]
        read = {name for node in self.layer for name in node.output}
        # All nodes that depend on the product. A table that is transposed for it stays outside:
        # onnxruntime would hold it twice in a branch.
        self.rest = []
        for node in self.nodes:
            if node is self.layer[0] or read.intersection(node.input):
                self.rest.append(node)
                read.update(node.output)

    def _output_layer(self, value: str) -> list[NodeProto]:
        """The nodes from the product with the output layer's weight to the logits."""
        product = self.maker(value, *_PRODUCTS)
        if product is not None:
            return [product]
        node = self.maker(value, *_AFTER_PRODUCT)
        assert node is not None
        made = next(x for x in node.input if self.maker(x, *_PRODUCTS, *_AFTER_PRODUCT))
        return [*self._output_layer(made), node]

    def _token_weights(self, node: NodeProto) -> list[_TokenWeight]:
        """The weights of a node of the output layer that have something for each token."""
        weights = []
        if node.op_type in _PRODUCTS:
            name = node.input[1]
            turned = self.maker(name, "Transpose")
            if turned is not None:  # [tokens, width], which a table of embeddings shares
                table = self.constants[turned.input[0]]
                weights.append(_TokenWeight(name, table, axis=0, transposed=True))
            else:
                axis = 0 if attribute(node, "transB", 0) else 1
                weights.append(_TokenWeight(name, self.constants[name], axis))
        known = {weight.value for weight in weights}
        vectors = (self.constants[x] for x in node.input if x in self.constants and x not in known)
        return weights + [_TokenWeight(x.name, x, axis=0) for x in vectors if len(x.dims) == 1]

    def gathering(self) -> ModelProto:
        """The graph that gathers the weights of candidates."""
        nodes, outputs = [], []
        for weight in self.weights:
            out = gathered(weight.value)
            rows = f"{out} rows" if weight.transposed else out
            inputs = [weight.tensor.name, CANDIDATES]
            nodes.append(make_node("Gather", inputs, [rows], axis=weight.axis))
            if weight.transposed:
                nodes.append(make_node("Transpose", [rows], [out], perm=[1, 0]))
            outputs.append(_gathered_value(weight))
        graph = make_graph(
            nodes,
            GATHER_CANDIDATES,
            [_candidates()],
            outputs,
            initializer=[weight.tensor for weight in self.weights],
        )
        opsets = self.model.opset_import
        return make_model(graph, opset_imports=opsets, ir_version=self.model.ir_version)

    def branching(self) -> ModelProto:
        """The step with both branches."""
        names = {weight.value: gathered(weight.value) for weight in self.weights}
        some = [_renamed(node, names) for node in self.layer]
        place = f"{BEST} place"
        some.append(make_node("ArgMax", [LOGITS], [place], axis=1, keepdims=0))
        some.append(make_node("Gather", [CANDIDATES, place], [BEST], axis=0))
        model = ModelProto()
        model.CopyFrom(self.model)
        graph = model.graph
        results = [value for value in graph.output if value.name in (LOGITS, BEST)]
        (logits,) = (value for value in results if value.name == LOGITS)
        logits.type.tensor_type.shape.dim[1].dim_param = "scored"
        count, given = f"{CANDIDATES} count", f"{CANDIDATES} given"
        branches = {
            "then_branch": _branch("some", some, results),
            "else_branch": _branch("all", self.rest, results),
        }
        moved = {id(node) for node in self.rest}
        del graph.node[:]
        graph.node.extend(node for node in self.nodes if id(node) not in moved)
        graph.node.extend(
            [
                make_node("Size", [CANDIDATES], [count]),
                make_node("Cast", [count], [given], to=TensorProto.BOOL),
                make_node("If", [given], [value.name for value in results], **branches),
            ]
        )
        graph.input.extend([_candidates(), *map(_gathered_value, self.weights)])
        del graph.value_info[:]  # some of these values are in a branch now
        return model


def _candidates() -> ValueInfoProto:
    return make_tensor_value_info(CANDIDATES, TensorProto.INT64, [CANDIDATES])


def _gathered_value(weight: _TokenWeight) -> ValueInfoProto:
    """The gathered weight as an input or output, in the shape that the step multiplies by."""
    shape: list[int | str] = [*weight.tensor.dims]
    shape[weight.axis] = CANDIDATES
    shape = shape[::-1] if weight.transposed else shape
    return make_tensor_value_info(gathered(weight.value), weight.tensor.data_type, shape)


def _renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """A copy of a node with other names of some values."""
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [names.get(name, name) for name in node.input]
    copy.output[:] = [names.get(name, name) for name in node.output]
    return copy


def _branch(name: str, nodes: Sequence[NodeProto], results: Sequence[ValueInfoProto]) -> GraphProto:
    """A branch with these nodes, whose values get names of their own."""
    names = {value: f"{name} {value}" for node in nodes for value in node.output if value}
    outputs = []
    for value in results:
        output = ValueInfoProto()
        output.CopyFrom(value)
        output.name = names[value.name]
        outputs.append(output)
    return make_graph([_renamed(node, names) for node in nodes], name, [], outputs)
