"""What the program asks of a task, for ratings of one text column."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from compressor.errors import InputError
from compressor.tasks.encoder import EncoderTask
from compressor.tasks.rows import Rows


class Rating(EncoderTask):
    """A number for each text; the loss is half the squared error."""

    name = "rating"
    metrics = ("within_one",)
    columns = ("text_column", "label_column")
    runtime = "tests.tasks.rating_task.runtime:Rater"
    usage = 'print(model.numbers(["First text.", "Second one."]))'
    answers = "numbers"

    def require(self, checkpoint: Any) -> None:
        outputs = checkpoint.model.config.num_labels
        if outputs != 1:
            raise InputError(f"{checkpoint.name} has {outputs} outputs", id="not-a-regressor")

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

    def answer(
        self,
        runtime: Any,
        sources: Sequence[str],
        pairs: Sequence[str] | None = None,
        num_beams: int | None = None,
    ) -> list[str]:
        return [str(number) for number in runtime.numbers(sources)]


TASK = Rating()
