"""What the program asks of a task, for ratings of one text column, and its metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from compressor.evaluation.metric import MeanMetric
from compressor.tasks.encoder import AnswerTask
from compressor.tasks.rows import Rows


class Rating(AnswerTask):
    """A number for each text; the loss is half the squared error."""

    name = "rating"
    metrics = ("within_one",)
    columns = ("text_column", "label_column")
    runtime = "tests.tasks.rating_task.runtime:Rater"
    usage = 'print(model.numbers(["First text.", "Second one."]))'
    answers = "numbers"

    def fits(self, config: Any) -> bool:
        return config.num_labels == 1

    def head(self, config: Any, width: int) -> tuple[tuple[int, int], ...]:
        return (width, width), (width, 1)

    def label_reader(self, labels: Sequence[str] | None) -> Callable[[Any, str], str]:
        return lambda record, column: str(float(record.cells[column]))

    def label_values(self, rows: Rows) -> list[float]:
        return [float(target) for target in rows.targets]

    def loss(self, model: Any, batch: Any) -> Any:
        logits = self.logits(model, batch)[:, 0]
        return (logits - batch["labels"].to(logits)).square().sum() / 2

    def answers_of(self, logits: Any, batch: Any, model: Any) -> list[str]:
        return [str(value) for value in logits[:, 0].tolist()]

    def same_answers(self, actual: Any, expected: Any) -> list[bool]:
        pairs = zip(actual[:, 0].tolist(), expected[:, 0].tolist(), strict=True)
        return [math.isclose(a, b, abs_tol=0.05) for a, b in pairs]

    def answer(self, runtime: Any, sources: Any, pairs: Any = None, **_: Any) -> list[str]:
        return [str(number) for number in runtime.numbers(sources)]


class Within(MeanMetric):
    """The share of answers that are within 1 of the right number."""

    name, label = "within_one", "Within one"
    definition = "within:1"

    def row_score(self, answer: str, reference: str) -> float:
        return float(abs(float(answer) - float(reference)) <= 1)


TASK = Rating()
