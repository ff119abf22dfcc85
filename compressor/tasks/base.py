"""What every task answers about itself, so that nobody else asks which task it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.errors import UsageError
from compressor.model.sublayers import Kind
from compressor.options.table import opened
from compressor.tasks.batching import (
    BATCH_TOKENS,
    Batch,
    Example,
    group,
    most_tokens,
    source_tensors,
)
from compressor.tasks.rows import ColumnNames, LabelNames, Rows, RowTexts, fingerprint, first_rows
from compressor.tasks.timed import Timed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from compressor.runtime.engines.engine import Engine
    from compressor.runtime.runtime import Runtime

    Arrays = Mapping[str, NDArray[np.int64]]


class Task(ABC):
    """One task, for example translation; `compressor.tasks.TASKS` has it by name.

    Args:
        name: in reports, in artifacts and on the command line.
        auto_class: the class of transformers that loads its checkpoints.
        metrics: names of its metrics in `compressor.evaluation.METRICS`, the main one first.
        ranked_metrics: those of ranked rows, where a task has other rows as well.
        columns: the options that name the columns of its data files, as fields of a recipe.
        inputs: those of the columns that hold what the model reads.
        usual_columns: option -> names of columns that are taken where none is named.
        options: flags of other options that only some tasks have, this one among them.
        runtime: the subclass of `compressor.runtime.Runtime` for its artifacts, `module:class`.
        exporter: what writes and checks its graphs, a subclass of `TaskGraphs` in
            `compressor/export/task_graphs.py`, as `module:class`.
        pipeline_tag: what model hubs call the task.
        usage: a line of Python that shows what an opened artifact, `model`, does.
        counted_tokens: which tokens "tokens per second" counts: `source` or `generated`.
        has_answers: whether its rows have right answers, which the loss compares the logits with;
            methods that look at those are not for tasks without.
        joins_pairs: whether the model reads both texts of a pair as one; else each has its own row.
        head_on_tokens: whether the head reads every token, not the first alone.
        one_example_per_row: whether what batches hold are rows, each with an answer of its own; a
            long row may else be in several parts.
        learns_from_answers: whether distillation from text needs the dense model's answers to it,
            as examples do whose targets the model reads (sequence-level distillation).
        plain_logits: whether transformers' own class of its checkpoints returns the logits that its
            graphs do, so that PyTorch can be timed as an engine.
        learning_rate: of trained weights where none is given; measured, see docs/recovery.md.
        text_learning_rate: the same where there is further text; None: as without.
        muon_on_text: whether distillation from text ends lower by Muon, as measured.
        hidden_weight: of hidden states in distillation where none is given; measured likewise.
    """

    name: ClassVar[str]
    auto_class: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    ranked_metrics: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[tuple[str, ...]]
    inputs: ClassVar[tuple[str, ...]]
    usual_columns: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    options: ClassVar[tuple[str, ...]] = ()
    runtime: ClassVar[str]
    exporter: ClassVar[str]
    pipeline_tag: ClassVar[str]
    usage: ClassVar[str]
    counted_tokens: ClassVar[str] = "source"
    has_answers: ClassVar[bool] = True
    joins_pairs: ClassVar[bool] = True
    head_on_tokens: ClassVar[bool] = False
    one_example_per_row: ClassVar[bool] = True
    learns_from_answers: ClassVar[bool] = False
    plain_logits: ClassVar[bool] = True
    learning_rate: ClassVar[float]
    text_learning_rate: ClassVar[float | None] = None
    muon_on_text: ClassVar[bool] = False
    hidden_weight: ClassVar[float]

    @property
    def main_metric(self) -> str:
        """The metric that budgets, searches and reports go by."""
        return self.metrics[0]

    def metrics_of(self, rows: Rows) -> tuple[str, ...]:
        """The metrics of answers to some rows, the main one first."""
        return (rows.ranked and self.ranked_metrics) or self.metrics

    @property
    def flags(self) -> list[str]:
        """All options that it has and some other tasks lack, as typed."""
        return [*(flag_of(name) for name in self.columns), *self.options]

    @property
    def column_options(self) -> str:
        """The options that name columns, as typed: `--source-column and --target-column`."""
        *first, last = map(flag_of, self.columns)
        return f"{', '.join(first)} and {last}" if first else last

    def require(self, config: Any, where: Path) -> None:  # noqa: B027 # most need nothing
        """Check that the task can be done with a checkpoint of `auto_class`.

        Args:
            config: the model's configuration, from the directory `where`.

        Raises:
            InputError: it cannot.
        """

    def require_tokenizer(self, tokenizer: Any, where: Path) -> None:  # noqa: B027 # most need nothing
        """Check that the task can be done with a checkpoint's tokenizer.

        Args:
            tokenizer: from the directory `where`.

        Raises:
            InputError: it cannot.
        """

    def label_names(self, config: Any) -> list[str] | None:
        """Names of the classes in the order of the logits; None where there are no classes."""
        return None

    def head(self, config: Mapping[str, Any], width: int) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of the linear layers between a token's hidden state and logits.

        Args:
            config: contents of `config.json`.
            width: of the hidden state.
        """
        return ()

    def read_rows(
        self,
        spec: str | Path,
        *,
        labels: Sequence[str] | None = None,
        minimum: int = 1,
        limit: int | None = None,
        header: bool = True,
        progress: Callable[[int], None] = lambda rows: None,
        **columns: str | None,
    ) -> Rows:
        """Read and check the rows of a calibration or test file, which may be packed.

        They are read one at a time: in memory are those that are used, see `limit`.

        Tables (TSV, CSV) have a header row. Unless columns are named, those with the task's usual
        names are read, or the first two. A header that reads like a sentence is an error, and one
        of unusual names is told, so that a file without a header does not lose its first row.

        Args:
            spec: a .tsv, .csv or .jsonl file; of pairs of texts also `SOURCE,TARGET`, two plain
                text files with a text per line. A path that exists is one file, commas or not.
                Each may be packed (`.tsv.gz`, `.tsv.zst`).
            labels: the checkpoint's label names by class id; the labels of the file may be these
                names or class ids. Without it labels are taken as they are.
            minimum: fewer rows are an error.
            limit: use only the first so many rows; all are checked nevertheless.
            header: whether a table has a header row; without one its columns are `1`, `2`, ….
            progress: called with the number of rows that are read, of long files.
            columns: names of the columns, by option (`source_column`, `label_column`, …).

        Raises:
            UsageError: options of another task, or that do not belong together.
            InputError: a missing or malformed file, a missing column, an empty cell, an unknown
                label, too few rows; with file and line.
            EnvironmentProblem: the package that unpacks a file is not installed.
        """
        needed = max(minimum, 1)
        if limit is not None and limit < needed:
            raise UsageError(
                f"a limit of {limit} rows is below the {needed} that are needed",
                id="row-limit-too-small",
            )
        given = {name: column for name, column in columns.items() if column is not None}
        for name, column in given.items():
            if name not in self.columns:
                own = f"name columns with {self.column_options}" if self.columns else "leave it out"
                raise UsageError(
                    f"{flag_of(name)} {column} makes no sense for the task {self.name}; {own}",
                    id="option-of-another-task",
                )
        texts = self.read_texts(str(spec), given, labels, header)
        sources, pairs, targets = first_rows(texts, limit, needed, progress)
        return Rows(
            task=self.name, sources=sources, pairs=pairs, targets=targets, files=texts.files,
            sha256=fingerprint(sources, pairs, targets),
            labels=None if labels is None else list(labels), ranked=texts.ranked,
        )  # fmt: skip

    @abstractmethod
    def read_texts(
        self, spec: str, columns: ColumnNames, labels: LabelNames, header: bool
    ) -> RowTexts:
        """Open a data file, whose rows are checked as they are read.

        Arguments and errors are those of `read_rows`; `columns` has options of `self.columns`.
        """

    def require_answers(self, rows: Rows) -> None:  # noqa: B027 # all rows of most tasks have some
        """Check that quality can be measured on rows.

        Raises:
            InputError: they lack what answers are compared with.
        """

    def blank_answer(self, labels: LabelNames) -> str:
        """An answer for rows that have none, where nothing looks at it."""
        return ""

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
    def synthetic_example(self, row: int, sentence: Callable[[int], tuple[int, ...]]) -> Example:
        """An example of random tokens, for checks where no rows are given.

        Args:
            sentence: makes the ids of a sentence of so many tokens, and an end token.
        """

    def source_example(self, row: int, source: tuple[int, ...], end: int) -> Example:
        """An example of which only what the encoder computes is looked at.

        Args:
            end: id of the token that ends a text.
        """
        return Example(row, source, (0,))

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
    def logits(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """The model's logits, the last dimension being vocabulary or classes."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
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

    @property
    def graphs(self) -> Any:
        """The `TaskGraphs` that writes and checks its graphs."""
        return opened(self.exporter)(self)

    def engine(self, name: str) -> type[Engine]:
        """The engine of a name.

        Raises:
            UsageError: there is none, or it does not run this task's models.
        """
        from compressor.runtime.engines import engine_for

        return engine_for(name, opened(self.runtime).kind)

    def open(self, directory: str | Path, **options: Any) -> Runtime:
        """Open an artifact; options are those of `Runtime`, whose files are not checked."""
        runtime: Runtime = opened(self.runtime)(directory, verify=False, **options)
        return runtime

    def answer_settings(self, rows: Rows) -> Mapping[str, Any]:
        """Further arguments of `answer`, the same for all of some rows."""
        return {}

    @abstractmethod
    def answer(
        self,
        runtime: Any,
        sources: Sequence[str],
        pairs: Sequence[str] | None = None,
        num_beams: int | None = None,
    ) -> list[str]:
        """What an artifact, opened by `open`, answers to texts, as `Rows` holds targets.

        `num_beams` is for answers that are searched; None takes the model's own.
        """

    def timed(self, runtime: Any, batches: Sequence[Arrays], target_length: int | None) -> Timed:
        """How all models of a measurement run their batches, by the reference model's runtime.

        `target_length` generated tokens per row, if they were asked for.
        """
        return Timed()


def flag_of(name: str) -> str:
    """`--source-column` for `source_column`."""
    return f"--{name.replace('_', '-')}"
