"""Classification of texts, or pairs of texts, into one of several classes, or with several labels.

With several (`multilabel`), targets and answers are labels in the model's order with tabs between
them; in a cell they are separated by `|`, in JSON a list. No label at all is an answer, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from compressor.errors import InputError, did_you_mean
from compressor.tasks.encoder import EncoderTask
from compressor.tasks.rows import LabelNames, Rows, Texts
from compressor.tasks.tables import WHOLE_NUMBER, Record, quoted, shortened

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.runtime import Classifier, MultiLabelClassifier
    from compressor.tasks.batching import Tensors
    from compressor.tasks.encoder import Logits

IN_CELLS, BETWEEN = "|", "\t"  # what separates several labels


class Labels:
    """The checkpoint's label names, in the order of its class ids."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        # With names like "1" to "5" a number is always a name: class id 1 would be "2".
        self.allow_ids = not any(WHOLE_NUMBER.fullmatch(name) for name in self.names)

    def name_of(self, cell: str, where: str) -> str:
        """The label name of a cell with a name or, unless names are numbers, a class id."""
        if cell in self.names:
            return cell
        if self.allow_ids and WHOLE_NUMBER.fullmatch(cell) and int(cell) < len(self.names):
            return self.names[int(cell)]
        raise InputError(
            f"{where}: the label {shortened(cell)!r} is not one of the checkpoint's "
            f"{len(self.names)} ({quoted(self.names, most=5)})"
            + did_you_mean(cell.strip()[:100], self.names),
            id="label-unknown",
        )


class LabelTask(EncoderTask):
    """Labels by the checkpoint's names."""

    def label_names(self, config: Any) -> list[str]:
        return [str(config.id2label[index]) for index in range(config.num_labels)]

    def label_reader(self, labels: LabelNames) -> Callable[[Record, str], str]:
        """Names of labels; cells as they are if no labels are known."""
        if labels is None:
            return Record.label
        known = Labels(labels)
        return lambda record, column: known.name_of(record.label(column), record.where)


class Classification(LabelTask):
    """Classification of texts, or pairs of texts, into one of several classes."""

    name = "classification"
    metrics = ("accuracy", "macro_f1", "mcc")
    runtime = "compressor.runtime:Classifier"
    usage = 'print(model.classify(["First text.", "Second one."]))'
    answers = "labels"
    text_learning_rate = 2e-4

    def fits(self, config: Any) -> bool:
        several = ("multi_label_classification", "regression")
        return config.num_labels > 1 and config.problem_type not in several

    def label_values(self, rows: Rows) -> list[int]:
        """Class ids, by the order of the labels that the rows were read with."""
        ids = {name: index for index, name in enumerate(rows.known_labels)}
        return [ids[target] for target in rows.targets]

    def blank_answer(self, labels: LabelNames) -> str:
        return (labels or [""])[0]

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Cross-entropy of the right classes in nats, summed over the rows of the batch."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(self.logits(model, batch).float(), batch["labels"], reduction="sum")

    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        """Names of the most probable classes."""
        names = self.label_names(model.config)
        return [names[label] for label in logits.argmax(-1).tolist()]

    def answer(
        self, runtime: Classifier, sources: Texts, pairs: Texts | None = None, **_: Any
    ) -> list[str]:
        return runtime.classify(sources, pairs)


class MultiLabel(LabelTask):
    """Any number of labels: those whose probability, the sigmoid of the logit, is over 0.5."""

    name = "multilabel"
    metrics = ("micro_f1", "macro_f1")
    runtime = "compressor.runtime:MultiLabelClassifier"
    usage = 'print(model.classify(["First text.", "Second one."]))'
    answers = "sets of labels"

    def fits(self, config: Any) -> bool:
        one = ("single_label_classification", "regression")
        return config.num_labels > 1 and config.problem_type not in one

    def label_reader(self, labels: LabelNames) -> Callable[[Record, str], str]:
        """Names of classes in the model's order; as they are if no labels are known."""
        known = None if labels is None else Labels(labels)

        def read(record: Record, column: str) -> str:
            value = record.cells.get(column)
            if isinstance(value, list):
                parts = [Record(record.where, {column: part}) for part in value]
                cell = IN_CELLS.join(part.label(column) for part in parts)
            else:
                cell = "" if value == "" else record.label(column)
            if known is None:
                return cell.replace(IN_CELLS, BETWEEN)
            names = [name.strip() for name in cell.split(IN_CELLS)] if cell else []
            named = {known.name_of(name, record.where) for name in names}
            return BETWEEN.join(name for name in known.names if name in named)

        return read

    def label_values(self, rows: Rows) -> list[tuple[float, ...]]:
        """For each row, 1 or 0 for each label, in the order that the rows were read with."""
        labels = rows.known_labels
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


CLASSIFICATION, MULTILABEL = Classification(), MultiLabel()
