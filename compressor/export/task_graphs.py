"""What `Task.graphs` answers: which graphs a task has, and how they are checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.errors import InputError
from compressor.export.attention import graph_attention
from compressor.export.cuda_form import CudaForm
from compressor.export.precision_names import BASE
from compressor.model.checkpoint import Checkpoint
from compressor.model.memory import trim_memory
from compressor.model.sublayers import Mask
from compressor.results import Check
from compressor.storage.files import write_json
from compressor.storage.manifest import GRAPHS_FILE
from compressor.tasks import Task

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.export.activation_ranges import Array, Finder, Observed
    from compressor.export.precisions import Compared
    from compressor.export.verify import Expected

Inputs = Mapping[str, "Tensor"]  # of the model, of one ragged batch


@dataclass(frozen=True)
class Network:
    """A network to export.

    Args:
        checkpoint: where it came from: tokenizer, task, the dense model's sublayers.
        model: the network, which may have lost the units that `mask` removes.
        tokens: ids of the tokens that a decoder scores (`TaskGraphs.output_tokens`); its inputs and
            outputs are then indices into this list. None: all tokens.
    """

    checkpoint: Checkpoint
    model: nn.Module
    mask: Mask
    tokens: list[int] | None = None


class TaskGraphs(ABC):
    """The graphs of one task.

    Args:
        parts: role of a graph -> the kinds of sublayers that it depends on, for graphs that can be
            copied from another model of the same checkpoint if these are the same.
        layouts: names of those that its models have beside this tool's own.
        cuda_forms: role of a graph -> the form that it has for CUDA in float16.
    """

    parts: ClassVar[Mapping[str, frozenset[str]]] = {}
    layouts: ClassVar[str] = "optimum"
    cuda_forms: ClassVar[Mapping[str, CudaForm]] = {}

    def __init__(self, task: Task) -> None:
        self.task = task

    def output_tokens(
        self, checkpoint: Checkpoint, seen: Collection[int] | None = None
    ) -> list[int] | None:
        """Ids of the tokens that a decoder has to score, ascending; None: all, or no decoder.

        Args:
            seen: ids of the tokens of target texts, to which answers are to be like.
        """
        return None

    def export(self, network: Network, directory: Path, skip: Collection[str] = ()) -> None:
        """Write graphs, and `graphs.json`: what the runtime must know about them.

        Raises:
            InputError: the checkpoint holds settings that the runtime cannot follow.
        """
        files = self.write(network, directory, skip)
        # Tracing leaves cycles through the weights, which would stay in memory.
        trim_memory()
        write_json(directory / GRAPHS_FILE, self.description(network, directory, files))

    def description(
        self, network: Network, directory: Path, files: Mapping[str, str]
    ) -> dict[str, Any]:
        """The contents of `graphs.json` for float32 graphs: role of each -> file name."""
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
        if checkpoint.tokenizer.truncation_side != "right":
            data["truncation_side"] = checkpoint.tokenizer.truncation_side
        return data | self.describe(network, directory)

    def tensors(self, network: Network) -> Iterator[Tensor]:
        """All weights that its float32 graphs can hold, as they are there or transposed."""
        stored = [*network.model.parameters(), *network.model.buffers()]
        yield from stored
        with graph_attention(network.model, network.checkpoint.layers, network.mask) as tables:
            # Projections that the graphs join into one are parameters of the replaced attention
            # alone.
            made = {*network.model.parameters()}.difference(stored)
            yield from [tensor.clone() for tensor in (*made, *tables)]  # freed at the end

    @abstractmethod
    def write(
        self, network: Network, directory: Path, skip: Collection[str] = ()
    ) -> dict[str, str]:
        """Write the model's graphs (float32) into `directory`.

        Args:
            skip: roles of graphs that are not written, because the directory has them already.

        Returns:
            Role of each graph -> file name.
        """

    @abstractmethod
    def describe(self, network: Network, directory: Path) -> dict[str, Any]:
        """The task's own entries of `graphs.json`; further files are written to `directory`.

        Raises:
            InputError: the checkpoint holds settings that the runtime cannot follow.
        """

    @abstractmethod
    def expect(
        self, model: nn.Module, directory: Path, batches: Sequence[Inputs]
    ) -> list[Expected]:
        """What the model answers in float32, to compare an artifact with.

        The model is not needed any more after this: its memory can be given back before the
        graphs are opened.

        Args:
            directory: the artifact, of which the description of the graphs is read.
        """

    @abstractmethod
    def verify(self, expected: Sequence[Expected], runtime: Any) -> list[Check]:
        """Compare an opened artifact's float32 graphs with the model.

        Raises:
            VerificationError: an answer differs.
        """

    @abstractmethod
    def compare(self, expected: Sequence[Expected], runtime: Any) -> Compared:
        """Compare an opened artifact, in any precision, with the model in float32."""

    def check(
        self, model: nn.Module, directory: Path, batches: Sequence[Inputs], **options: Any
    ) -> list[Check]:
        """`verify` for an artifact's float32 graphs; the model and they are not held together.

        Args:
            options: to open it with.
        """
        expected = self.expect(model, directory, batches)
        trim_memory()
        return self.verify(expected, self.task.open(directory, precision=BASE, **options))

    @abstractmethod
    def observe(
        self, directory: Path, artifact: Any, batches: Sequence[Mapping[str, Array]], finder: Finder
    ) -> list[Observed]:
        """Run the float32 graphs in `directory` on batches, noting the ranges of values.

        Args:
            artifact: its description.
            finder: the nodes whose first inputs are noted.
        """

    @abstractmethod
    def write_optimum(self, network: Network, directory: Path) -> None:
        """Write the graphs in the layout of Hugging Face optimum.

        Raises:
            InputError: the layout cannot hold the model.
        """

    @abstractmethod
    def verify_optimum(
        self, model: nn.Module, directory: Path, batches: Sequence[Inputs]
    ) -> list[Check]:
        """`verify` for graphs in that layout."""

    def write_engine(self, network: Network, directory: Path, engine: str) -> bool:
        """Write what an engine reads instead of the graphs of an artifact, unchecked.

        Returns:
            False where there is nothing to write, because it reads the graphs.
        """
        return False

    def add_engine(
        self, network: Network, directory: Path, engine: str, batches: Sequence[Inputs]
    ) -> list[Check]:
        """Write what an engine needs in an artifact beside its float32 graphs, and check it.

        Args:
            directory: the artifact.
            engine: one that runs the task, other than onnxruntime.
            batches: ragged batches to compare on.

        Raises:
            VerificationError: an answer differs from PyTorch's.
        """
        return self.check(network.model, directory, batches, engine=engine)

    def verify_engines(
        self, network: Network, directory: Path, batches: Sequence[Inputs]
    ) -> list[Check]:
        """Check what an artifact has for engines beside its graphs, in float32.

        Raises:
            VerificationError: an answer differs from PyTorch's.
            EnvironmentProblem: the engine is not installed.
        """
        return []

    def export_ctranslate2(
        self, network: Network, directory: Path, precision: str, batches: Sequence[Inputs]
    ) -> list[Check]:
        """Write a model that CTranslate2 opens, checked in float32 on ragged batches.

        Raises:
            InputError: it runs no models of this task.
            VerificationError: an answer differs from PyTorch's.
        """
        raise InputError(
            f"CTranslate2 runs encoder-decoders, and {network.checkpoint.name} is a model for "
            f"{network.checkpoint.task}; leave --layout out",
            id="layout-not-for-task",
        )
