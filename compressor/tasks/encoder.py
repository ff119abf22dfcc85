"""What tasks on texts, or pairs of texts, share whose model is an encoder with a head."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.errors import UsageError
from compressor.model.architectures import architecture_of
from compressor.model.sublayers import Kind
from compressor.tasks.base import Task
from compressor.tasks.batching import Example, encode_texts, model_inputs, pad
from compressor.tasks.rows import Rows
from compressor.tasks.text_rows import TextRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    Logits = NDArray[np.float32]
    from compressor.tasks.batching import Tensors


class EncoderTask(TextRows, Task):
    """One text, or a pair, with one label: a class, a number, …

    Args:
        answers: what `same_answers` compares, for texts.
    """

    answers: ClassVar[str]
    auto_class = "AutoModelForSequenceClassification"
    pipeline_tag = "text-classification"
    learning_rate = 5e-5
    hidden_weight = 1.0
    exporter = "compressor.export.encoder:EncoderGraphs"

    def head(self, config: Mapping[str, Any], width: int) -> tuple[tuple[int, int], ...]:
        # transformers leaves `id2label` out of config.json where it is the default, two labels.
        return (width, width), (width, len(config.get("id2label") or (0, 1)))

    @abstractmethod
    def label_values(self, rows: Rows) -> Sequence[Any]:
        """What `labels` of a batch hold for each of the targets.

        Raises:
            InputError: the rows were read without what this needs.
        """

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
        """As in `Task`; there are only an encoder's sublayers."""
        return batch["attention_mask"].bool()

    def predict(
        self, model: nn.Module, batch: Tensors, tokenizer: Any, num_beams: int | None = None
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
            return self.answers_of(self.logits(model, batch), batch, model)

    @abstractmethod
    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        """What the logits of a batch answer, as targets of rows."""

    def read_logits(self, logits: Logits, attention_mask: NDArray[np.int64]) -> Logits:
        """The logits that answers are read from, [answers, outputs], of those of a padded batch."""
        return logits

    def same_answers(self, actual: Logits, expected: Logits) -> list[bool]:
        """Whether two arrays of `read_logits` answer the same, one by one.

        What has the largest logit is the answer, unless a task says otherwise.
        """
        same: list[bool] = (actual.argmax(-1) == expected.argmax(-1)).tolist()
        return same
