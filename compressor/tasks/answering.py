"""What a task knows about answers: the metrics that judge them, and how they are asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.tasks.rows import Rows, Texts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import nn

    Arrays = Mapping[str, NDArray[np.int64]]
    from compressor.tasks.batching import Tensors


@dataclass(frozen=True)
class Timed:
    """How every model of one measurement runs its batches.

    Args:
        options: of `Runtime.compute`.
        target_tokens: what each row generates; 0 where none are.
        description: said after the source lengths.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    target_tokens: float = 0.0
    description: str = ""


class Answerer(ABC):
    """Answers of a model, in PyTorch or as an artifact, as targets of rows.

    Args:
        metrics: names of its metrics in `compressor.evaluation.METRICS`, the main one first.
        ranked_metrics: those of ranked rows, where a task has other rows as well.
        counted_tokens: which tokens "tokens per second" counts: `source` or `generated`.
    """

    metrics: ClassVar[tuple[str, ...]]
    ranked_metrics: ClassVar[tuple[str, ...]] = ()
    counted_tokens: ClassVar[str] = "source"

    @property
    def main_metric(self) -> str:
        """The metric that budgets, searches and reports go by."""
        return self.metrics[0]

    def metrics_of(self, rows: Rows) -> tuple[str, ...]:
        """The metrics of answers to some rows, the main one first."""
        return (rows.ranked and self.ranked_metrics) or self.metrics

    @abstractmethod
    def predict(
        self, model: nn.Module, batch: Tensors, tokenizer: Any, num_beams: int | None = None
    ) -> list[str]:
        """The model's answers, one for each line of the batch; the labels are not looked at.

        Args:
            batch: on the model's device.
            tokenizer: the checkpoint's tokenizer.
            num_beams: beam width; None is greedy search, whatever the model's settings say.
        """

    def answer_settings(self, rows: Rows) -> Mapping[str, Any]:
        """Further arguments of `answer`, the same for all of some rows."""
        return {}

    @abstractmethod
    def answer(
        self,
        runtime: Any,
        sources: Texts,
        pairs: Texts | None = None,
        *,
        num_beams: int | None = None,
    ) -> list[str]:
        """What an artifact, opened by `open`, answers to texts, as `Rows` holds targets.

        `num_beams` is for answers that are searched; None takes the model's own.
        """

    def timed(self, runtime: Any, batches: Sequence[Arrays], target_length: int | None) -> Timed:
        """How all models of a measurement run their batches, by the reference model's runtime.

        `target_length` generated tokens per row, if they were asked for.
        """
        return Timed()
