"""Regression: a number for a text, or for a pair of texts that is read as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from compressor.errors import InputError
from compressor.model.sentence_settings import SIGMOID, activation_of
from compressor.tasks.cells import number_cell
from compressor.tasks.rows import LabelNames, Rows, Texts
from compressor.tasks.scores import NUMBER_COLUMNS, ScoreTask
from compressor.tasks.tables import Record

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.model.checkpoint import Checkpoint
    from compressor.tasks.batching import Tensors
    from compressor.tasks.encoder import Logits

# Of the largest number of a batch: numbers that differ by less count as the same.
_SAME = 0.05


class Regression(ScoreTask):
    """A number for each text or pair; the loss is half the squared error."""

    name = "regression"
    metrics = ("spearman", "pearson")
    usual_columns = NUMBER_COLUMNS
    exporter = "compressor.export.encoder_heads:RegressionGraphs"
    runtime = "compressor.runtime:Regressor"
    usage = 'print(model.predict(["First text.", "Second one."]))'
    answers = f"numbers (within {_SAME:.0%} of the largest)"

    def require(self, checkpoint: Checkpoint) -> None:
        config: Any = checkpoint.model.config
        if config.num_labels != 1 or config.problem_type not in (None, "regression"):
            raise InputError(
                f"{checkpoint.directory} has {config.num_labels} outputs (problem_type "
                f"{config.problem_type}), and regression is with one; leave --task out, or give "
                "another model",
                id="not-a-regressor",
            )
        activation_of(config)  # raises if it is unknown

    def label_reader(self, labels: LabelNames) -> Callable[[Record, str], str]:
        return number_cell

    def label_values(self, rows: Rows) -> list[float]:
        return [float(target) for target in rows.targets]

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Half the squared error, summed over the rows of the batch."""
        scores = _activated(self.scores(self.logits(model, batch)).float(), model)
        return (scores - batch["labels"].to(scores)).square().sum() / 2

    def same_answers(self, actual: Logits, expected: Logits) -> list[bool]:
        largest = abs(expected).max()
        return (abs(actual - expected)[:, 0] <= _SAME * largest).tolist()

    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        return [repr(x) for x in _activated(self.scores(logits), model).tolist()]

    def answer(
        self, runtime: Any, sources: Texts, pairs: Texts | None = None, **_: Any
    ) -> list[str]:
        return [repr(x) for x in runtime.predict(sources, pairs).tolist()]


def _activated(numbers: Tensor, model: nn.Module) -> Tensor:
    """The outputs of a cross-encoder's activation function."""
    return numbers.sigmoid() if activation_of(model.config) == SIGMOID else numbers


TASK = Regression()
