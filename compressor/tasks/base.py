"""The interface of tasks: no other code depends on which task it is.

Its parts are `RowReader` in `rows` (data files and rows), `Objective` (batches, loss, teacher),
`Answerer` (answers and metrics), and `Deployment` (graphs and runtime).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.errors import InputError
from compressor.model.sublayers import Kind
from compressor.options.table import opened
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


class Objective(ABC):
    """Batches of a task, the loss for scoring and learning, and what a dense model teaches."""

    # Whether its rows have right answers, which the loss and some methods compare the logits with.
    has_answers: ClassVar[bool] = True
    one_example_per_row: ClassVar[bool] = True  # else a long row may have several
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
        """Token ids of every row, in order, with special tokens; longer rows are cut."""

    def source_example(self, row: int, source: tuple[int, ...], end: int) -> Example:
        """An example for the encoder alone; `end` is the id of the token that ends a text."""
        return Example(row, source, (0,))

    def synthetic_example(self, row: int, sentence: Callable[[int], tuple[int, ...]]) -> Example:
        """An example of random tokens; `sentence` makes so many ids and an end token."""
        return self.source_example(row, sentence(2 + row % 9), 0)

    def target_tokens(self, example: Example) -> int:
        """How many tokens of an example a decoder reads; 0 without a decoder."""
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

        Each has `input_ids` and `attention_mask` [batch, source] int64, and those of `tensors`. For
        the sizes see `batching.group`; `batch_tokens` is at most `most_tokens` of the model on the
        device, and on a GPU just that. InputError if the model's configuration has no padding id.
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
        """`labels` of a batch, and the model's inputs beside those of the source."""

    @abstractmethod
    def logits(self, model: nn.Module, batch: Tensors) -> Tensor:
        """The model's logits; the last dimension is the vocabulary or the classes."""

    def classes(self, batch: Tensors) -> Tensor:
        """The right classes that `loss` compares logits with, `IGNORED` where there are none."""
        return batch["labels"]

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Cross-entropy of the right classes in nats, summed over `loss_terms`."""
        from torch.nn.functional import cross_entropy

        logits = self.logits(model, batch).flatten(0, -2).float()  # [terms, classes]
        right = self.classes(batch).flatten()  # [terms]
        return cross_entropy(logits, right, ignore_index=IGNORED, reduction="sum")

    def predictions(self, logits: Tensor) -> Tensor:
        """What distillation compares: log-probabilities, float32."""
        from torch.nn.functional import log_softmax

        return log_softmax(logits.float(), -1)

    def divergence(self, actual: Tensor, dense: Tensor) -> Tensor:
        """KL(dense || model) in nats, summed over the terms; both are [loss terms, outputs]."""
        from torch.nn.functional import kl_div

        return kl_div(actual, dense, reduction="sum", log_target=True)

    def loss_terms(self, batch: Tensors) -> int:
        """Number of terms in the sum `loss`."""
        return int(self.term_mask(batch).sum())

    @abstractmethod
    def term_mask(self, batch: Tensors) -> Tensor:
        """Which logits the loss uses: bool, shaped as `logits` without the last dimension."""

    @abstractmethod
    def token_mask(self, batch: Tensors, kind: Kind) -> Tensor:
        """Which positions in sublayers of a kind are real tokens, [batch, tokens] bool."""


@dataclass(frozen=True)
class Timed:
    """How every model of one measurement runs its batches."""

    options: Mapping[str, Any] = field(default_factory=dict)  # of `Runtime.compute`
    target_tokens: float = 0.0  # that each row generates
    description: str = ""  # shown after the source lengths


class Answerer(ABC):
    """Answers of a model, in PyTorch or as an artifact, in the form of targets of rows."""

    metrics: ClassVar[tuple[str, ...]]  # in `compressor.evaluation.METRICS`, the main one first
    ranked_metrics: ClassVar[tuple[str, ...]] = ()  # if the task has ranked rows and others
    counted_tokens: ClassVar[str] = "source"  # or `generated`: those of "tokens per second"

    @property
    def main_metric(self) -> str:
        """The metric that budgets, searches and reports go by."""
        return self.metrics[0]

    def metrics_of(self, rows: Rows) -> tuple[str, ...]:
        """The metrics of answers to some rows, the main one first."""
        return (rows.ranked and self.ranked_metrics) or self.metrics

    @abstractmethod
    def predict(
        self, model: nn.Module, batch: Tensors, tokenizer: Any, num_beams: int | None = None
    ) -> list[str]:
        """The model's answers to a batch on its device; without `num_beams` by greedy search."""

    def answer_settings(self, rows: Rows) -> Mapping[str, Any]:
        """Further arguments of `answer` for all of some rows."""
        return {}

    @abstractmethod
    def answer(
        self, runtime: Any, sources: Texts, pairs: Texts | None = None, **settings: Any
    ) -> list[str]:
        """An artifact's answers to texts; `settings` are `num_beams` and `answer_settings`."""

    def timed(self, runtime: Any, batches: Sequence[Arrays], target_length: int | None) -> Timed:
        """How all models of a measurement run their batches; `runtime` is the reference model's."""
        return Timed()


class Deployment:
    """Graphs of a task's models, and what runs them."""

    runtime: ClassVar[str]  # `module:class` of the `compressor.runtime.Runtime` of its artifacts
    exporter: ClassVar[str]  # `module:class` of a `compressor.export.task_graphs.TaskGraphs`
    pipeline_tag: ClassVar[str]  # the task's name on model hubs
    usage: ClassVar[str]  # a line of Python that shows what an opened artifact, `model`, does
    head_on_tokens: ClassVar[bool] = False  # whether the head reads every token, not the first
    # Whether transformers' class of its checkpoints returns the logits of its graphs, so PyTorch
    # can be timed as an engine.
    plain_logits: ClassVar[bool] = True

    def head(self, config: Mapping[str, Any], width: int) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of the linear layers between hidden states of a width and logits."""
        return ()

    @property
    def graphs(self) -> Any:
        """The `TaskGraphs` that writes and checks its graphs."""
        return opened(self.exporter)(self)

    def engine(self, name: str) -> type[Engine]:
        """The engine of a name; UsageError if it is unknown, or does not run the task's models."""
        from compressor.runtime.engines import engine_for

        return engine_for(name, opened(self.runtime).kind)

    def open(self, directory: str | Path, **options: Any) -> Runtime:
        """Open an artifact without checking its files; options are those of `Runtime`."""
        return opened(self.runtime)(directory, verify=False, **options)


class Task(RowReader, Objective, Answerer, Deployment):
    """One task, for example translation; `compressor.tasks.TASKS` has it by name."""

    name: ClassVar[str]  # in reports, in artifacts and on the command line
    auto_class: ClassVar[str]  # of transformers, which loads its checkpoints
    first_runs: ClassVar[FirstRuns | None] = None  # which `compress inspect` suggests

    def fits(self, config: Any) -> bool:
        """Whether the outputs of a model of `auto_class` are those of the task."""
        return True

    def require(self, checkpoint: Checkpoint) -> None:  # most need nothing
        """Raise InputError if a checkpoint that `fits` has settings that are not supported."""

    def label_names(self, config: Any) -> list[str] | None:
        """Names of the classes in the order of the logits; None without classes."""
        return None
