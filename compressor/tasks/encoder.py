"""What tasks on texts, or pairs of texts, share whose model is an encoder with a head."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.errors import InputError, UsageError
from compressor.model.architectures import architecture_of
from compressor.model.sublayers import Kind
from compressor.tasks.base import Task
from compressor.tasks.batching import Example, encode_texts, model_inputs, pad
from compressor.tasks.cells import cell_text, first_two_columns, require_columns, usual_column
from compressor.tasks.rows import ColumnNames, LabelNames, Rows, RowText, RowTexts
from compressor.tasks.tables import Record, RowTable, quoted, read_table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    Logits = NDArray[np.float32]


class EncoderTask(Task):
    """One text, or a pair, with one label: a class, a number, …

    Args:
        answers: what `same_answers` compares, for texts.
    """

    answers: ClassVar[str]
    usual_columns: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "text_column": ("text", "sentence"),
        "label_column": ("label",),
    }
    auto_class = "AutoModelForSequenceClassification"
    columns: ClassVar[tuple[str, ...]] = ("text_column", "text_pair_column", "label_column")
    inputs = ("text_column", "text_pair_column")
    options: ClassVar[tuple[str, ...]] = ("--source-text",)
    exporter = "compressor.export.encoder:EncoderGraphs"

    def head(self, config: Mapping[str, Any], width: int) -> tuple[tuple[int, int], ...]:
        # transformers leaves `id2label` out of config.json where it is the default, two labels.
        return (width, width), (width, len(config.get("id2label") or (0, 1)))

    def label_cell(self, table: RowTable, record: Record, column: str) -> str:
        """The text of a cell of the label column.

        Raises:
            InputError: it holds something else; with file and line.
        """
        return cell_text(table, record, column, integers=True)

    def label_reader(self, labels: LabelNames) -> Callable[[str, str], str]:
        """A function of a cell of the label column and its place that gives the target it means.

        Cells are targets as they stand, unless a task says otherwise.

        Raises:
            InputError: the labels cannot be used; from the function, the cell means none.
        """
        return lambda cell, _: cell

    @abstractmethod
    def label_values(self, rows: Rows) -> Sequence[Any]:
        """What `labels` of a batch hold for each of the targets.

        Raises:
            InputError: the rows were read without what this needs.
        """

    def read_texts(
        self, spec: str, columns: ColumnNames, labels: LabelNames, header: bool
    ) -> RowTexts:
        table = read_table(spec, header)
        read_label = self.label_reader(labels)

        def named(option: str) -> str | None:
            usual = usual_column(table, self.usual_columns.get(option, ()))
            return columns.get(option, usual)

        text, pair, label = map(named, ("text_column", "text_pair_column", "label_column"))
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
            source = cell_text(table, record, text)
            second = None if pair is None else cell_text(table, record, pair)
            value = self.label_cell(table, record, label)
            return source, second, read_label(value, f"{table.path}:{record.line}")

        return RowTexts([spec], map(row, table.records), paired=pair is not None)

    def encode(self, rows: Rows, tokenizer: Any, max_source_tokens: int) -> list[Example]:
        """As in `Task`; of a pair that is too long, the longer text is cut."""
        values = self.label_values(rows)
        encoded, cut = encode_texts(
            tokenizer, max_source_tokens, types=True, text=rows.sources, text_pair=rows.pairs
        )
        return [
            Example(
                row=row,
                source=encoded["input_ids"][row],
                target=(value,),
                types=encoded["token_type_ids"][row],
                truncated=cut[row],
            )
            for row, value in enumerate(values)
        ]

    def synthetic_example(self, row: int, sentence: Callable[[int], tuple[int, ...]]) -> Example:
        return Example(row, sentence(2 + row % 9), (0,))

    def tensors(self, examples: Sequence[Example], model: nn.Module) -> dict[str, Tensor]:
        """`labels`, and `token_type_ids` [batch, tokens] if the architecture takes them."""
        tensors = {"labels": self.label_tensor(examples)}
        if "token_type_ids" in architecture_of(model).inputs:
            types = [example.types or (0,) * len(example.source) for example in examples]
            tensors["token_type_ids"] = pad(types, 0)
        return tensors

    def label_tensor(self, examples: Sequence[Example]) -> Tensor:
        """The labels of some examples, [batch] unless a task says otherwise."""
        import torch

        return torch.tensor([example.target[0] for example in examples])

    def logits(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """The head's outputs, [batch, outputs]."""
        return model(**model_inputs(batch)).logits

    def loss_terms(self, batch: Mapping[str, Tensor]) -> int:
        """The number of rows."""
        return len(batch["labels"])

    def term_mask(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Every row, [batch] bool."""
        import torch

        labels = batch["labels"]
        return torch.ones(len(labels), dtype=torch.bool, device=labels.device)

    def token_mask(self, batch: Mapping[str, Tensor], kind: Kind) -> Tensor:
        """As in `Task`; there are only an encoder's sublayers."""
        if kind not in ("encoder_self", "encoder_ffn"):
            raise ValueError(f"a model for {self.name} has no sublayer of kind {kind!r}")
        return batch["attention_mask"].bool()

    def predict(
        self,
        model: nn.Module,
        batch: Mapping[str, Tensor],
        tokenizer: Any,
        num_beams: int | None = None,
    ) -> list[str]:
        """As in `Task`; the tokenizer is not used.

        Raises:
            UsageError: a beam width; there is nothing to search.
        """
        import torch

        if num_beams is not None:
            raise UsageError(
                f"--num-beams {num_beams} makes no sense for {self.name}; leave it out",
                id="option-of-another-task",
            )
        with torch.no_grad():
            return self.batch_answers(model, batch)

    def batch_answers(self, model: nn.Module, batch: Mapping[str, Tensor]) -> list[str]:
        """What a model answers to each line of a batch, as targets of rows."""
        return self.answers_of(self.logits(model, batch), model)

    @abstractmethod
    def answers_of(self, logits: Tensor, model: nn.Module) -> list[str]:
        """What logits [batch, outputs] answer, as targets of rows."""

    def read_logits(self, logits: Logits, attention_mask: NDArray[np.int64]) -> Logits:
        """The logits that answers are read from, [answers, outputs], of those of a padded batch."""
        return logits

    def same_answers(self, actual: Logits, expected: Logits) -> list[bool]:
        """Whether two arrays of `read_logits` answer the same, one by one.

        What has the largest logit is the answer, unless a task says otherwise.
        """
        same: list[bool] = (actual.argmax(-1) == expected.argmax(-1)).tolist()
        return same
