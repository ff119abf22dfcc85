"""The graphs of a task (`Deployment.graphs`), and their checks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx

from compressor.errors import InputError, UsageError
from compressor.export.attention import graph_attention
from compressor.export.graph_edit import stored_array
from compressor.export.tokenizer import write_tokenizer
from compressor.export.tokenizer_check import TokenizerProbe
from compressor.model.checkpoint import Checkpoint
from compressor.model.memory import trim_memory
from compressor.model.sublayers import Mask
from compressor.runtime.artifact import GRAPH_DIRECTORY, Artifact
from compressor.runtime.engines.pytorch import PYTORCH_DIRECTORY
from compressor.runtime.opening import read_artifact
from compressor.steps.results import Check
from compressor.storage.files import write_json
from compressor.storage.manifest import GRAPHS_FILE
from compressor.storage.names import BASE, ONNXRUNTIME
from compressor.tasks import TASKS, Batch, Task

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.export.for_cuda import CudaForm
    from compressor.export.int8 import Array, Observed
    from compressor.export.verify import Compared, Expected

Inputs = Mapping[str, "Tensor"]  # of the model, of one ragged batch
Batches = Sequence[Inputs]


@dataclass(frozen=True)
class Network:
    """A network to export.

    Args:
        checkpoint: its origin, with tokenizer, task and the dense model's sublayers.
        model: possibly without the units that `mask` removes.
        mask: which units are left.
        tokens: ids of the tokens that a decoder scores, whose inputs and outputs are then indices
            into this list; None: all.
    """

    checkpoint: Checkpoint  # its origin, with tokenizer, task and the dense model's sublayers
    model: nn.Module  # possibly without the units that `mask` removes
    mask: Mask
    # Ids of the tokens that a decoder scores, whose inputs and outputs are indices into this list.
    tokens: list[int] | None = None


class TaskGraphs(ABC):
    """Base of what writes the graphs of a task, and compares them with the model.

    Checks raise `VerificationError` if an output differs.

    Args:
        task: whose graphs they are.
    """

    # Role of a graph -> the kinds of sublayers that it depends on, for graphs that can be copied
    # from another model of the same checkpoint if these are equal.
    parts: ClassVar[Mapping[str, frozenset[str]]] = {}
    layout: ClassVar[str]  # the one of another program that supports the task
    cuda_forms: ClassVar[Mapping[str, CudaForm]] = {}  # role of a graph -> its form for CUDA

    def __init__(self, task: Task) -> None:
        self.task = task

    def output_tokens(
        self, checkpoint: Checkpoint, seen: Collection[int] | None = None
    ) -> list[int] | None:
        """Ids of the tokens that a decoder has to score, ascending; None: all, or no decoder.

        Args:
            checkpoint: with the tokenizer and its settings.
            seen: ids of the tokens of target texts that answers are to be like.
        """
        return None

    def export(self, network: Network, directory: Path, skip: Collection[str] = ()) -> None:
        """Write the float32 graphs, and `graphs.json`, which describes them.

        Args:
            network: to be exported.
            directory: of the graphs.
            skip: roles of graphs that are there already.
        """
        files = self.write(network, directory, skip)
        trim_memory()  # tracing leaves reference cycles that keep weights in memory
        checkpoint = network.checkpoint
        data = {
            "schema": 1,
            "task": checkpoint.task,
            "precisions": {BASE: files},
            "default_precision": BASE,
            "tokenizer": "tokenizer.json",
            "max_source_tokens": checkpoint.max_source_tokens,
            "pad_token_id": int(checkpoint.tokenizer.pad_token_id),
            "inputs": list(checkpoint.entry.inputs),
        }
        types = checkpoint.entry.token_types(network.model)
        if types is not None:
            data["token_types"] = types
        if checkpoint.tokenizer.truncation_side != "right":
            data["truncation_side"] = checkpoint.tokenizer.truncation_side
        write_json(directory / GRAPHS_FILE, data | self.describe(network, directory))

    def tensors(self, network: Network) -> Iterator[Tensor]:
        """All tensors that its float32 graphs can contain, transposed or not."""
        stored = [*network.model.parameters(), *network.model.buffers()]
        yield from stored
        with graph_attention(network.model, network.checkpoint.layers, network.mask) as tables:
            # Projections that the graphs stack are parameters of the replaced attention only.
            made = {*network.model.parameters()}.difference(stored)
            yield from [tensor.clone() for tensor in (*made, *tables)]  # freed at the end

    @abstractmethod
    def write(
        self, network: Network, directory: Path, skip: Collection[str] = ()
    ) -> dict[str, str]:
        """Write the float32 graphs.

        Args:
            network: to be exported.
            directory: made if it is missing.
            skip: roles of graphs that are there already.

        Returns:
            Role of each graph -> file name.
        """

    @abstractmethod
    def describe(self, network: Network, directory: Path) -> dict[str, Any]:
        """The task's own entries of `graphs.json`; may write more files to `directory`.

        Raises:
            InputError: the checkpoint holds settings that the runtime cannot follow.
        """

    @abstractmethod
    def expect(self, model: nn.Module, directory: Path, batches: Batches) -> list[Expected]:
        """Compute the model's outputs in float32, to compare an artifact with.

        The model is not needed any more after this.

        Args:
            model: on the CPU, in evaluation mode.
            directory: the artifact, whose description is read.
            batches: the model's inputs, ragged.
        """

    @abstractmethod
    def verify(self, expected: Sequence[Expected], runtime: Any) -> list[Check]:
        """Compare an opened artifact's float32 graphs with the model.

        Args:
            expected: the model's outputs.
            runtime: the opened artifact, of the task's own class.

        Raises:
            VerificationError: an output differs.
        """

    @abstractmethod
    def compare(self, expected: Sequence[Expected], runtime: Any) -> Compared:
        """Compare an opened artifact, in any precision, with the model in float32.

        Args:
            expected: the model's outputs.
            runtime: the opened artifact, of the task's own class.
        """

    def check(
        self, model: nn.Module, directory: Path, batches: Batches, **options: Any
    ) -> list[Check]:
        """Compare an artifact's float32 graphs with the model.

        Args:
            model: in float32.
            directory: of the artifact.
            batches: the model's inputs, ragged.
            options: to open the artifact with.

        Raises:
            VerificationError: an output differs.
        """
        expected = self.expect(model, directory, batches)
        trim_memory()
        runtime = self.task.open(directory, precision=BASE, **options)
        return [*self.verify(expected, runtime), *self.check_search(model, batches, runtime)]

    def check_search(self, model: nn.Module, batches: Batches, runtime: Any) -> list[Check]:
        """Compare how an opened artifact searches among a decoder's answers with the model.

        Args:
            model: in float32.
            batches: the model's inputs, ragged.
            runtime: the opened artifact.

        Raises:
            VerificationError: an answer differs, and not by a tie.
        """
        return []

    def check_candidates(
        self, directory: Path, precision: str, batches: Batches, model: nn.Module | None = None
    ) -> list[Check]:
        """Check the graphs that score candidates, if there are any in a precision.

        Args:
            directory: of the artifact.
            precision: of the graphs.
            batches: the model's inputs, ragged.
            model: in float32, to compare tokens with.

        Raises:
            VerificationError: a logit or a token differs.
        """
        return []

    @abstractmethod
    def observe(
        self, directory: Path, artifact: Any, batches: Sequence[Mapping[str, Array]]
    ) -> list[Observed]:
        """Run the float32 graphs on batches, and record the ranges of their products' first inputs.

        Args:
            directory: of the graphs.
            artifact: their description.
            batches: inputs by name, each batch of rows of one length.

        Returns:
            The graphs with the ranges.
        """

    def write_engine(self, network: Network, directory: Path, engine: str) -> bool:
        """Write what an engine reads in place of an artifact's graphs, unchecked.

        Returns:
            False if it reads the graphs.
        """
        return False

    def add_engine(
        self, network: Network, directory: Path, engine: str, batches: Batches
    ) -> list[Check]:
        """Write what an engine other than onnxruntime needs besides the graphs, and check it.

        Args:
            network: that was exported.
            directory: of the artifact.
            engine: its name.
            batches: the model's inputs, ragged.

        Raises:
            VerificationError: an answer differs from PyTorch's.
        """
        return self.check(network.model, directory, batches, engine=engine)

    def verify_engines(self, network: Network, directory: Path, batches: Batches) -> list[Check]:
        """Check an artifact's files for other engines, in float32.

        Raises:
            VerificationError: an answer differs from PyTorch's.
            EnvironmentProblem: the engine is not installed.
        """
        return []

    def require_layout(self, name: str, checkpoint: Checkpoint) -> None:
        """Raise `InputError` unless a layout of another program supports the task."""
        if name != self.layout:
            raise InputError(
                f"--layout {name} does not support {self.task.name}, which {checkpoint.name} is "
                f"for; use --layout {self.layout}, or leave --layout out and run the graphs with "
                "compressor.runtime",
                id="layout-not-for-task",
            )

    @abstractmethod
    def export_layout(
        self, network: Network, directory: Path, precision: str, batches: Batches
    ) -> list[Check]:
        """Write a directory in the `layout` of another program, checked in float32.

        Args:
            network: to be exported.
            directory: made if it is missing.
            precision: that weights are stored in, of layouts with several.
            batches: the model's inputs, ragged.

        Raises:
            VerificationError: an answer differs from PyTorch's.
        """


def export_model(
    network: Network,
    batches: Sequence[Batch],
    texts: Sequence[str],
    directory: Path,
    engines: Sequence[str] = (ONNXRUNTIME,),
    pairs: Sequence[str] | None = None,
) -> list[Check]:
    """Write `directory/onnx`, and what engines need, and check them.

    Args:
        network: to be exported.
        batches: ragged, to compare on.
        texts: to compare the tokenizer on.
        directory: of the artifact.
        engines: names; what these need beside the graphs is written, and checked, too.
        pairs: second texts of the rows.

    Raises:
        InputError: the checkpoint holds settings that the runtime cannot follow.
        UsageError: an engine for dense models, and the network is pruned.
        VerificationError: an answer differs from PyTorch's.
    """
    checkpoint, task = network.checkpoint, TASKS[network.checkpoint.task]
    graphs = directory / GRAPH_DIRECTORY
    graphs.mkdir(parents=True, exist_ok=True)
    file = graphs / "tokenizer.json"
    write_tokenizer(checkpoint.tokenizer, file, task.graphs.layout)  # fails sooner than graphs do
    TokenizerProbe.of(checkpoint, texts, pairs).check_file(file)
    task.graphs.export(network, graphs)
    inputs = [batch.inputs() for batch in batches]
    checks: list[Check] = task.graphs.check(network.model, directory, inputs)
    for engine in engines:
        if engine == ONNXRUNTIME:  # its graphs were checked above
            continue
        if task.engine(engine).dense_only:
            if network.mask.counts() != network.mask.totals():
                raise UsageError(
                    f"the engine {engine} runs dense models only, and {checkpoint.name} is pruned; "
                    "leave it out of --engines",
                    id="engine-for-dense-models",
                )
            model: Any = network.model
            model.save_pretrained(directory / PYTORCH_DIRECTORY)
        checks += task.graphs.add_engine(network, directory, engine, inputs)
    trim_memory()
    return checks


def graph_bytes(directory: Path, precision: str = BASE) -> int:
    """Size of the graphs of an artifact in one precision, external weights included."""
    graphs = directory / GRAPH_DIRECTORY
    names = read_artifact(directory).precisions[precision].values()
    return sum(path.stat().st_size for name in names for path in graphs.glob(f"{name}*"))


def require_same_weights(
    graphs: TaskGraphs, network: Network, artifact: Artifact, directory: Path
) -> None:
    """Raise `InputError` unless all weights of float32 graphs, but scalars, are the checkpoint's.

    Args:
        graphs: of the task.
        network: the checkpoint's.
        artifact: description of the graphs.
        directory: of the artifact.
    """

    def has(tensor: Any, rows: Any) -> bool:
        """Whether rows are the first or last of a tensor, as in tables of positions, or all."""
        if tensor.shape[1:] != rows.shape[1:] or len(tensor) < len(rows):
            return False
        count = len(rows)
        return np.array_equal(tensor[:count], rows) or np.array_equal(tensor[-count:], rows)

    known = [tensor.detach().numpy() for tensor in graphs.tensors(network)]
    for file in sorted(set(artifact.precisions[BASE].values())):
        path = directory / GRAPH_DIRECTORY / file
        for tensor in onnx.load(path, load_external_data=False).graph.initializer:
            if tensor.data_type != onnx.TensorProto.FLOAT or math.prod(tensor.dims) <= 1:
                continue
            # Not read by onnx, which rejects files with hard links.
            values = stored_array(tensor, path.parent)
            if not any(has(x, values) or np.array_equal(x.T, values) for x in known):
                raise InputError(
                    f"{path}: the weights of {tensor.name} are not those of the checkpoint in the "
                    "same directory; export it again",
                    id="graphs-of-another-model",
                )
