"""The interface of tasks: no other code depends on which task it is.

Its parts are `RowReader` in `rows` (data files and rows), `Objective` (batches, loss, teacher),
`Answerer` (answers and metrics), and `Deployment` (graphs and runtime). Tasks whose models answer
in one pass have a `Predictor`, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.errors import InputError
from compressor.model.sublayers import Kind
from compressor.options.table import import_object
from compressor.tasks.batching import BATCH_TOKENS, IGNORED, Batch, Example, group, most_tokens, pad
from compressor.tasks.rows import RowReader, Rows, Texts
from compressor.tasks.tried import FirstRuns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from compressor.model.checkpoint import Checkpoint
    from compressor.runtime.engines import Engine
    from compressor.runtime.runtime import Runtime
    from compressor.tasks.batching import Tensors

    Arrays = Mapping[str, NDArray[np.int64]]


def at_least_float32(tensor: Tensor) -> Tensor:
    """Widen numbers of half precision; float64 stays what it is."""
    return tensor if tensor.element_size() > 4 else tensor.float()


class Objective(ABC):
    """Base of a task's batches, its loss for scoring and learning, and its distillation."""

    # Whether its rows have right answers, which the loss and some methods compare the logits with.
    has_answers: ClassVar[bool] = True
    one_example_per_row: ClassVar[bool] = True  # else a long row may have several
    reads_words: ClassVar[bool] = False  # whether rows are words, which are read one by one
    # Whether distillation from text needs the dense model's answers to it (sequence-level
    # distillation), because the model reads the targets.
    learns_from_answers: ClassVar[bool] = False
    # Defaults of distillation, as measured, see docs/recovery.md; None: as without further text.
    learning_rate: ClassVar[float]
    text_learning_rate: ClassVar[float | None] = None
    muon_on_text: ClassVar[bool] = False  # whether Muon ends lower
    hidden_weight: ClassVar[float]  # of hidden states

    @abstractmethod
    def encode(self, rows: Rows, tokenizer: Any, max_source_tokens: int) -> list[Example]:
        """Encode rows, in their order, with special tokens; longer rows are cut.

        Args:
            rows: from `read_rows`.
            tokenizer: of the checkpoint.
            max_source_tokens: length of the longest input.

        Raises:
            InputError: rows or tokenizer lack what the task needs.
        """

    def source_example(self, row: int, source: tuple[int, ...], end: int) -> Example:
        """Make an example for the encoder alone.

        Args:
            row: its number.
            source: token ids.
            end: id of the token that ends a text.
        """
        return Example(row, source, (0,))

    def synthetic_example(self, row: int, sentence: Callable[[int], tuple[int, ...]]) -> Example:
        """Make an example of random tokens, for checks where no rows are given.

        Args:
            row: its number.
            sentence: makes the ids of so many tokens, and of an end token.
        """
        return self.source_example(row, sentence(2 + row % 9), 0)

    def target_tokens(self, example: Example) -> int:
        """Number of tokens of an example that a decoder reads; 0 without a decoder."""
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
        """Make batches of rows of similar length, longest first: tensors in the host's memory.

        Args:
            examples: from `encode`.
            model: that will read them.
            batch_tokens: see `batching.group`; at most `most_tokens` of the model on the device,
                and on a GPU just that.
            batch_size: rows of a batch at most.
            device: of the model.

        Returns:
            Batches with `input_ids` and `attention_mask` [batch, source] int64, and those of
            `tensors`.

        Raises:
            InputError: the model's configuration has no padding id.
        """
        lengths = [(len(example.source), self.target_tokens(example)) for example in examples]
        if batch_tokens is not None:
            most = most_tokens(model, device)
            batch_tokens = most if device.startswith("cuda") else min(batch_tokens, most)
        # What the model itself takes for padding, by which RoBERTa counts positions.
        padding = getattr(model.config, "pad_token_id", None)
        if padding is None:
            raise InputError(
                "the checkpoint's config.json has no pad_token_id; add the tokenizer's",
                id="pad-token-missing",
            )
        batches = []
        for members in group(lengths, batch_tokens, batch_size):
            chosen = [examples[index] for index in members]
            tensors = {
                "input_ids": pad([example.source for example in chosen], padding),
                "attention_mask": pad([[1] * len(example.source) for example in chosen], 0),
                **self.tensors(chosen, model),
            }
            batches.append(Batch(tensors, [example.row for example in chosen]))
        return batches

    @abstractmethod
    def tensors(self, examples: Sequence[Example], model: nn.Module) -> dict[str, Tensor]:
        """Make `labels` of a batch, and the model's inputs beside those of the source.

        Args:
            examples: of the batch.
            model: that will read them.

        Returns:
            Name -> [batch, …].
        """

    @abstractmethod
    def logits(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Run the model.

        Args:
            model: on the device of the batch.
            batch: its tensors.

        Returns:
            Logits [batch, …, outputs]: of the vocabulary or the classes.
        """

    def classes(self, batch: Tensors) -> Tensor:
        """The right classes that `loss` compares logits with, `IGNORED` where there are none.

        They have the shape of `logits` without the last dimension.
        """
        return batch["labels"]

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Compute the cross-entropy of the right classes in nats, summed over `loss_terms`.

        Args:
            model: on the device of the batch.
            batch: its tensors.

        Returns:
            A scalar.
        """
        from torch.nn.functional import cross_entropy

        logits = self.logits(model, batch).flatten(0, -2).float()  # [terms, classes]
        right = self.classes(batch).flatten()  # [terms]
        return cross_entropy(logits, right, ignore_index=IGNORED, reduction="sum")

    def predictions(self, logits: Tensor) -> Tensor:
        """Make log-probabilities of logits, float32 or wider: distillation compares them."""
        from torch.nn.functional import log_softmax

        return log_softmax(at_least_float32(logits), -1)

    def divergence(self, actual: Tensor, dense: Tensor) -> Tensor:
        """Compute KL(dense || model) in nats, summed over the terms.

        Args:
            actual: `predictions` of the model, [loss terms, outputs].
            dense: those of the dense model.
        """
        from torch.nn.functional import kl_div

        return kl_div(actual, dense, reduction="sum", log_target=True)

    def loss_terms(self, batch: Tensors) -> int:
        """Number of terms in the sum `loss`."""
        return int(self.term_mask(batch).sum())

    @abstractmethod
    def term_mask(self, batch: Tensors) -> Tensor:
        """Mark the logits that the loss uses, in their shape without the last dimension; bool."""

    @abstractmethod
    def token_mask(self, batch: Tensors, kind: Kind) -> Tensor:
        """Mark the real tokens in sublayers of a kind.

        Args:
            batch: its tensors.
            kind: of sublayer.

        Returns:
            [batch, tokens] bool.
        """


@dataclass(frozen=True)
class Timed:
    """How every model of one measurement runs its batches.

    Args:
        options: of `Runtime.compute`.
        target_tokens: that each row generates.
        description: shown after the source lengths.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    target_tokens: float = 0.0
    description: str = ""


class Answerer(ABC):
    """Base of a task's answers, which an artifact gives in the form of targets."""

    metrics: ClassVar[tuple[str, ...]]  # in `compressor.evaluation.METRICS`, the main one first
    ranked_metrics: ClassVar[tuple[str, ...]] = ()  # if the task has ranked rows and others
    counted_tokens: ClassVar[str] = "source"  # or `generated`: those of "tokens per second"
    # Sources of more words are long, and scored apart, too; None where no row is.
    long_source_words: ClassVar[int | None] = None

    @property
    def main_metric(self) -> str:
        """The metric that budgets, searches and reports go by."""
        return self.metrics[0]

    def metrics_of(self, rows: Rows) -> tuple[str, ...]:
        """The metrics of answers to some rows, the main one first."""
        return (rows.ranked and self.ranked_metrics) or self.metrics

    def answer_settings(self, rows: Rows) -> Mapping[str, Any]:
        """Further arguments of `answer` for all of some rows."""
        return {}

    @abstractmethod
    def answer(
        self, runtime: Any, sources: Texts, pairs: Texts | None = None, **settings: Any
    ) -> list[str]:
        """Answer texts with an artifact.

        Args:
            runtime: the opened artifact, of the task's own class.
            sources: texts of the rows.
            pairs: their second texts.
            settings: `num_beams`, and those of `answer_settings`.

        Returns:
            An answer for each row.
        """

    def timed(self, runtime: Any, batches: Sequence[Arrays], target_length: int | None) -> Timed:
        """Decide how all models of a measurement run their batches.

        Args:
            runtime: the reference model's artifact.
            batches: name -> [rows, longest row].
            target_length: tokens to generate, if it was set.

        Raises:
            UsageError: the model cannot generate so many tokens.
        """
        return Timed()


class Predictor(ABC):
    """Base of tasks whose models in PyTorch answer a row in one pass, in the form of targets.

    Of others a row has no right answer, or is read in parts: see `has_answers` and
    `one_example_per_row`.
    """

    @abstractmethod
    def predict(
        self, model: nn.Module, batch: Tensors, tokenizer: Any, num_beams: int | None = None
    ) -> list[str]:
        """Answer a batch with a model in PyTorch.

        Args:
            model: on the device of the batch.
            batch: its tensors.
            tokenizer: of the checkpoint.
            num_beams: None: greedy search.

        Returns:
            An answer for each line of the batch.
        """


class Deployment:
    """Base of the graphs of a task's models, and of what runs them."""

    runtime: ClassVar[str]  # `module:class` of the `compressor.runtime.Runtime` of its artifacts
    exporter: ClassVar[str]  # `module:class` of a `compressor.export.task_graphs.TaskGraphs`
    pipeline_tag: ClassVar[str]  # the task's name on model hubs
    usage: ClassVar[str]  # a line of Python that shows what an opened artifact, `model`, does
    head_on_tokens: ClassVar[bool] = False  # whether the head reads every token, not the first
    # Whether transformers' class of its checkpoints returns the logits of its graphs, so PyTorch
    # can be timed as an engine.
    plain_logits: ClassVar[bool] = True

    def head(self, config: Mapping[str, Any], width: int) -> tuple[tuple[int, int], ...]:
        """Sizes of the linear layers between a hidden state and logits.

        Args:
            config: contents of `config.json`.
            width: of the hidden state.

        Returns:
            (inputs, outputs) of each.
        """
        return ()

    @property
    def graphs(self) -> Any:
        """The `TaskGraphs` that writes and checks its graphs."""
        return import_object(self.exporter)(self)

    def engine(self, name: str) -> type[Engine]:
        """The engine of a name.

        Raises:
            UsageError: it is unknown, or does not run the task's models.
        """
        from compressor.runtime.engines import engine_for

        return engine_for(name, import_object(self.runtime).kind)

    def open(self, directory: str | Path, **options: Any) -> Runtime:
        """Open an artifact without checking its files.

        Args:
            directory: of the artifact.
            options: of `Runtime`.
        """
        return import_object(self.runtime)(directory, verify=False, **options)


class Task(RowReader, Objective, Answerer, Deployment):
    """One task, for example translation; `compressor.tasks.TASKS` has it by name.

    A subclass answers every question about it: no other code asks which task something is.
    """

    name: ClassVar[str]  # in reports, in artifacts and on the command line
    auto_class: ClassVar[str]  # of transformers, which loads its checkpoints
    first_runs: ClassVar[FirstRuns | None] = None  # which `compress inspect` suggests

    def fits(self, config: Any) -> bool:
        """Whether models of `auto_class` with this configuration have the outputs of the task."""
        return True

    def require(self, checkpoint: Checkpoint) -> None:  # most need nothing
        """Raise `InputError` if a checkpoint that `fits` has settings that are not supported."""

    def label_names(self, config: Any) -> list[str] | None:
        """Names of the classes in the order of the logits; None without classes."""
        return None
