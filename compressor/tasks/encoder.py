"""What tasks on texts, or pairs of texts, share whose model is an encoder with a head."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.errors import InputError, UsageError, did_you_mean
from compressor.model.architectures import architecture_of
from compressor.model.sublayers import Kind
from compressor.tasks.base import Task
from compressor.tasks.batching import Example, encode_texts, model_inputs, pad
from compressor.tasks.cells import (
    first_two_columns,
    label_cell,
    require_columns,
    text_cell,
    usual_column,
)
from compressor.tasks.rows import ColumnNames, LabelNames, Rows, RowText, RowTexts
from compressor.tasks.tables import Record, quoted, read_table, shortened

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from compressor.tasks.batching import Tensors

    Logits = NDArray[np.float32]

_CLASS_ID = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


class EncoderTask(Task):
    """One text, or a pair, with one label: a class, a number, …; `answers` names it in messages."""

    answers: ClassVar[str]
    auto_class = "AutoModelForSequenceClassification"
    columns: ClassVar[tuple[str, ...]] = ("text_column", "text_pair_column", "label_column")
    inputs = ("text_column", "text_pair_column")
    usual_columns: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "text_column": ("text", "sentence"),
        "label_column": ("label",),
    }
    options: ClassVar[tuple[str, ...]] = ("--source-text",)
    pipeline_tag = "text-classification"
    learning_rate = 5e-5
    hidden_weight = 1.0
    exporter = "compressor.export.encoder:EncoderGraphs"

    def head(self, config: Mapping[str, Any], width: int) -> tuple[tuple[int, int], ...]:
        # transformers leaves `id2label` out of config.json if it is the default, two labels.
        return (width, width), (width, len(config.get("id2label") or (0, 1)))

    def label_reader(self, labels: LabelNames) -> Callable[[Record, str], str]:
        """A function of a row and its label column that returns the target."""
        return label_cell

    def read_texts(
        self, spec: str, columns: ColumnNames, labels: LabelNames, header: bool
    ) -> RowTexts:
        """A table with a column of texts, one of labels, and maybe one of second texts."""
        table = read_table(spec, header)
        read_label = self.label_reader(labels)
        text, pair, label = (
            columns.get(option, usual_column(table, self.usual_columns.get(option, ())))
            for option in ("text_column", "text_pair_column", "label_column")
        )
        if text is None or label is None:
            what, option = ("labels", "label") if label is None else ("texts", "text")
            first, second = first_two_columns(table, "--text-column and --label-column")
            text, label = text or first, label or second
            if text == label:
                raise InputError(
                    f"{table.path}: nothing says which column holds the {what}; name it with "
                    f"--{option}-column, its columns are {quoted(table.columns)}",
                    id="column-not-named",
                )
        require_columns(table, [text, label] if pair is None else [text, label, pair])

        def row(record: Record) -> RowText:
            source = text_cell(record, text)
            second = None if pair is None else text_cell(record, pair)
            return source, second, read_label(record, label)

        return RowTexts([spec], map(row, table.records))

    @abstractmethod
    def label_values(self, rows: Rows) -> Sequence[Any]:
        """The values in `labels` of a batch for each target."""

    def encode(self, rows: Rows, tokenizer: Any, max_source_tokens: int) -> list[Example]:
        """As in `Task`; of a pair that is too long, the longer text is cut."""
        values = self.label_values(rows)
        encoded, cut = encode_texts(
            tokenizer, max_source_tokens, types=True, text=rows.sources, text_pair=rows.pairs
        )
        return [
            Example(
                row, encoded["input_ids"][row], (value,), encoded["token_type_ids"][row], cut[row]
            )
            for row, value in enumerate(values)
        ]

    def tensors(self, examples: Sequence[Example], model: nn.Module) -> dict[str, Tensor]:
        """`labels`, and `token_type_ids` [batch, tokens] if the architecture takes them."""
        tensors = {"labels": self.label_tensor(examples)}
        if "token_type_ids" in architecture_of(model).inputs:
            types = [example.types or (0,) * len(example.source) for example in examples]
            tensors["token_type_ids"] = pad(types, 0)
        return tensors

    def label_tensor(self, examples: Sequence[Example]) -> Tensor:
        """The labels of some examples, by default [batch]."""
        import torch

        return torch.tensor([example.target[0] for example in examples])

    def logits(self, model: nn.Module, batch: Tensors) -> Tensor:
        """The head's outputs, [batch, outputs]."""
        return model(**model_inputs(batch)).logits

    def loss_terms(self, batch: Tensors) -> int:
        """The number of rows."""
        return len(batch["labels"])

    def term_mask(self, batch: Tensors) -> Tensor:
        """Every row, [batch] bool."""
        import torch

        labels = batch["labels"]
        return torch.ones(len(labels), dtype=torch.bool, device=labels.device)

    def token_mask(self, batch: Tensors, kind: Kind) -> Tensor:
        return batch["attention_mask"].bool()  # the same in all sublayers of an encoder

    def predict(
        self, model: nn.Module, batch: Tensors, tokenizer: Any, num_beams: int | None = None
    ) -> list[str]:
        import torch

        if num_beams is not None:
            raise UsageError(
                f"--num-beams {num_beams} makes no sense for {self.name}; leave it out",
                id="option-of-another-task",
            )
        with torch.no_grad():
            return self.answers_of(self.logits(model, batch), batch, model)

    @abstractmethod
    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        """The answers in the logits of a batch, as targets of rows."""

    def read_logits(self, logits: Logits, attention_mask: NDArray[np.int64]) -> Logits:
        """The logits that answers are read from, [answers, outputs], of those of a padded batch."""
        return logits

    def same_answers(self, actual: Logits, expected: Logits) -> list[bool]:
        """Whether arrays of `read_logits` have the same answers, by default the largest logits."""
        return (actual.argmax(-1) == expected.argmax(-1)).tolist()


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
        self.allow_ids = not any(_CLASS_ID.fullmatch(name) for name in self.names)

    def name_of(self, cell: str, where: str) -> str:
        """The label name of a cell with a name or, unless names are numbers, a class id."""
        if cell in self.names:
            return cell
        if self.allow_ids and _CLASS_ID.fullmatch(cell) and int(cell) < len(self.names):
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
