"""Classification of texts, or pairs of texts, with any number of labels, each by itself.

A text has the labels whose probability, the sigmoid of the logit, is over 0.5. Targets and answers
are labels in the model's order with tabs between them; in a cell of a table they are separated by
`|`, and in JSON they are a list. No label at all is an answer, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from compressor.errors import InputError
from compressor.tasks.cells import label_cell
from compressor.tasks.encoder import Labels, LabelTask, known_labels
from compressor.tasks.rows import LabelNames, Rows, Texts
from compressor.tasks.tables import Record

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.model.checkpoint import Checkpoint
    from compressor.runtime import MultiLabelClassifier
    from compressor.tasks.batching import Tensors
    from compressor.tasks.encoder import Logits

IN_CELLS, BETWEEN = "|", "\t"


class MultiLabel(LabelTask):
    """Classification of texts, or pairs of texts, with any number of labels."""

    name = "multilabel"
    metrics = ("micro_f1", "macro_f1")
    runtime = "compressor.runtime:MultiLabelClassifier"
    usage = 'print(model.classify(["First text.", "Second one."]))'
    answers = "sets of labels"

    def require(self, checkpoint: Checkpoint) -> None:
        config: Any = checkpoint.model.config
        if config.num_labels < 2 or config.problem_type in (
            "regression",
            "single_label_classification",
        ):
            raise InputError(
                f"{checkpoint.directory} has {config.num_labels} labels (problem_type "
                f"{config.problem_type}), and is no classifier with several labels per text; leave "
                "--task out",
                id="not-multilabel",
            )
        for name in self.label_names(config):
            if IN_CELLS in name or BETWEEN in name:
                raise InputError(
                    f"the label {name!r} in id2label of {checkpoint.directory} has the sign that "
                    "stands between labels; rename it",
                    id="label-name-unusable",
                )

    def label_reader(self, labels: LabelNames) -> Callable[[Record, str], str]:
        """Names of classes in the model's order; as they are if no labels are known."""
        known = None if labels is None else Labels(labels)

        def read(record: Record, column: str) -> str:
            cell = _labels_cell(record, column)
            if known is None:
                return cell.replace(IN_CELLS, BETWEEN)
            parts = [part.strip() for part in cell.split(IN_CELLS)] if cell else []
            named = {known.name_of(part, record.where) for part in parts}
            return BETWEEN.join(name for name in known.names if name in named)

        return read

    def label_values(self, rows: Rows) -> list[tuple[float, ...]]:
        """For each row, 1 or 0 for each label, in the order that the rows were read with."""
        labels = known_labels(rows)
        names = [set(target.split(BETWEEN)) for target in rows.targets]
        return [tuple(float(name in row) for name in labels) for row in names]

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Binary cross-entropy in nats, summed over the labels and the rows of the batch."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        logits = self.logits(model, batch).float()
        return binary_cross_entropy_with_logits(logits, batch["labels"], reduction="sum")

    def predictions(self, logits: Tensor) -> Tensor:
        """The logits, float32."""
        return logits.float()

    def divergence(self, actual: Tensor, dense: Tensor) -> Tensor:
        """KL(dense || model) of each label's probability in nats, summed over labels and rows."""
        from torch.nn.functional import logsigmoid

        positive = dense.sigmoid() * (logsigmoid(dense) - logsigmoid(actual))
        negative = (-dense).sigmoid() * (logsigmoid(-dense) - logsigmoid(-actual))
        return (positive + negative).sum()

    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        """Names of the labels with a probability over 0.5."""
        names = self.label_names(model.config)
        return [
            BETWEEN.join(name for name, chosen in zip(names, row, strict=True) if chosen)
            for row in (logits > 0).tolist()
        ]

    def same_answers(self, actual: Logits, expected: Logits) -> list[bool]:
        return ((actual > 0) == (expected > 0)).all(axis=1).tolist()

    def answer(
        self, runtime: MultiLabelClassifier, sources: Texts, pairs: Texts | None = None, **_: Any
    ) -> list[str]:
        return [BETWEEN.join(labels) for labels in runtime.classify(sources, pairs)]


def _labels_cell(record: Record, column: str) -> str:
    """The labels of a cell, separated by `|`; it may be empty."""
    value = record.cells.get(column)
    if value == "":
        return ""
    if not isinstance(value, list):
        return label_cell(record, column)
    parts = [Record(record.where, {column: part}) for part in value]
    return IN_CELLS.join(label_cell(part, column) for part in parts)


TASK = MultiLabel()
