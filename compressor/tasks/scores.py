"""Tasks whose models give each row a number: regression, and reranking of texts for a query.

A model for reranking has one output, the logit of "relevant", or two classes of which the second is
"relevant"; the score is then the difference of their logits, the logit of the second's probability.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.errors import CompressWarning, InputError
from compressor.model.sentence_settings import SIGMOID, activation_of
from compressor.tasks.encoder import EncoderTask
from compressor.tasks.rows import ColumnNames, LabelNames, Rows, RowTexts, Texts
from compressor.tasks.tables import Record

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.model.checkpoint import Checkpoint
    from compressor.runtime.runtime import EncoderRuntime
    from compressor.tasks.batching import Tensors
    from compressor.tasks.encoder import Logits

# Columns of texts, or pairs of them, with a number.
NUMBER_COLUMNS = {
    "text_column": ("sentence1", "text1", "text", "sentence"),
    "text_pair_column": ("sentence2", "text2"),
    "label_column": ("score", "label", "similarity"),
}
# Of ranked rows, see `Rows.ranked`: option -> the default column, and the metrics.
RANKED_COLUMNS = {"text_column": "query", "text_pair_column": "text", "label_column": "label"}
RANKED_METRICS = ("ndcg@10", "mrr@10", "map")
# Numbers that differ by less, in shares of the largest of a batch, count as the same; so do texts
# whose probabilities of being relevant differ by less.
_SAME = 0.05


class ScoreTask(EncoderTask):
    """One number for each text or pair; distillation matches the dense model's numbers."""

    def require(self, checkpoint: Checkpoint) -> None:
        activation_of(checkpoint.model.config)  # raises if it is unknown

    def scores(self, logits: Any) -> Any:
        """The number of each row, [rows, outputs] -> [rows]; of a tensor or of an array."""
        return logits[:, 0]

    def blank_answer(self, labels: LabelNames) -> str:
        return "0"

    def predictions(self, logits: Tensor) -> Tensor:
        """The numbers, [rows, 1] float32."""
        numbers: Tensor = self.scores(logits).float()
        return numbers[:, None]

    def divergence(self, actual: Tensor, dense: Tensor) -> Tensor:
        """Half the squared difference, summed over rows."""
        return (actual - dense).square().sum() / 2

    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        return [repr(x) for x in self.scores(logits).tolist()]

    def answer(
        self, runtime: EncoderRuntime[Any], sources: Texts, pairs: Texts | None = None, **_: Any
    ) -> list[str]:
        return [repr(x) for x in self.scores(runtime.logits(sources, pairs)).tolist()]


class Regression(ScoreTask):
    """A number for each text, or for a pair that is read as one text."""

    name = "regression"
    metrics = ("spearman", "pearson")
    usual_columns = NUMBER_COLUMNS
    exporter = "compressor.export.encoder:RegressionGraphs"
    runtime = "compressor.runtime:Regressor"
    usage = 'print(model.predict(["First text.", "Second one."]))'
    answers = f"numbers (within {_SAME:.0%} of the largest)"

    def fits(self, config: Any) -> bool:
        return config.num_labels == 1 and config.problem_type in (None, "regression")

    def label_reader(self, labels: LabelNames) -> Callable[[Record, str], str]:
        return Record.number

    def label_values(self, rows: Rows) -> list[float]:
        return [float(target) for target in rows.targets]

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Half the squared error, summed over the rows of the batch."""
        scores = self._activated(self.logits(model, batch).float(), model)
        return (scores - batch["labels"].to(scores)).square().sum() / 2

    def same_answers(self, actual: Logits, expected: Logits) -> list[bool]:
        largest = abs(expected).max()
        return (abs(actual - expected)[:, 0] <= _SAME * largest).tolist()

    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        return [repr(x) for x in self._activated(logits, model).tolist()]

    def _activated(self, logits: Tensor, model: nn.Module) -> Tensor:
        """The numbers, by a cross-encoder's activation function where there is one."""
        numbers: Tensor = self.scores(logits)
        return numbers.sigmoid() if activation_of(model.config) == SIGMOID else numbers

    def answer(
        self, runtime: Any, sources: Texts, pairs: Texts | None = None, **_: Any
    ) -> list[str]:
        return [repr(x) for x in runtime.predict(sources, pairs).tolist()]


class Reranking(ScoreTask):
    """How relevant a text is to the query that it is read with."""

    name = "reranking"
    exporter = "compressor.export.encoder:RerankingGraphs"
    metrics = RANKED_METRICS
    runtime = "compressor.runtime:Reranker"
    pipeline_tag = "text-ranking"
    usage = 'print(model.rank("Which one?", ["First text.", "Second one."]))'
    usual_columns: ClassVar[Mapping[str, tuple[str, ...]]] = {
        option: (name,) for option, name in RANKED_COLUMNS.items()
    }
    answers = f"probabilities (within {_SAME})"

    def fits(self, config: Any) -> bool:
        several = config.problem_type == "multi_label_classification"
        return config.num_labels in (1, 2) and not several

    def scores(self, logits: Any) -> Any:
        from compressor.runtime.scores import relevance

        return relevance(logits)

    def read_texts(
        self, spec: str, columns: ColumnNames, labels: LabelNames, header: bool
    ) -> RowTexts:
        texts = super().read_texts(spec, RANKED_COLUMNS | dict(columns), labels, header)
        return replace(texts, ranked=True)

    def label_reader(self, labels: LabelNames) -> Callable[[Record, str], str]:
        return Record.relevance

    def label_values(self, rows: Rows) -> list[float]:
        """1 for relevant texts, whatever their grade, and 0 for others."""
        return [float(target != "0") for target in rows.targets]

    def require_answers(self, rows: Rows) -> None:
        require_queries(rows)

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Binary cross-entropy of the score in nats, summed over the rows of the batch."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        scores = self.scores(self.logits(model, batch)).float()
        labels = batch["labels"].to(scores)
        return binary_cross_entropy_with_logits(scores, labels, reduction="sum")

    def same_answers(self, actual: Logits, expected: Logits) -> list[bool]:
        from compressor.runtime.scores import probabilities

        difference = abs(probabilities(actual) - probabilities(expected))
        return (difference <= _SAME).tolist()


def require_queries(rows: Rows) -> None:
    """Check that two queries or more have a relevant text, and warn of those that have none."""
    judged, _ = rows.counted
    queries, files = len(set(rows.sources)), ", ".join(rows.files)
    problem = f"{files}: {queries - judged} of {queries} queries have no relevant text"
    if judged < 2:
        raise InputError(
            f"{problem}, and quality is a mean over the others; give rows of 2 or more",
            id="too-few-queries",
        )
    if judged < queries:
        warnings.warn(f"{problem} and are left out of the metrics", CompressWarning, stacklevel=2)


REGRESSION, RERANKING = Regression(), Reranking()
