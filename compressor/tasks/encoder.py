"""Tasks on texts, or pairs of texts, whose model is an encoder with a head; classification."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from compressor.model.architectures import architecture_of
from compressor.model.sublayers import Kind
from compressor.tasks.base import Predictor, Task, at_least_float32
from compressor.tasks.batching import Example, encode_texts, model_inputs, pad
from compressor.tasks.columns import LABEL, LABELS, PAIR, TEXT, labelled
from compressor.tasks.labels import BETWEEN, Labels, several_labels
from compressor.tasks.rows import LabelNames, Pairs, Reading, Rows, RowTexts, Texts
from compressor.tasks.tables import Record, RowTable, names_alone, read_table
from compressor.tasks.tried import MINILM, FirstRuns, Tried

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from compressor.runtime import Classifier, MultiLabelClassifier
    from compressor.tasks.batching import Tensors

    Logits = NDArray[np.float32]


class EncoderTask(Task):
    """One text, or a pair, with one label: a class, a number, …; `answers` names it in messages.

    A subclass says how labels are read (`label_reader`), and what `labels` of a batch hold
    (`label_values`).
    """

    answers: ClassVar[str]
    auto_class = "AutoModelForSequenceClassification"
    columns: ClassVar[tuple[str, ...]] = ("text_column", "text_pair_column", "label_column")
    inputs = ("text_column", "text_pair_column")
    labels: ClassVar[tuple[str, ...]] = LABELS  # usual names of the column with the label
    pairs: ClassVar[Pairs] = "some"  # whether texts are read in pairs
    options: ClassVar[tuple[str, ...]] = ("--source-text",)
    pipeline_tag = "text-classification"
    learning_rate = 5e-5
    hidden_weight = 1.0
    exporter = "compressor.export.encoder:EncoderGraphs"

    @override
    def head(self, config: Mapping[str, Any], width: int) -> tuple[tuple[int, int], ...]:
        # transformers leaves `id2label` out of config.json if it is the default, two labels.
        return (width, width), (width, len(config.get("id2label") or (0, 1)))

    def label_reader(self, labels: LabelNames) -> Callable[[Record, str], str]:
        """Make the function that reads targets.

        Args:
            labels: the checkpoint's label names by class id, if it has some.

        Returns:
            A function of a row and its label column.
        """
        return Record.label

    @override
    def read_texts(self, spec: str, reading: Reading) -> RowTexts:
        """Open a table with a column of texts, one of labels, and maybe one of second texts."""
        table = read_table(spec, reading.header, reading.quoted)
        pairs = self.pairs if "text_pair_column" in self.columns else "none"
        classes = reading.labels or ()
        chosen = labelled(table, reading.columns, self.labels, pairs, classes)
        return self.rows_of(table, chosen, reading)

    def rows_of(
        self, table: RowTable, columns: Mapping[str, str | None], reading: Reading
    ) -> RowTexts:
        """The rows of a table, whose columns are those that `labelled` returns."""
        return table.texts(columns, self.label_reader(reading.labels))

    @override
    def text_columns(
        self, where: str, names: Texts, reading: Reading, *, pairs: Pairs, targets: bool = False
    ) -> list[str]:
        named = {x: name for x, name in reading.columns.items() if x in self.inputs}
        chosen = labelled(names_alone(where, names), named, self.labels, pairs, needs_label=False)
        return [name for name in (chosen[TEXT], chosen[PAIR]) if name is not None]

    @abstractmethod
    def label_values(self, rows: Rows) -> Sequence[Any]:
        """Make the values of `labels` of a batch, one for each target."""

    @override
    def encode(self, rows: Rows, tokenizer: Any, max_source_tokens: int) -> list[Example]:
        """Encode texts or pairs; of a pair that is too long, the longer text is cut."""
        values = self.label_values(rows)
        encoded, cut = encode_texts(
            tokenizer, max_source_tokens, types=True, text=rows.sources, text_pair=rows.pairs
        )
        ids, types = encoded["input_ids"], encoded["token_type_ids"]
        return [
            Example(row, ids[row], (value,), types[row], cut[row])
            for row, value in enumerate(values)
        ]

    @override
    def tensors(self, examples: Sequence[Example], model: nn.Module) -> dict[str, Tensor]:
        """Make `labels`, and `token_type_ids` [batch, tokens] if the architecture takes them."""
        tensors = {"labels": self.label_tensor(examples)}
        if "token_type_ids" in architecture_of(model).inputs:
            types = [example.types or (0,) * len(example.source) for example in examples]
            tensors["token_type_ids"] = pad(types, 0)
        return tensors

    def label_tensor(self, examples: Sequence[Example]) -> Tensor:
        """The labels of some examples, by default [batch]."""
        import torch

        return torch.tensor([example.target[0] for example in examples])

    @override
    def logits(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Compute the head's outputs, [batch, outputs]."""
        return model(**model_inputs(batch)).logits

    @override
    def loss_terms(self, batch: Tensors) -> int:
        return len(batch["labels"])

    @override
    def term_mask(self, batch: Tensors) -> Tensor:
        """Mark every row, [batch] bool."""
        return batch["attention_mask"].any(1)

    @override
    def token_mask(self, batch: Tensors, kind: Kind) -> Tensor:
        return batch["attention_mask"].bool()  # the same in all sublayers of an encoder

    def read_logits(self, logits: Logits, attention_mask: NDArray[np.int64]) -> Logits:
        """Take the logits that answers are read from, of those of a padded batch.

        Args:
            logits: [rows, outputs] or [rows, tokens, outputs].
            attention_mask: [rows, tokens] of 1 and 0.

        Returns:
            [answers, outputs].
        """
        return logits

    def same_answers(self, actual: Logits, expected: Logits) -> list[bool]:
        """Whether arrays of `read_logits` have the same answers, one by one.

        By default the answer is the class of the largest logit.
        """
        return (actual.argmax(-1) == expected.argmax(-1)).tolist()


