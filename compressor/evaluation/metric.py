"""The interface of metrics, the metrics by name, and the scores of a model's outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from compressor.options.table import Table
from compressor.steps.results import Quality
from compressor.tasks import TASKS, Rows

Array = NDArray[np.float64]
Labels = Sequence[str] | None
Texts = Sequence[str]

# Row numbers (int64) drawn at once: bounds the memory of a chunk to a few times 32 MB.
DRAWS_PER_CHUNK = 4_000_000


class Metric(ABC):
    """Base of all metrics: one number for the quality of outputs, after sacreBLEU's `Metric`.

    A subclass defines statistics of each row, and scores from the statistics of drawn rows, so that
    a bootstrap reads every output once. A metric of rows that are judged one by one needs only
    `MeanMetric.row_score`.
    """

    name: ClassVar[str]  # in reports, recipes and rules of the gate
    label: ClassVar[str]  # as are unit and digits, how scores are written
    unit: ClassVar[str] = ""
    definition: ClassVar[str] = ""  # in the signature
    digits: ClassVar[int] = 2
    has_exact_test: ClassVar[bool] = False  # whether it counts correct rows (`right`)
    counted: ClassVar[str] = "rows"  # what it is averaged over, and drawn in a bootstrap
    scale: ClassVar[float] = 100.0  # the largest possible drop: best score minus worst one
    floor_rows: ClassVar[int] = 20_000  # largest number of rows for computing the floor
    floor: ClassVar[float | None] = None  # score of uninformed outputs, if it is a constant
    random_orders: ClassVar[int] = 1  # that `uninformed` averages over
    # What to do if a score is at the floor.
    advice: ClassVar[str] = "give more rows, or a model that is good at them"
    tokenizer: str = ""  # the same for all models that are compared, see `choose_tokenizer`

    def signature(self, labels: Labels) -> str:
        """All settings that change the score, `name:value` separated by `|`.

        Args:
            labels: the model's label names; None without classes.
        """
        return self.definition

    @abstractmethod
    def statistics(self, systems: Sequence[Texts], references: Texts) -> list[Array]:
        """Count in each row what the score is computed from.

        Args:
            systems: the outputs of each model for the same rows.
            references: the correct outputs.

        Returns:
            [rows, statistics] for each model.

        Raises:
            InputError: outputs that the metric cannot use.
        """

    @abstractmethod
    def scores(self, statistics: Array, counts: Array) -> Array:
        """Scores of resampled rows.

        Args:
            statistics: [rows, statistics].
            counts: the number of draws of each row, [resamples, rows].

        Returns:
            [resamples], on the metric's scale.
        """

    def require_package(self) -> None:  # noqa: B027 # most need nothing
        """Raise EnvironmentProblem if a package that it needs is missing."""

    def choose_tokenizer(self, references: Texts) -> tuple[str, str]:
        """Choose a tokenizer that suits the references' script.

        Returns:
            Its name, and a sentence for the user on why; both empty for the metric's default.
        """
        return "", ""

    def require_tokenizer(self, name: str) -> None:  # noqa: B027 # as above
        """Check a tokenizer that the user named.

        Raises:
            UsageError: it is unknown.
            EnvironmentProblem: it needs a package that is not installed.
        """

    def uninformed(
        self, answers: Texts, references: Texts, generator: np.random.Generator
    ) -> Array:
        """Statistics of outputs that know nothing about their rows, for the floor of the metric.

        Args:
            answers: the model's outputs, which are assigned to rows in random order.
            references: the correct outputs.
            generator: of the random orders.

        Returns:
            [rows, statistics], the mean over `random_orders`.
        """
        total: Any = 0.0
        for _ in range(self.random_orders):
            permuted = [answers[row] for row in generator.permutation(len(answers))]
            total += self.statistics([permuted], references)[0]
        mean: Array = total / self.random_orders
        return mean

    def unsmoothed(self, statistics: Array, counts: Array) -> Array:
        """Scores [resamples] without smoothing, which rewards outputs that have nothing right."""
        return self.scores(statistics, counts)

    def score(self, statistics: Array, counts: Array) -> float:
        """The score of all rows, each occurring `counts` [rows] times."""
        return float(self.scores(statistics, counts[None])[0])

    def right(self, statistics: Array) -> NDArray[np.bool_] | None:
        """Whether each output is correct, [rows]; None if the metric counts no correct rows.

        With it, differences get McNemar's exact test and Tango's bounds.
        """
        return None


class SumMetric(Metric):
    """Base of the metrics whose score is a function of the sums of all rows' statistics."""

    random_orders = 5

    @abstractmethod
    def from_sums(self, sums: Array) -> Array:
        """Scores [resamples] from sums over rows, [resamples, statistics]."""

    @override
    def scores(self, statistics: Array, counts: Array) -> Array:
        return self.from_sums(counts @ statistics)


