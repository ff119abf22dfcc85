"""Reranking: a model reads a query and a text as one pair, and says how relevant the text is.

It has one output, the logit of "relevant", or two classes of which the second is "relevant"; the
score is then the difference of their logits, which is the logit of the second's probability.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.errors import InputError
from compressor.model.sentence_settings import activation_of
from compressor.tasks.rows import ColumnNames, LabelNames, Rows, RowTexts
from compressor.tasks.scores import (
    RANKED_COLUMNS,
    RANKED_METRICS,
    ScoreTask,
    relevance_cell,
    require_queries,
)
from compressor.tasks.tables import Record

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.model.checkpoint import Checkpoint
    from compressor.tasks.batching import Tensors
    from compressor.tasks.encoder import Logits

_SAME = 0.05  # of a probability: texts whose relevance differs by less count as the same


class Reranking(ScoreTask):
    """How relevant a text is to the query that it is read with."""

    name = "reranking"
    exporter = "compressor.export.encoder_heads:RerankingGraphs"
    metrics = RANKED_METRICS
    runtime = "compressor.runtime:Reranker"
    pipeline_tag = "text-ranking"
    usage = 'print(model.rank("Which one?", ["First text.", "Second one."]))'
    usual_columns: ClassVar[Mapping[str, tuple[str, ...]]] = {
        option: (name,) for option, name in RANKED_COLUMNS.items()
    }
    answers = f"probabilities (within {_SAME})"

    def require(self, checkpoint: Checkpoint) -> None:
        config: Any = checkpoint.model.config
        several = config.problem_type == "multi_label_classification"
        if config.num_labels not in (1, 2) or several:
            raise InputError(
                f"{checkpoint.directory} has {config.num_labels} outputs (problem_type "
                f"{config.problem_type}), and reranking needs one, or two classes of which the "
                "second is relevant; leave --task out, or give another model",
                id="not-a-reranker",
            )
        activation_of(config)  # raises if it is unknown

    def scores(self, logits: Any) -> Any:
        from compressor.runtime.reranker import relevance

        return relevance(logits)

    def read_texts(
        self, spec: str, columns: ColumnNames, labels: LabelNames, header: bool
    ) -> RowTexts:
        texts = super().read_texts(spec, RANKED_COLUMNS | dict(columns), labels, header)
        return replace(texts, ranked=True)

    def label_reader(self, labels: LabelNames) -> Callable[[Record, str], str]:
        return relevance_cell

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
        from compressor.runtime.reranker import probabilities

        difference = abs(probabilities(actual) - probabilities(expected))
        return (difference <= _SAME).tolist()


TASK = Reranking()
