"""Classification of texts, or pairs of texts, into one of several classes, or with several labels.

With several labels (`multilabel`) each is decided by itself: a text has those whose probability,
the sigmoid of the logit, is over 0.5. Targets and answers are then labels in the model's order with
tabs between them; in a cell of a table they are separated by `|`, and in JSON they are a list. No
label at all is an answer, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from compressor.errors import InputError, did_you_mean
from compressor.tasks.encoder import EncoderTask
from compressor.tasks.rows import LabelNames, Rows, Texts
from compressor.tasks.tables import WHOLE_NUMBER, Record, label_cell, quoted, shortened

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.model.checkpoint import Checkpoint
    from compressor.runtime import Classifier, MultiLabelClassifier
    from compressor.tasks.batching import Tensors
    from compressor.tasks.encoder import Logits

IN_CELLS, BETWEEN = "|", "\t"  # what separates several labels


class Labels:
    """The checkpoint's label names, two or more, in the order of its class ids."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        if len(self.names) < 2:
            raise InputError(
                f"the checkpoint has {len(self.names)} label; a classifier with two or more is "
                "needed",
                id="too-few-labels",
            )
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
            return label_cell
        known = Labels(labels)
        return lambda record, column: known.name_of(label_cell(record, column), record.where)


def known_labels(rows: Rows) -> list[str]:
    """The label names that rows were read with, in the order of their ids."""
    if rows.labels is None:
        raise InputError(
            f"the labels of {', '.join(rows.files)} were read without the checkpoint's label names",
            id="label-names-missing",
        )
    return rows.labels


class Classification(LabelTask):
    """Classification of texts, or pairs of texts, into one of several classes."""

    name = "classification"
    metrics = ("accuracy", "macro_f1", "mcc")
    runtime = "compressor.runtime:Classifier"
    usage = 'print(model.classify(["First text.", "Second one."]))'
    answers = "labels"
    text_learning_rate = 2e-4

    def require(self, checkpoint: Checkpoint) -> None:
        config: Any = checkpoint.model.config
        if config.num_labels < 2:
            kind, advice = "a number", "use --task regression or --task reranking"
        elif config.problem_type == "multi_label_classification":
            kind, advice = "several labels", "use --task multilabel"
        elif config.problem_type == "regression":
            kind, advice = "several numbers", "give a model with one"
        else:
            return
        raise InputError(
            f"{checkpoint.directory} answers with {kind} per text (problem_type "
            f"{config.problem_type}, {config.num_labels} labels), and classification is into one "
            f"of several labels; {advice}",
            id="classifier-unsupported",
        )

    def label_values(self, rows: Rows) -> list[int]:
        """Class ids, by the order of the labels that the rows were read with."""
        ids = {name: index for index, name in enumerate(known_labels(rows))}
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
            value = record.cells.get(column)
            if isinstance(value, list):
                parts = [Record(record.where, {column: part}) for part in value]
                cell = IN_CELLS.join(label_cell(part, column) for part in parts)
            else:
                cell = "" if value == "" else label_cell(record, column)
            if known is None:
                return cell.replace(IN_CELLS, BETWEEN)
            names = [name.strip() for name in cell.split(IN_CELLS)] if cell else []
            named = {known.name_of(name, record.where) for name in names}
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


CLASSIFICATION, MULTILABEL = Classification(), MultiLabel()