class RowMetric(SumMetric):
    """Base of the metrics whose statistics of a row need only its output and its reference."""

    def read(self, reference: str) -> Any:
        """Parse a reference, once for all systems."""
        return reference

    @abstractmethod
    def counts(self, answer: str, reference: Any) -> Sequence[float]:
        """The statistics of a row.

        Args:
            answer: the output.
            reference: as `read` has parsed it.
        """

    @override
    def statistics(self, systems: Sequence[Texts], references: Texts) -> list[Array]:
        parsed = [self.read(reference) for reference in references]
        return [
            np.array([self.counts(*pair) for pair in zip(answers, parsed, strict=True)], np.float64)
            for answers in systems
        ]


class MeanMetric(RowMetric):
    """Base of the metrics that are the mean score of all rows, 0-100.

    Statistics [rows, 2]: the row's score, and 1.
    """

    @abstractmethod
    def row_score(self, answer: str, reference: Any) -> float:
        """The score of an output, from 0 to 1.

        Args:
            answer: the output.
            reference: as `read` has parsed it.
        """

    @override
    def counts(self, answer: str, reference: Any) -> Sequence[float]:
        return self.row_score(answer, reference), 1.0

    @override
    def from_sums(self, sums: Array) -> Array:
        return 100.0 * sums[:, 0] / sums[:, 1]


def group_rows(*columns: Texts) -> tuple[list[Texts], NDArray[np.intp]]:
    """Group equal rows, so that each is counted once.

    Args:
        columns: texts of all rows, such as references and the outputs of two models.

    Returns:
        The distinct rows, column by column, and the number of each row's group, [rows].
    """
    numbers: dict[tuple[str, ...], int] = {}
    groups = [numbers.setdefault(row, len(numbers)) for row in zip(*columns, strict=True)]
    return [list(column) for column in zip(*numbers, strict=True)], np.array(groups, dtype=np.intp)


