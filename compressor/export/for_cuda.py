"""Float16 graphs in the form for CUDA, which is checked in float32, too: CPUs have kernels."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto
from onnx.helper import make_tensor_value_info

from compressor.export.fused import LENGTHS, ROW_STARTS
from compressor.export.graph_edit import CONTRIBUTED, GraphEdit, attribute, has_rank
from compressor.export.graphs import WEIGHTS_SUFFIX
from compressor.export.verify import Expected, logit_check, relative_difference
from compressor.runtime.artifact import GRAPH_DIRECTORY
from compressor.runtime.fused_encoder import (
    LEAST_PADDING,
    LEAST_SHARE,
    OFFSETS,
    PACKED,
    STARTS,
    TOKENS,
)
from compressor.runtime.opening import read_artifact
from compressor.steps.results import Check
from compressor.storage.files import link_or_copy, write_json
from compressor.storage.manifest import GRAPHS_FILE
from compressor.storage.names import BASE
from compressor.storage.staging import staging
from compressor.tasks import TASKS

if TYPE_CHECKING:
    from compressor.runtime import Runtime

CUDA = "cuda"
# Operators that process each token by itself, with shared weights.
_TOKENWISE = (
    "MatMul", "Add", "Mul", "Gelu", "Relu", "Tanh", "Sigmoid", "BiasGelu", "FastGelu",
    "LayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
)  # fmt: skip
_INPUTS = {TOKENS: ["tokens"], OFFSETS: ["batch", "source"], STARTS: ["starts"]}


@dataclass(frozen=True)
class CudaForm:
    """The form of a graph for CUDA in float16.

    Args:
        rewrite: makes it of a float32 graph and the directory of its external data; None without
            one.
        write_beside: writes more graphs beside the written one, with a suffix of their names, and
            returns role -> file name.
    """

    # float32 graph, and directory of its external data -> its form; None without one
    rewrite: Callable[[ModelProto, Path], ModelProto | None]
    # Writes more graphs beside the written one, with a suffix of their names: role -> file name
    write_beside: Callable[[Path, str], Mapping[str, str]] = lambda graph, suffix: {}


def write_packed(graph: Path, suffix: str) -> Mapping[str, str]:
    """Write the padding-free form of a fused graph, if it has one; both share a file of weights.

    Args:
        graph: the file.
        suffix: of the name of the new one.

    Returns:
        Role -> file name.
    """
    packed = pack(onnx.load(graph, load_external_data=False))
    if packed is None:
        return {}
    onnx.save(packed, graph.with_name(f"{PACKED}{suffix}"))
    return {PACKED: f"{PACKED}{suffix}"}


def pack(fused: ModelProto) -> ModelProto | None:
    """Make the padding-free form of a fused graph.

    Layers process the real tokens of all rows, [tokens, width], whose positions are inputs:
    onnxruntime's own operator for them synchronizes with the CPU.

    Args:
        fused: made by `fused.fuse`, in any precision.

    Returns:
        The graph; None for rotary positions and biases of scores, which have no kernel.
    """
    edit = GraphEdit(fused)
    attentions = [node for node in edit.nodes if node.op_type == "Attention"]
    rotated = any(node.op_type == "MultiHeadAttention" for node in edit.nodes)
    if not attentions or rotated or any(len(node.input) > 4 for node in attentions):
        return None
    entry = _entry(edit, attentions[0].input[0])
    if entry is None:
        return None
    packed = {entry: f"{entry}.packed"}  # value -> its packed form
    nodes: list[NodeProto] = []
    restored = {entry}

    def restore(values: Iterable[str]) -> None:
        """Give values the shape [batch, tokens, width] for nodes and outputs that need it."""
        for name in values:
            if name in packed and name not in restored:
                restored.add(name)
                inputs = [packed[name], OFFSETS]
                nodes.append(edit.node("RestorePadding", inputs, [name], domain=CONTRIBUTED))

    for node in edit.nodes:
        if _stays_packed(edit, node, packed):
            packed |= {name: f"{name}.packed" for name in node.output if name}
            nodes += _packed(edit, node, packed)
        else:
            restore(node.input)
            nodes.append(node)
        if entry in node.output:
            flat = f"{entry}.flat"
            nodes.append(edit.node("Flatten", [entry], [flat], axis=2))
            nodes.append(edit.node("Gather", [flat, TOKENS], [packed[entry]], axis=0))
    restore(edit.outputs)
    edit.nodes = nodes
    model = edit.finish()
    read = {name for node in model.graph.node for name in node.input}
    inputs = [value for value in model.graph.input if value.name in read]
    inputs += [make_tensor_value_info(n, TensorProto.INT32, x) for n, x in _INPUTS.items()]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return model


def _entry(edit: GraphEdit, hidden: str) -> str | None:
    """The value that all layers depend on: the embeddings, before the first attention's input."""
    within = {id(node) for node in edit.ancestors(hidden)}
    nodes = [node for node in edit.nodes if id(node) in within]
    for node in nodes:
        (value, *_) = node.output
        before = {id(x) for x in edit.ancestors(value)}
        after = [x for x in nodes if id(x) not in before]
        computed = {value, *(name for x in after for name in x.output)}
        known = all(n in computed or n in edit.constants or not n for x in after for n in x.input)
        inner = [x for x in nodes if id(x) in before and x is not node]
        read = (reader for x in inner for name in x.output for reader in edit.readers(name))
        if known and all(id(reader) in before for reader in read):
            return value
    return None


