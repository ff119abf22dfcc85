"""The interface of metrics, the metrics by name, and scores of outputs for rows in them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from compressor.options.table import Table
from compressor.results import Quality
from compressor.tasks import TASKS, Rows

Array = NDArray[np.float64]
Labels = Sequence[str] | None
Texts = Sequence[str]

# Row numbers (int64) drawn at once: bounds the memory of a chunk to a few times 32 MB.
DRAWS_PER_CHUNK = 4_000_000


class Metric(ABC):
    """One number for the quality of outputs, after sacreBLEU's `Metric`.

    A subclass defines statistics of each row, and scores from the statistics of drawn rows.
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
    deals: ClassVar[int] = 1  # random orders that `uninformed` averages over
    # What to do if a score is at the floor.
    advice: ClassVar[str] = "give more rows, or a model that is good at them"
    tokenizer: str = ""  # the same for all models that are compared, see `choose_tokenizer`

    def signature(self, labels: Labels) -> str:
        """All settings that change the score; `labels` of the model is None without classes."""
        return self.definition

    @abstractmethod
    def statistics(self, systems: Sequence[Texts], references: Texts) -> list[Array]:
        """[rows, statistics] of each system's outputs; InputError for unusable outputs."""

    @abstractmethod
    def scores(self, statistics: Array, counts: Array) -> Array:
        """Scores [resamples], from the number of draws of each row, [resamples, rows]."""

    def require_package(self) -> None:  # noqa: B027 # most need nothing
        """Raise EnvironmentProblem if a package that it needs is missing."""

    def choose_tokenizer(self, references: Texts) -> tuple[str, str]:
        """A tokenizer that suits the references' script, and a sentence on why it is chosen.

        Both are empty for the metric's default.
        """
        return "", ""

    def require_tokenizer(self, name: str) -> None:  # noqa: B027 # as above
        """Raise UsageError for an unknown tokenizer, EnvironmentProblem for a missing package."""

    def uninformed(
        self, answers: Texts, references: Texts, generator: np.random.Generator
    ) -> Array:
        """Mean statistics [rows, statistics] of the model's own outputs in random orders."""
        total: Any = 0.0
        for _ in range(self.deals):
            permuted = [answers[row] for row in generator.permutation(len(answers))]
            total += self.statistics([permuted], references)[0]
        mean: Array = total / self.deals
        return mean

    def unsmoothed(self, statistics: Array, counts: Array) -> Array:
        """`scores` without smoothing."""
        return self.scores(statistics, counts)

    def score(self, statistics: Array, counts: Array) -> float:
        """The score of all rows, each occurring `counts` [rows] times."""
        return float(self.scores(statistics, counts[None])[0])

    def right(self, statistics: Array) -> NDArray[np.bool_] | None:
        """[rows]: whether the output is correct; None if the metric counts no correct rows."""
        return None


class SumMetric(Metric):
    """A score that is a function of the sums of all rows' statistics."""

    deals = 5

    @abstractmethod
    def from_sums(self, sums: Array) -> Array:
        """[resamples, statistics] -> [resamples]."""

    @override
    def scores(self, statistics: Array, counts: Array) -> Array:
        return self.from_sums(counts @ statistics)


class RowMetric(SumMetric):
    """Statistics of a row are computed from its output and its reference alone."""

    def read(self, reference: str) -> Any:
        """Parse a reference, once for all systems."""
        return reference

    @abstractmethod
    def counts(self, answer: str, reference: Any) -> Sequence[float]:
        """The statistics of a row, given its parsed reference."""

    @override
    def statistics(self, systems: Sequence[Texts], references: Texts) -> list[Array]:
        parsed = [self.read(reference) for reference in references]
        return [
            np.array([self.counts(*pair) for pair in zip(answers, parsed, strict=True)], np.float64)
            for answers in systems
        ]


class MeanMetric(RowMetric):
    """The mean score of all rows, 0-100. Statistics [rows, 2]: the row's score, and 1."""

    @abstractmethod
    def row_score(self, answer: str, reference: Any) -> float:
        """The score of an output, given its parsed reference, from 0 to 1."""

    @override
    def counts(self, answer: str, reference: Any) -> Sequence[float]:
        return self.row_score(answer, reference), 1.0

    @override
    def from_sums(self, sums: Array) -> Array:
        return 100.0 * sums[:, 0] / sums[:, 1]


def group_rows(*columns: Texts) -> tuple[list[Texts], NDArray[np.intp]]:
    """The distinct rows of some columns, column by column, and the number [rows] of each row."""
    numbers: dict[tuple[str, ...], int] = {}
    groups = [numbers.setdefault(row, len(numbers)) for row in zip(*columns, strict=True)]
    return [list(column) for column in zip(*numbers, strict=True)], np.array(groups, dtype=np.intp)


def resampled_counts(groups: NDArray[np.intp], resamples: int, seed: int) -> Iterator[Array]:
    """Number of draws of each group [rows], in chunks [resamples of the chunk, groups].

    The draws do not depend on the size of the chunks.
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
        "spearman": "compressor.evaluation.rankings:Spearman",
        "entity_f1": "compressor.evaluation.labels:EntityF1",
        "entity_precision": "compressor.evaluation.labels:EntityPrecision",
        "entity_recall": "compressor.evaluation.labels:EntityRecall",
        "token_accuracy": "compressor.evaluation.labels:TokenAccuracy",
        "micro_f1": "compressor.evaluation.labels:MicroF1",
        "pearson": "compressor.evaluation.rankings:Pearson",
        "ndcg@10": "compressor.evaluation.rankings:Ndcg",
        "mrr@10": "compressor.evaluation.rankings:ReciprocalRank",
        "map": "compressor.evaluation.rankings:AveragePrecision",
        "answer_f1": "compressor.evaluation.words:AnswerF1",
        "exact_match": "compressor.evaluation.words:ExactMatch",
        "rouge1": "compressor.evaluation.words:Rouge1",
        "rouge2": "compressor.evaluation.words:Rouge2",
        "rougelsum": "compressor.evaluation.words:RougeLsum",
    },
    id="metric-unknown",
)


def make_metric(name: str, references: Texts, tokenizers: Mapping[str, str]) -> Metric:
    """A metric with its tokenizer in `tokenizers`, or else one that suits the references."""
    metric = METRICS[name]()
    chosen = tokenizers.get(name)
    metric.tokenizer = metric.choose_tokenizer(references)[0] if chosen is None else chosen
    return metric


def with_tokenizers(
    rows: Rows,
    wanted: Mapping[str, str] | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Rows:
    """Rows with the tokenizers of their metrics, which all parts of the rows then use.

    `wanted` are those that the user named, by metric; `report` gets the reasons of the others.
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
    """All metrics of a model's outputs, or the first ones; InputError for unusable outputs."""
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
    """The main metric of a model's outputs for some rows, and its signature with its name."""
    quality = score_rows(rows, outputs, most=1)
    ((name, value),) = quality.metrics.items()
    return value, f"{name}|{quality.signatures[name]}"
