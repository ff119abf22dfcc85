"""What `Task.graphs` answers: which graphs a task has, and how they are checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.model.checkpoint import Checkpoint
from compressor.model.sublayers import Mask, Sublayer
from compressor.results import Check
from compressor.tasks import Task

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.export.activation_ranges import Array, Finder, Observed
    from compressor.export.precisions import Compared

Inputs = Mapping[str, "Tensor"]  # of the model, of one ragged batch


class TaskGraphs(ABC):
    """The graphs of one task.

    Args:
        parts: role of a graph -> the kinds of sublayers that it depends on, for graphs that can be
            copied from another model of the same checkpoint if these are the same.
    """

    parts: ClassVar[Mapping[str, frozenset[str]]] = {}

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

    @abstractmethod
    def write(
        self,
        model: nn.Module,
        layers: Sequence[Sublayer],
        mask: Mask,
        directory: Path,
        skip: Collection[str] = (),
        tokens: list[int] | None = None,
    ) -> dict[str, str]:
        """Write the model's graphs (float32) into `directory`.

        Args:
            skip: roles of graphs that are not written, because the directory has them already.
            tokens: ids of the tokens that the decoder scores (`output_tokens`). Its inputs and
                outputs are then indices into this list. None: all tokens.

        Returns:
            Role of each graph -> file name.
        """

    @abstractmethod
    def describe(
        self,
        checkpoint: Checkpoint,
        model: nn.Module,
        mask: Mask,
        directory: Path,
        tokens: list[int] | None,
    ) -> dict[str, Any]:
        """The task's own entries of `graphs.json`; further files are written to `directory`.

        Raises:
            InputError: the checkpoint holds settings that the runtime cannot follow.
        """

    @abstractmethod
    def verify(self, model: nn.Module, directory: Path, batches: Sequence[Inputs]) -> list[Check]:
        """Compare an artifact's float32 graphs with the model, on ragged batches.

        Raises:
            VerificationError: an answer differs.
        """

    @abstractmethod
    def compare(
        self,
        model: nn.Module,
        directory: Path,
        batches: Sequence[Inputs],
        precision: str,
        device: str,
    ) -> Compared:
        """Compare an artifact's graphs in another precision with the model."""

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
    def write_optimum(self, checkpoint: Checkpoint, mask: Mask, directory: Path) -> None:
        """Write the graphs in the layout of Hugging Face optimum.

        Raises:
            InputError: the layout cannot hold the model.
        """

    @abstractmethod
    def verify_optimum(
        self, model: nn.Module, directory: Path, batches: Sequence[Inputs]
    ) -> list[Check]:
        """`verify` for graphs in that layout."""