class AnswerTask(EncoderTask, Predictor):
    """A task whose answers the logits alone have; a subclass says which (`answers_of`)."""

    @override
    def predict(
        self, model: nn.Module, batch: Tensors, tokenizer: Any, num_beams: int | None = None
    ) -> list[str]:
        import torch

        with torch.no_grad():
            return self.answers_of(self.logits(model, batch), batch, model)

    @abstractmethod
    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        """Find the answers in the logits of a batch.

        Args:
            logits: from `logits`.
            batch: its tensors.
            model: that computed them.

        Returns:
            An answer for each line of the batch, in the form of targets of rows.
        """


class LabelTask(AnswerTask):
    """Labels by the checkpoint's names."""

    first_runs = FirstRuns(
        Tried(0.5, "accuracy", -0.56, (-0.84, -0.24), MINILM, "MiniLM-L6 and CLINC150"),
        Tried(0.25, "accuracy", -0.69, (-1.04, -0.38), MINILM, "MiniLM-L6 and CLINC150"),
    )

    @override
    def label_names(self, config: Any) -> list[str]:
        return [str(config.id2label[index]) for index in range(config.num_labels)]

    @override
    def rows_of(
        self, table: RowTable, columns: Mapping[str, str | None], reading: Reading
    ) -> RowTexts:
        labels = Labels(reading.labels)
        return table.texts(columns, labels.read, labels.said)


class Classification(LabelTask):
    """Classification of texts, or pairs of texts, into one of several classes."""

    name = "classification"
    metrics = ("accuracy", "macro_f1", "mcc")
    runtime = "compressor.runtime:Classifier"
    usage = 'print(model.classify(["First text.", "Second one."]))'
    answers = "labels"
    text_learning_rate = 2e-4

    @override
    def fits(self, config: Any) -> bool:
        several = ("multi_label_classification", "regression")
        return config.num_labels > 1 and config.problem_type not in several

    @override
    def label_values(self, rows: Rows) -> list[int]:
        ids = {name: index for index, name in enumerate(rows.labels or ())}
        return [ids[target] for target in rows.targets]

    @override
    def blank_answer(self, labels: LabelNames) -> str:
        return (labels or [""])[0]

    @override
    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        names = self.label_names(model.config)
        return [names[label] for label in logits.argmax(-1).tolist()]

    @override
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

    @override
    def fits(self, config: Any) -> bool:
        one = ("single_label_classification", "regression")
        return config.num_labels > 1 and config.problem_type not in one

    @override
    def rows_of(
        self, table: RowTable, columns: Mapping[str, str | None], reading: Reading
    ) -> RowTexts:
        table, labels = several_labels(table, str(columns[LABEL]), reading.labels)
        return table.texts(columns, labels.read, labels.said)

    @override
    def label_values(self, rows: Rows) -> list[tuple[float, ...]]:
        """Make 1 or 0 for each label, for each row."""
        names = [set(target.split(BETWEEN)) for target in rows.targets]
        return [tuple(float(name in row) for name in rows.labels or ()) for row in names]

    @override
    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Compute the binary cross-entropy in nats, summed over the labels and the rows."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        logits = self.logits(model, batch).float()
        return binary_cross_entropy_with_logits(logits, batch["labels"], reduction="sum")

    @override
    def predictions(self, logits: Tensor) -> Tensor:
        return at_least_float32(logits)

    @override
    def divergence(self, actual: Tensor, dense: Tensor) -> Tensor:
        """Compute KL(dense || model) of each label's probability in nats.

        It is summed over labels and rows.
        """
        from torch.nn.functional import logsigmoid

        positive = dense.sigmoid() * (logsigmoid(dense) - logsigmoid(actual))
        negative = (-dense).sigmoid() * (logsigmoid(-dense) - logsigmoid(-actual))
        return (positive + negative).sum()

    @override
    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        names = self.label_names(model.config)
        return [
            BETWEEN.join(name for name, chosen in zip(names, row, strict=True) if chosen)
            for row in (logits > 0).tolist()
        ]

    @override
    def same_answers(self, actual: Logits, expected: Logits) -> list[bool]:
        return ((actual > 0) == (expected > 0)).all(axis=1).tolist()

    @override
    def answer(
        self, runtime: MultiLabelClassifier, sources: Texts, pairs: Texts | None = None, **_: Any
    ) -> list[str]:
        return [BETWEEN.join(labels) for labels in runtime.classify(sources, pairs)]


CLASSIFICATION, MULTILABEL = Classification(), MultiLabel()
