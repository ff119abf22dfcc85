"""Text classification with an encoder: texts (or pairs of texts) to batches, and the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compressor.errors import InputError, UsageError
from compressor.model.architectures import architecture_of
from compressor.model.sublayers import Kind
from compressor.tasks.base import Task
from compressor.tasks.batching import (
    BATCH_TOKENS,
    Batch,
    Example,
    encode_texts,
    group,
    model_inputs,
    pad,
    source_tensors,
)
from compressor.tasks.cells import cell_text, first_two_columns, require_columns
from compressor.tasks.labels import Labels
from compressor.tasks.rows import Rows, RowTexts
from compressor.tasks.tables import read_table

if TYPE_CHECKING:
    from torch import Tensor, nn

# Columns with these names are taken before the first two.
_TEXT_COLUMNS = ("text", "sentence")
_LABEL_COLUMN = "label"


class Classification(Task):
    """Classification of texts, or pairs of texts, into one of several classes."""

    name = "classification"
    metrics = ("accuracy", "macro_f1", "mcc")
    columns = ("text_column", "text_pair_column", "label_column")
    generates = False
    learning_rate = 5e-5
    hidden_weight = 1.0

    def label_names(self, config: Any) -> list[str]:
        return [str(config.id2label[index]) for index in range(config.num_labels)]

    def read_texts(
        self,
        spec: str,
        columns: Mapping[str, str],
        labels: Sequence[str] | None = None,
        header: bool = True,
    ) -> RowTexts:
        """As in `Task`; labels of the file are taken as they are where `labels` is None."""
        table = read_table(spec, header)
        known = None if labels is None else Labels(labels)
        usual_text = next((name for name in _TEXT_COLUMNS if name in table.columns), None)
        usual_label = _LABEL_COLUMN if _LABEL_COLUMN in table.columns else None
        text = columns.get("text_column", usual_text)
        label = columns.get("label_column", usual_label)
        pair = columns.get("text_pair_column")
        if text is None or label is None:
            first, second = first_two_columns(table, "--text-column and --label-column")
            text, label = text or first, label or second
        require_columns(table, [text, label] if pair is None else [text, label, pair])
        sources, pairs, targets = [], [], []
        for record in table.records:
            sources.append(cell_text(table, record, text))
            if pair is not None:
                pairs.append(cell_text(table, record, pair))
            value = cell_text(table, record, label, integers=True)
            where = f"{table.path}:{record.line}"
            targets.append(value if known is None else known.name_of(value, where))
        return RowTexts([spec], sources, None if pair is None else pairs, targets)

    def encode(self, rows: Rows, tokenizer: Any, max_source_tokens: int) -> list[Example]:
        """As in `Task`; of a pair that is too long, the longer text is cut.

        Args:
            rows: read with the checkpoint's `labels`, whose order gives the class ids.

        Raises:
            InputError: the rows were read without the checkpoint's labels.
        """
        if rows.labels is None:
            raise InputError(
                f"the labels of {', '.join(rows.files)} were read without the checkpoint's label "
                "names",
                id="label-names-missing",
            )
        ids = {name: index for index, name in enumerate(rows.labels)}
        encoded, cut = encode_texts(
            tokenizer, max_source_tokens, types=True, text=rows.sources, text_pair=rows.pairs
        )
        return [
            Example(
                row=row,
                source=tuple(encoded["input_ids"][row]),
                target=(ids[rows.targets[row]],),
                types=tuple(encoded["token_type_ids"][row]),
                truncated=cut[row],
            )
            for row in range(len(rows.sources))
        ]

    def batches(
        self,
        examples: Sequence[Example],
        model: nn.Module,
        *,
        batch_tokens: int | None = BATCH_TOKENS,
        batch_size: int | None = None,
    ) -> list[Batch]:
        """As in `Task`: `input_ids` and `attention_mask` [batch, tokens], `labels` [batch].

        And `token_type_ids` [batch, tokens] where the architecture takes them.
        """
        import torch

        takes_types = "token_type_ids" in architecture_of(model).inputs
        lengths = [(len(example.source),) for example in examples]
        batches = []
        for members in group(lengths, batch_tokens, batch_size):
            chosen = [examples[index] for index in members]
            tensors = source_tensors(chosen, model)
            if takes_types:
                types = [example.types or (0,) * len(example.source) for example in chosen]
                tensors["token_type_ids"] = pad(types, 0)
            tensors["labels"] = torch.tensor([example.target[0] for example in chosen])
            batches.append(Batch(tensors, [example.row for example in chosen]))
        return batches

    def logits(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Class logits, [batch, labels]."""
        return model(**model_inputs(batch)).logits

    def loss(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Cross-entropy of the right classes in nats, summed over the rows of the batch."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(self.logits(model, batch).float(), batch["labels"], reduction="sum")

    def loss_terms(self, batch: Mapping[str, Tensor]) -> int:
        """The number of rows."""
        return len(batch["labels"])

    def term_mask(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Every row, [batch] bool."""
        import torch

        return torch.ones_like(batch["labels"], dtype=torch.bool)

    def token_mask(self, batch: Mapping[str, Tensor], kind: Kind) -> Tensor:
        """As in `Task`; there are only an encoder's sublayers."""
        if kind not in ("encoder_self", "encoder_ffn"):
            raise ValueError(f"a classifier has no sublayer of kind {kind!r}")
        return batch["attention_mask"].bool()

    def predict(
        self,
        model: nn.Module,
        batch: Mapping[str, Tensor],
        tokenizer: Any,
        num_beams: int | None = None,
    ) -> list[str]:
        """Names of the most probable classes, one for each line of the batch.

        Args:
            tokenizer: not used.
            num_beams: must be None; there is nothing to search.

        Raises:
            UsageError: a beam width.
        """
        import torch

        if num_beams is not None:
            raise UsageError(
                f"--num-beams {num_beams} makes no sense for a classifier; leave it out",
                id="option-of-another-task",
            )
        names = self.label_names(model.config)
        with torch.no_grad():
            return [names[label] for label in self.logits(model, batch).argmax(-1).tolist()]
