"""What every task offers: how its rows are read, and what a model of it computes from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.errors import InputError, UsageError
from compressor.model.sublayers import Kind
from compressor.tasks.batching import BATCH_TOKENS, Batch, Example
from compressor.tasks.rows import Rows, RowTexts, fingerprint

if TYPE_CHECKING:
    from torch import Tensor, nn


class Task(ABC):
    """One task, for example translation; `compressor.tasks.get_task` gives it by name.

    Args:
        name: as in a checkpoint's architecture, in reports and on the command line.
        metrics: names of its quality metrics, the main one first.
        columns: names of the options that name the columns of its data files.
        generates: whether answers are generated token by token. Such a model has a decoder, a
            beam width and target lengths, and its examples have target tokens instead of a class.
        learning_rate: of trained weights where none is given; measured, see docs/recovery.md.
        hidden_weight: of hidden states in distillation where none is given; measured likewise.
    """

    name: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    columns: ClassVar[tuple[str, ...]]
    generates: ClassVar[bool]
    learning_rate: ClassVar[float]
    hidden_weight: ClassVar[float]

    @property
    def main_metric(self) -> str:
        """The metric that budgets, searches and reports go by."""
        return self.metrics[0]

    def label_names(self, config: Any) -> list[str] | None:
        """Names of the classes in the order of the logits; None where there are no classes.

        Args:
            config: the model's configuration.
        """
        return None

    def read_rows(
        self,
        spec: str,
        columns: Mapping[str, str | None],
        *,
        labels: Sequence[str] | None = None,
        minimum: int = 1,
        limit: int | None = None,
        header: bool = True,
    ) -> Rows:
        """Read and check the rows of a data file; see `compressor.tasks.read_rows`."""
        needed = max(minimum, 1)
        if limit is not None and limit < needed:
            raise UsageError(
                f"a limit of {limit} rows is below the {needed} that are needed",
                id="row-limit-too-small",
            )
        given = {name: column for name, column in columns.items() if column is not None}
        for name, column in given.items():
            if name not in self.columns:
                raise UsageError(
                    f"--{name.replace('_', '-')} {column} makes no sense for the task {self.name}; "
                    f"its columns are named with {self.column_options}",
                    id="option-of-another-task",
                )
        texts = self.read_texts(spec, given, labels, header)
        if len(texts.sources[:limit]) < needed:
            raise InputError(
                f"{', '.join(texts.files)}: too few rows, {len(texts.sources)}; the minimum is "
                f"{needed}",
                id="too-few-rows",
            )
        sources, targets = texts.sources[:limit], texts.targets[:limit]
        pairs = None if texts.pairs is None else texts.pairs[:limit]
        return Rows(
            task=self.name, sources=sources, pairs=pairs, targets=targets, files=texts.files,
            sha256=fingerprint(sources, pairs, targets),
            labels=None if labels is None else list(labels),
        )  # fmt: skip

    @property
    def column_options(self) -> str:
        """The options that name columns, as typed: `--source-column and --target-column`."""
        *first, last = (f"--{name.replace('_', '-')}" for name in self.columns)
        return f"{', '.join(first)} and {last}" if first else last

    @abstractmethod
    def read_texts(
        self,
        spec: str,
        columns: Mapping[str, str],
        labels: Sequence[str] | None = None,
        header: bool = True,
    ) -> RowTexts:
        """Read all rows of a data file, checking every cell.

        Args:
            spec: the file as the user named it.
            columns: option of `self.columns` -> name of the column, where one was given.
            labels: the checkpoint's label names by class id, if it has any and they are known.
            header: whether a table has a header row.

        Raises:
            UsageError, InputError: see `compressor.tasks.read_rows`.
        """

    @abstractmethod
    def encode(self, rows: Rows, tokenizer: Any, max_source_tokens: int) -> list[Example]:
        """Token ids of every row, in the order of `rows`, special tokens included.

        Args:
            tokenizer: the checkpoint's tokenizer.
            max_source_tokens: longer rows are cut (see `count_truncated`).

        Raises:
            InputError: rows or tokenizer lack what the task needs.
        """

    @abstractmethod
    def batches(
        self,
        examples: Sequence[Example],
        model: nn.Module,
        *,
        batch_tokens: int | None = BATCH_TOKENS,
        batch_size: int | None = None,
    ) -> list[Batch]:
        """Batches of rows of similar length, longest first: int64 tensors on the CPU.

        Args:
            model: tells the padding and which inputs it takes; it is not run.
            batch_tokens, batch_size: see `compressor.tasks.batching.group`.

        Raises:
            InputError: the model's configuration lacks the padding id.
        """

    @abstractmethod
    def logits(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """The model's logits, the last dimension being vocabulary or classes."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """The loss in nats, summed over the batch; divide by `loss_terms` for the mean.

        A sum, computed from the logits alone: what a row contributes depends neither on the rows it
        is batched with nor on a loss inside the model.
        """

    @abstractmethod
    def loss_terms(self, batch: Mapping[str, Tensor]) -> int:
        """Number of terms in the sum `loss`."""

    @abstractmethod
    def term_mask(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Which logits the loss looks at: bool, shaped as `logits` without the last dimension."""

    @abstractmethod
    def token_mask(self, batch: Mapping[str, Tensor], kind: Kind) -> Tensor:
        """Which positions in sublayers of a kind are real tokens, [batch, tokens] bool."""

    @abstractmethod
    def predict(
        self,
        model: nn.Module,
        batch: Mapping[str, Tensor],
        tokenizer: Any,
        num_beams: int | None = None,
    ) -> list[str]:
        """The model's answers, one for each line of the batch; the labels are not looked at.

        Args:
            batch: on the model's device.
            tokenizer: the checkpoint's tokenizer.
            num_beams: beam width; None is greedy search, whatever the model's settings say.
        """
