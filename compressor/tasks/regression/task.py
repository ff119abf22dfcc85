"""Regression: a number for a text, or for a pair of texts that is read as one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.errors import InputError
from compressor.model.cross_encoder import SIGMOID, activation_of
from compressor.tasks.cells import number_text
from compressor.tasks.rows import Rows, Texts
from compressor.tasks.scores import ScoreTask
from compressor.tasks.tables import Record, RowTable

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.tasks.batching import Tensors
    from compressor.tasks.encoder import Logits

# Of the largest number of a batch: numbers that differ by less count as the same.
_SAME = 0.05


class Regression(ScoreTask):
    """A number for each text or pair; the loss is half the squared error."""

    name = "regression"
    metrics = ("spearman", "pearson")
    usual_columns: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "text_column": ("sentence1", "text1", "text", "sentence"),
        "text_pair_column": ("sentence2", "text2"),
        "label_column": ("score", "label", "similarity"),
    }
    exporter = "compressor.export.encoder_heads:RegressionGraphs"
    runtime = "compressor.runtime:Regressor"
    usage = 'print(model.predict(["First text.", "Second one."]))'
    answers = f"numbers (within {_SAME:.0%} of the largest)"

    def require(self, config: Any, where: Path) -> None:
        """Check that the model has one output."""
        if config.num_labels != 1 or config.problem_type not in (None, "regression"):
            raise InputError(
                f"{where} has {config.num_labels} outputs (problem_type {config.problem_type}), "
                "and regression is with one; leave --task out, or give another model",
                id="not-a-regressor",
            )
        activation_of(config)  # raises if there is no such

    def label_cell(self, table: RowTable, record: Record, column: str) -> str:
        return number_text(table, record, column)

    def label_values(self, rows: Rows) -> list[float]:
        return [float(target) for target in rows.targets]

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Half the squared error, summed over the rows of the batch."""
        scores = _activated(self.scores(self.logits(model, batch)).float(), model)
        return (scores - batch["labels"].to(scores)).square().sum() / 2

    def same_answers(self, actual: Logits, expected: Logits) -> list[bool]:
        largest = abs(expected).max()
        same: list[bool] = (abs(actual - expected)[:, 0] <= _SAME * largest).tolist()
        return same

    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        return [repr(x) for x in _activated(self.scores(logits), model).tolist()]

    def answer(
        self, runtime: Any, sources: Texts, pairs: Texts | None = None, **_: Any
    ) -> list[str]:
        """The numbers."""
        return [repr(x) for x in runtime.predict(sources, pairs).tolist()]


def _activated(numbers: Tensor, model: nn.Module) -> Tensor:
    """What a cross-encoder's activation function makes of logits."""
    return numbers.sigmoid() if activation_of(model.config) == SIGMOID else numbers


TASK = Regression()