def _stays_packed(edit: GraphEdit, node: NodeProto, packed: Collection[str]) -> bool:
    """Whether a node can compute real tokens alone."""
    if node.op_type == "Attention":
        return True
    if node.op_type not in _TOKENWISE or not any(name in packed for name in node.input):
        return False
    weights = [name for name in node.input if name and name not in packed]
    tensors = [edit.constants.get(name) for name in weights]
    if node.op_type == "MatMul":
        return has_rank(tensors[0] if tensors else None, 2)
    return all(tensor is not None and len(tensor.dims) <= 1 for tensor in tensors)


def _packed(edit: GraphEdit, node: NodeProto, packed: Mapping[str, str]) -> list[NodeProto]:
    """The nodes that compute a node's packed outputs from its packed inputs."""
    if node.op_type != "Attention":
        copied = NodeProto()
        copied.CopyFrom(node)
        copied.input[:] = [packed.get(name, name) for name in node.input]
        copied.output[:] = [packed.get(name, name) for name in node.output]
        return [copied]
    hidden, weight, bias, lengths = node.input
    assert lengths in (LENGTHS, ROW_STARTS)
    made = packed[node.output[0]]
    parts = [f"{made}.{part}" for part in ("query", "key", "value")]
    options = {name: attribute(node, name) for name in ("num_heads", "scale")}
    return [
        edit.node("MatMul", [packed[hidden], weight], [f"{made}.projected"]),
        edit.node("Split", [f"{made}.projected"], parts, axis=-1, num_outputs=3),
        edit.node(
            "PackedMultiHeadAttention",
            [*parts, bias, OFFSETS, STARTS],
            [made],
            domain=CONTRIBUTED,
            **options,
        ),
    ]


@contextmanager
def fused_in_float32(directory: Path) -> Iterator[Path]:
    """Within the context, an artifact whose float32 graphs have the form for CUDA."""
    artifact = read_artifact(directory)
    files = dict(artifact.precisions[BASE])
    with staging(directory) as staged:
        made = link_float32(directory, staged)
        for role, form in TASKS[artifact.task].graphs.cuda_forms.items():
            source = directory / GRAPH_DIRECTORY / files[role]
            fused = form.rewrite(onnx.load(source, load_external_data=False), source.parent)
            if fused is not None:  # for at least one of the graphs
                (made / files[role]).unlink()
                onnx.save(fused, made / files[role])
                files |= form.write_beside(made / files[role], ".onnx")
        described = json.loads((made / GRAPHS_FILE).read_text(encoding="utf-8"))
        write_json(made / GRAPHS_FILE, described | {"precisions": {BASE: files}})
        yield staged


