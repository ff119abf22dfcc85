"""Classification of texts, or pairs of texts, with any number of labels, each by itself.

A label is given where its probability, the sigmoid of its logit, is over 0.5. Targets and answers
are labels in the model's order with tabs between them; in a cell of a table they stand with `|`
between them, and in JSON they are a list. No label at all is an answer, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.errors import InputError
from compressor.tasks.cells import cell_text
from compressor.tasks.labels import Labels, LabelTask, known_labels
from compressor.tasks.rows import LabelNames, Rows, Texts
from compressor.tasks.tables import Record, RowTable

if TYPE_CHECKING:
    from torch import Tensor, nn

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

    def require(self, config: Any, where: Path) -> None:
        """Check that the model has several labels, whose names cells can hold."""
        if config.num_labels < 2 or config.problem_type in (
            "regression",
            "single_label_classification",
        ):
            raise InputError(
                f"{where} has {config.num_labels} labels (problem_type {config.problem_type}), and "
                "is no classifier with several labels per text; leave --task out",
                id="not-multilabel",
            )
        for name in self.label_names(config):
            if IN_CELLS in name or BETWEEN in name:
                raise InputError(
                    f"the label {name!r} in id2label of {where} has the sign that stands between "
                    "labels; rename it",
                    id="label-name-unusable",
                )

    def label_cell(self, table: RowTable, record: Record, column: str) -> str:
        """The labels of a cell, with `|` between them; it may be empty."""
        value = record.cells.get(column)
        if value == "":
            return ""
        if not isinstance(value, list):
            return cell_text(table, record, column, integers=True)
        parts = [Record(record.line, {column: part}) for part in value]
        return IN_CELLS.join(cell_text(table, part, column, integers=True) for part in parts)

    def label_reader(self, labels: LabelNames) -> Callable[[str, str], str]:
        """Names of classes in the model's order; as they stand where no labels are known."""
        if labels is None:
            return lambda cell, _: cell.replace(IN_CELLS, BETWEEN)
        known = Labels(labels)

        def read(cell: str, where: str) -> str:
            parts = [part.strip() for part in cell.split(IN_CELLS)] if cell else []
            named = {known.name_of(part, where) for part in parts}
            return BETWEEN.join(name for name in known.names if name in named)

        return read

    def label_values(self, rows: Rows) -> Any:
        """For each row, 1 or 0 for each label, in the order that the rows were read with."""
        labels = known_labels(rows)
        given = [set(target.split(BETWEEN)) for target in rows.targets]
        return [tuple(float(name in names) for name in labels) for names in given]

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Binary cross-entropy in nats, summed over the labels and the rows of the batch."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        logits = self.logits(model, batch).float()
        return binary_cross_entropy_with_logits(logits, batch["labels"], reduction="sum")

    def predictions(self, logits: Tensor) -> Tensor:
        """The logits, float32."""
        return logits.float()

    def divergence(self, found: Tensor, wanted: Tensor) -> Tensor:
        """KL(dense || model) of each label's probability in nats, summed over labels and rows."""
        from torch.nn.functional import logsigmoid

        given = wanted.sigmoid() * (logsigmoid(wanted) - logsigmoid(found))
        left_out = (-wanted).sigmoid() * (logsigmoid(-wanted) - logsigmoid(-found))
        return (given + left_out).sum()

    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        """Names of the labels with a probability over 0.5."""
        names = self.label_names(model.config)
        rows = (logits > 0).tolist()
        return [
            BETWEEN.join(name for name, given in zip(names, row, strict=True) if given)
            for row in rows
        ]

    def same_answers(self, actual: Logits, expected: Logits) -> list[bool]:
        same: list[bool] = ((actual > 0) == (expected > 0)).all(axis=1).tolist()
        return same

    def answer(
        self, runtime: MultiLabelClassifier, sources: Texts, pairs: Texts | None = None, **_: Any
    ) -> list[str]:
        """Names of the labels with a probability over 0.5."""
        return [BETWEEN.join(labels) for labels in runtime.classify(sources, pairs)]


TASK = MultiLabel()
