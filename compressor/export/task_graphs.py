"""The graphs of a task (`Task.graphs`), and their checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.errors import InputError
from compressor.export.attention import graph_attention
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

    from compressor.export.activation_ranges import Array, Observed
    from compressor.export.for_cuda import CudaForm
    from compressor.export.precisions import Compared
    from compressor.export.verify import Expected

Inputs = Mapping[str, "Tensor"]  # of the model, of one ragged batch


@dataclass(frozen=True)
class Network:
    """A network to export.

    Args:
        checkpoint: its origin, with tokenizer, task and the dense model's sublayers.
        model: the network, possibly without the units that `mask` removes.
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
            copied from another model of the same checkpoint if these are equal.
        layouts: names of other supported layouts than this tool's own.
        cuda_forms: role of a graph -> its form for CUDA.
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
            seen: ids of the tokens of typical target texts.
        """
        return None

    def export(self, network: Network, directory: Path, skip: Collection[str] = ()) -> None:
        """Write graphs, and `graphs.json`, their description for the runtime.

        Args:
            skip: roles of graphs that the directory already has.

        Raises:
            InputError: the checkpoint has settings that the runtime does not support.
        """
        files = self.write(network, directory, skip)
        # Tracing leaves reference cycles that keep weights in memory.
        trim_memory()
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
        """Write the float32 graphs; returns role of each graph -> file name."""

    @abstractmethod
    def describe(self, network: Network, directory: Path) -> dict[str, Any]:
        """The task's own entries of `graphs.json`; may write more files to `directory`."""

    @abstractmethod
    def expect(
        self, model: nn.Module, directory: Path, batches: Sequence[Inputs]
    ) -> list[Expected]:
        """The model's outputs in float32, to compare an artifact with.

        The model is not needed afterwards: its memory can be freed before the graphs are opened.

        Args:
            directory: the artifact, whose description of graphs is read.
        """

    @abstractmethod
    def verify(self, expected: Sequence[Expected], runtime: Any) -> list[Check]:
        """Compare an opened artifact's float32 graphs with the model.

        Raises:
            VerificationError: an output differs.
        """

    @abstractmethod
    def compare(self, expected: Sequence[Expected], runtime: Any) -> Compared:
        """Compare an opened artifact, in any precision, with the model in float32."""

    def check(
        self, model: nn.Module, directory: Path, batches: Sequence[Inputs], **options: Any
    ) -> list[Check]:
        """`expect` and `verify` for an artifact's float32 graphs, opened with these options."""
        expected = self.expect(model, directory, batches)
        trim_memory()
        return self.verify(expected, self.task.open(directory, precision=BASE, **options))

    @abstractmethod
    def observe(
        self, directory: Path, artifact: Any, batches: Sequence[Mapping[str, Array]]
    ) -> list[Observed]:
        """Run the float32 graphs in `directory`, and record the ranges of products' first inputs.

        Args:
            artifact: its description.
        """

    @abstractmethod
    def write_optimum(self, network: Network, directory: Path) -> None:
        """Write the graphs in the layout of Hugging Face optimum.

        Raises:
            InputError: the layout does not support the model.
        """

    @abstractmethod
    def verify_optimum(
        self, model: nn.Module, directory: Path, batches: Sequence[Inputs]
    ) -> list[Check]:
        """`verify` for graphs in that layout."""

    def write_engine(self, network: Network, directory: Path, engine: str) -> bool:
        """Write what an engine reads instead of an artifact's graphs; False if it reads these."""
        return False

    def add_engine(
        self, network: Network, directory: Path, engine: str, batches: Sequence[Inputs]
    ) -> list[Check]:
        """Write what an engine other than onnxruntime needs besides the graphs, and check it.

        Raises:
            VerificationError: an output differs from PyTorch's.
        """
        return self.check(network.model, directory, batches, engine=engine)

    def verify_engines(
        self, network: Network, directory: Path, batches: Sequence[Inputs]
    ) -> list[Check]:
        """Check an artifact's files for other engines, in float32.

        Raises:
            VerificationError: an output differs from PyTorch's.
            EnvironmentProblem: the engine is not installed.
        """
        return []

    def export_ctranslate2(
        self, network: Network, directory: Path, precision: str, batches: Sequence[Inputs]
    ) -> list[Check]:
        """Write a model that CTranslate2 opens, checked in float32 on ragged batches.

        Raises:
            InputError: CTranslate2 does not support the task.
            VerificationError: an output differs from PyTorch's.
        """
        raise InputError(
            f"CTranslate2 is for encoder-decoders, and {network.checkpoint.name} is a model for "
            f"{network.checkpoint.task}; leave --layout out",
            id="layout-not-for-task",
        )