def link_float32(directory: Path, target: Path) -> Path:
    """Link an artifact's float32 graphs into another directory, with their description.

    Args:
        directory: of the artifact.
        target: the other one.

    Returns:
        The directory of the linked graphs.
    """
    made = target / GRAPH_DIRECTORY
    made.mkdir(parents=True)
    artifact = read_artifact(directory)
    for used in artifact.used_files(BASE):
        for path in (directory / used, directory / f"{used}{WEIGHTS_SUFFIX}"):
            if path.exists():
                link_or_copy(path, made / path.name)
    text = (directory / GRAPH_DIRECTORY / GRAPHS_FILE).read_text(encoding="utf-8")
    alone = {"precisions": {BASE: artifact.precisions[BASE]}, "default_precision": BASE}
    write_json(made / GRAPHS_FILE, json.loads(text) | alone | {"made_for": None})
    return made


def form_check(expected: Sequence[Expected], directory: Path) -> Check:
    """Compare an artifact's form for CUDA with PyTorch, in float32 on the CPU.

    Args:
        expected: PyTorch's outputs.
        directory: of the artifact.

    Raises:
        VerificationError: a logit differs.
    """
    task = TASKS[read_artifact(directory).task]
    with fused_in_float32(directory) as artifact:
        runtime = task.open(artifact, precision=BASE)
        compared = task.graphs.compare(expected, runtime)
        check = logit_check(compared.differences, runtime.ran_by, compared.undecided)
    detail = f"{check.detail}; the nodes of the float16 graphs in float32"
    return check.model_copy(update={"name": "form for CUDA equals PyTorch", "detail": detail})


def packed_check(
    expected: Sequence[Expected], runtime: Runtime[Any], tolerance: float
) -> list[Check]:
    """Compare the padding-free form on CUDA with PyTorch.

    Args:
        expected: PyTorch's outputs.
        runtime: the artifact, opened on CUDA.
        tolerance: share of the largest logit.

    Returns:
        One check; none if there is no such form, or rows cannot be padded enough for it.
    """
    artifact = runtime.artifact
    if PACKED not in artifact.precisions[runtime.precision]:
        return []
    # All rows in one batch with a third of padding, if the model's limit allows.
    lengths = [int(mask.sum()) for batch in expected for mask in batch.inputs["attention_mask"]]
    third = -(-3 * sum(lengths) // (2 * len(lengths)))
    width = max(max(lengths), min(artifact.max_source_tokens, third))
    padding = len(lengths) * width - sum(lengths)
    if padding < LEAST_SHARE * len(lengths) * width:
        return []
    times = -(-LEAST_PADDING // padding)

    def padded(batch: Expected, name: str) -> Any:
        values, pad = batch.inputs[name], artifact.pad_token_id if name == "input_ids" else 0
        return np.pad(values, [(0, 0), (0, width - values.shape[1])], constant_values=pad)

    inputs = {
        name: np.tile(np.concatenate([padded(batch, name) for batch in expected]), (times, 1))
        for name in expected[0].inputs
    }
    wanted = [logits for batch in expected for logits in batch.logits.read()] * times
    actual: Any = runtime.compute(inputs)
    if actual.ndim == 3:  # logits of tokens: leave out those of padding
        actual, wanted = (
            [logits[:length] for logits, length in zip(rows, lengths * times, strict=True)]
            for rows in (actual, wanted)
        )
    check = Check(
        name=f"{runtime.precision} without padding against PyTorch in float32",
        largest_difference=relative_difference(actual, wanted),
        tolerance=tolerance,
        detail=f"logits of {len(actual)} rows in one batch, relative to the largest logit; "
        f"{runtime.provider}",
    )
    return [check]