def resampled_counts(groups: NDArray[np.intp], resamples: int, seed: int) -> Iterator[Array]:
    """Draw rows with replacement, as many as there are.

    The draws do not depend on the size of the chunks. With seed 12345 they are sacreBLEU's.

    Args:
        groups: the group of each row, [rows].
        resamples: number of resamples.
        seed: of the draws.

    Yields:
        How often each group was drawn, [resamples of the chunk, groups].
    """
    rows, width = groups.size, int(groups.max()) + 1
    generator = np.random.default_rng(seed)
    size = max(1, DRAWS_PER_CHUNK // rows)
    for start in range(0, resamples, size):
        count = min(size, resamples - start)
        drawn = groups[generator.integers(rows, size=(count, rows))]  # [resamples, rows]
        drawn += np.arange(count)[:, None] * width  # each resample has its own range of numbers
        counts = np.bincount(drawn.reshape(-1), minlength=count * width)
        yield counts.reshape(count, width).astype(np.float64)


METRICS: Table[type[Metric]] = Table(
    "metric",
    {
        "bleu": "compressor.evaluation.sentences:Bleu",
        "chrf": "compressor.evaluation.sentences:Chrf",
        "accuracy": "compressor.evaluation.labels:Accuracy",
        "macro_f1": "compressor.evaluation.labels:MacroF1",
        "mcc": "compressor.evaluation.labels:Matthews",
        "spearman": "compressor.evaluation.correlations:Spearman",
        "entity_f1": "compressor.evaluation.tags:EntityF1",
        "entity_precision": "compressor.evaluation.tags:EntityPrecision",
        "entity_recall": "compressor.evaluation.tags:EntityRecall",
        "token_accuracy": "compressor.evaluation.tags:TokenAccuracy",
        "micro_f1": "compressor.evaluation.labels:MicroF1",
        "pearson": "compressor.evaluation.correlations:Pearson",
        "ndcg@10": "compressor.evaluation.rankings:Ndcg",
        "mrr@10": "compressor.evaluation.rankings:ReciprocalRank",
        "map": "compressor.evaluation.rankings:AveragePrecision",
        "answer_f1": "compressor.evaluation.spans:AnswerF1",
        "exact_match": "compressor.evaluation.spans:ExactMatch",
        "rouge1": "compressor.evaluation.summaries:Rouge1",
        "rouge2": "compressor.evaluation.summaries:Rouge2",
        "rougelsum": "compressor.evaluation.summaries:RougeLsum",
    },
    id="metric-unknown",
)


def make_metric(name: str, references: Texts, tokenizers: Mapping[str, str]) -> Metric:
    """A metric with its tokenizer in `tokenizers`, or else one that suits the references.

    Args:
        name: in `METRICS`.
        references: the correct outputs.
        tokenizers: metric -> tokenizer, for all models that are compared.

    Raises:
        UsageError: there is no such metric.
    """
    metric = METRICS[name]()
    chosen = tokenizers.get(name)
    metric.tokenizer = metric.choose_tokenizer(references)[0] if chosen is None else chosen
    return metric


def with_tokenizers(
    rows: Rows,
    wanted: Mapping[str, str] | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Rows:
    """Decide on the tokenizers of the metrics of some rows, which all parts of the rows then use.

    Args:
        rows: with all references.
        wanted: metric -> tokenizer that the user named.
        report: called with the reasons for the others.

    Returns:
        The rows, with their tokenizers.

    Raises:
        UsageError: there is no such tokenizer.
        EnvironmentProblem: it needs a package that is not installed.
    """
    tokenizers, reasons = {}, []
    for name in metrics_of(rows):
        metric = METRICS[name]()
        if wanted and name in wanted:
            metric.require_tokenizer(wanted[name])
            tokenizers[name] = wanted[name]
        else:
            tokenizers[name], reason = metric.choose_tokenizer(rows.references)
            reasons.append(reason)
    for reason in dict.fromkeys(filter(None, reasons)):
        report(reason)
    return replace(rows, tokenizers=tokenizers)


def metrics_of(rows: Rows) -> tuple[str, ...]:
    """Names of the metrics of some rows, the main one first."""
    return TASKS[rows.task].metrics_of(rows)


def metrics_for(rows: Rows) -> list[Metric]:
    """The metrics of some rows, the main one first."""
    references = rows.references
    return [make_metric(name, references, rows.tokenizers) for name in metrics_of(rows)]


def require_references(rows: Rows) -> None:
    """Raise EnvironmentProblem if a package that scores such rows is missing."""
    for name in metrics_of(rows):
        METRICS[name]().require_package()


def score_rows(rows: Rows, outputs: Texts, most: int | None = None) -> Quality:
    """Compute the metrics of a model's outputs.

    Args:
        rows: with references.
        outputs: of the model, one per row.
        most: only so many metrics, the main one first; None for all.

    Raises:
        InputError: outputs that a metric cannot use.
        EnvironmentProblem: a package that scores such rows is missing.
    """
    references, metrics = rows.references, metrics_for(rows)[:most]
    (distinct, right), groups = group_rows(rows.judged(outputs), references)
    counts = np.bincount(groups).astype(np.float64)
    values = {}
    for metric in metrics:
        (statistics,) = metric.statistics([distinct], right)
        values[metric.name] = metric.score(statistics, counts)
    signatures = {metric.name: metric.signature(rows.labels) for metric in metrics}
    return Quality(metrics=values, signatures=signatures, rows=len(references))


def main_metric(rows: Rows, outputs: Texts) -> tuple[float, str]:
    """The main metric of a model's outputs.

    Args:
        rows: with references.
        outputs: of the model, one per row.

    Returns:
        Its value, and its signature with its name.
    """
    quality = score_rows(rows, outputs, most=1)
    ((name, value),) = quality.metrics.items()
    return value, f"{name}|{quality.signatures[name]}"
