"""What a task knows about its model: what it reads, its loss, and what a dense model teaches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.model.sublayers import Kind
from compressor.tasks.batching import (
    BATCH_TOKENS,
    Batch,
    Example,
    group,
    most_tokens,
    source_tensors,
)
from compressor.tasks.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.tasks.batching import Tensors


class Objective(ABC):
    """Batches of a task, and the loss that scores and learning go by.

    Args:
        has_answers: whether its rows have right answers, which the loss compares the logits with;
            methods that look at those are not for tasks without.
        one_example_per_row: whether what batches hold are rows, each with an answer of its own; a
            long row may else be in several parts.
        learns_from_answers: whether distillation from text needs the dense model's answers to it,
            as examples do whose targets the model reads (sequence-level distillation).
        learning_rate: of trained weights where none is given; measured, see docs/recovery.md.
        text_learning_rate: the same where there is further text; None: as without.
        muon_on_text: whether distillation from text ends lower by Muon, as measured.
        hidden_weight: of hidden states in distillation where none is given; measured likewise.
    """

    has_answers: ClassVar[bool] = True
    one_example_per_row: ClassVar[bool] = True
    learns_from_answers: ClassVar[bool] = False
    learning_rate: ClassVar[float]
    text_learning_rate: ClassVar[float | None] = None
    muon_on_text: ClassVar[bool] = False
    hidden_weight: ClassVar[float]

    @abstractmethod
    def encode(self, rows: Rows, tokenizer: Any, max_source_tokens: int) -> list[Example]:
        """Token ids of every row, in the order of `rows`, special tokens included.

        Args:
            tokenizer: the checkpoint's tokenizer.
            max_source_tokens: longer rows are cut (see `count_truncated`).

        Raises:
            InputError: rows or tokenizer lack what the task needs.
        """

    def source_example(self, row: int, source: tuple[int, ...], end: int) -> Example:
        """An example of which only what the encoder computes is looked at.

        Args:
            end: id of the token that ends a text.
        """
        return Example(row, source, (0,))

    def synthetic_example(self, row: int, sentence: Callable[[int], tuple[int, ...]]) -> Example:
        """An example of random tokens, for checks where no rows are given.

        Args:
            sentence: makes the ids of a sentence of so many tokens, and an end token.
        """
        return self.source_example(row, sentence(2 + row % 9), 0)

    def target_tokens(self, example: Example) -> int:
        """How many tokens a decoder reads of an example; 0 without one."""
        return 0

    def batches(
        self,
        examples: Sequence[Example],
        model: nn.Module,
        *,
        batch_tokens: int | None = BATCH_TOKENS,
        batch_size: int | None = None,
        device: str = "cpu",
    ) -> list[Batch]:
        """Batches of rows of similar length, longest first: tensors in the host's memory.

        Each has `input_ids` and `attention_mask` [batch, source], and what `tensors` makes.

        Args:
            model: tells the padding and which inputs it takes; it is not run.
            batch_tokens, batch_size: see `compressor.tasks.batching.group`. Any limit of tokens is
                `most_tokens` of the model at most.
            device: where the model will run them; on a GPU `batch_tokens` is as large as that.

        Raises:
            InputError: the model's configuration lacks the padding id.
        """
        lengths = [(len(example.source), self.target_tokens(example)) for example in examples]
        if batch_tokens is not None:
            most = most_tokens(model, device)
            batch_tokens = most if device.startswith("cuda") else min(batch_tokens, most)
        batches = []
        for members in group(lengths, batch_tokens, batch_size):
            chosen = [examples[index] for index in members]
            tensors = source_tensors(chosen, model) | self.tensors(chosen, model)
            batches.append(Batch(tensors, [example.row for example in chosen]))
        return batches

    @abstractmethod
    def tensors(self, examples: Sequence[Example], model: nn.Module) -> dict[str, Tensor]:
        """`labels` of a batch, and inputs of the model beside those of the source."""

    @abstractmethod
    def logits(self, model: nn.Module, batch: Tensors) -> Tensor:
        """The model's logits, the last dimension being vocabulary or classes."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """The loss in nats, summed over the batch; divide by `loss_terms` for the mean.

        A sum, computed from the logits alone: what a row contributes depends neither on the rows it
        is batched with nor on a loss inside the model.
        """

    def predictions(self, logits: Tensor) -> Tensor:
        """What a model is to have in common with the dense one: log-probabilities, float32."""
        from torch.nn.functional import log_softmax

        return log_softmax(logits.float(), -1)

    def divergence(self, found: Tensor, wanted: Tensor) -> Tensor:
        """How far a model's predictions are from the dense one's, summed over the loss's terms.

        KL(dense || model) in nats, unless a task says otherwise.

        Args:
            found, wanted: `predictions` of both models, [loss terms, vocabulary or outputs].
        """
        from torch.nn.functional import kl_div

        return kl_div(found, wanted, reduction="sum", log_target=True)

    @abstractmethod
    def loss_terms(self, batch: Tensors) -> int:
        """Number of terms in the sum `loss`."""

    @abstractmethod
    def term_mask(self, batch: Tensors) -> Tensor:
        """Which logits the loss looks at: bool, shaped as `logits` without the last dimension."""

    @abstractmethod
    def token_mask(self, batch: Tensors, kind: Kind) -> Tensor:
        """Which positions in sublayers of a kind are real tokens, [batch, tokens] bool."""
