"""What tasks on texts, or pairs of texts, share whose model is an encoder with a head."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.model.architectures import architecture_of
from compressor.model.sublayers import Kind
from compressor.tasks.base import Task
from compressor.tasks.batching import Example, encode_texts, model_inputs, pad
from compressor.tasks.rows import ColumnNames, LabelNames, Rows, RowTexts
from compressor.tasks.tables import Record, read_table, require_columns, two_columns, usual_column

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from compressor.tasks.batching import Tensors

    Logits = NDArray[np.float32]


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
        return Record.label

    def read_texts(
        self, spec: str, columns: ColumnNames, labels: LabelNames, header: bool
    ) -> RowTexts:
        """A table with a column of texts, one of labels, and maybe one of second texts."""
        table, usual = read_table(spec, header), self.usual_columns
        options = ("text_column", "label_column")
        text, label = two_columns(table, options, columns, usual)
        pair = columns.get("text_pair_column") or usual_column(
            table, usual.get("text_pair_column", ())
        )
        require_columns(table, [] if pair is None else [pair])
        return table.texts(text, pair, label, self.label_reader(labels))

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

        with torch.no_grad():
            return self.answers_of(self.logits(model, batch), batch, model)

    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        """The answers in the logits of a batch, as targets of rows, where those alone have them."""
        raise NotImplementedError

    def read_logits(self, logits: Logits, attention_mask: NDArray[np.int64]) -> Logits:
        """The logits that answers are read from, [answers, outputs], of those of a padded batch."""
        return logits

    def same_answers(self, actual: Logits, expected: Logits) -> list[bool]:
        """Whether arrays of `read_logits` have the same answers, by default the largest logits."""
        return (actual.argmax(-1) == expected.argmax(-1)).tolist()
