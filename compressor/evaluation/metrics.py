"""The metrics by name, and how answers to a task are scored with those of the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from compressor.evaluation.metric import Labels, Metric, check_lengths, group_rows
from compressor.options.table import Table
from compressor.results import Quality
from compressor.tasks import TASKS, Rows

METRICS: Table[type[Metric]] = Table(
    "metric",
    {
        "bleu": "compressor.evaluation.sentences:Bleu",
        "chrf": "compressor.evaluation.sentences:Chrf",
        "accuracy": "compressor.evaluation.labels:Accuracy",
        "macro_f1": "compressor.evaluation.labels:MacroF1",
        "mcc": "compressor.evaluation.labels:Matthews",
        "spearman": "compressor.evaluation.ranks:Spearman",
        "entity_f1": "compressor.evaluation.tags:EntityF1",
        "entity_precision": "compressor.evaluation.tags:EntityPrecision",
        "entity_recall": "compressor.evaluation.tags:EntityRecall",
        "token_accuracy": "compressor.evaluation.tags:TokenAccuracy",
        "micro_f1": "compressor.evaluation.labels:MicroF1",
        "pearson": "compressor.evaluation.ranks:Pearson",
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


def make_metric(name: str, references: Sequence[str], tokenizers: Mapping[str, str]) -> Metric:
    """A metric, with the tokenizer that it has to have, or else the one for the references.

    Args:
        tokenizers: metric -> name.
    """
    metric = METRICS[name]()
    if name in tokenizers:
        metric.tokenizer = tokenizers[name]
    else:
        metric.tokenizer = metric.choose_tokenizer(references).name
    return metric


def with_tokenizers(
    rows: Rows,
    wanted: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Rows:
    """Rows that say how their metrics split texts, so that all parts of them are split alike.

    Args:
        wanted: metric -> tokenizer that was asked for.
        tell: hears of each that is not the usual one.

    Raises:
        UsageError, EnvironmentProblem: see `Metric.require_tokenizer`.
    """
    settled = {}
    said: dict[str, None] = {}
    for name in metrics_of(rows):
        metric = METRICS[name]()
        if wanted and name in wanted:
            metric.require_tokenizer(wanted[name])
            settled[name] = wanted[name]
            continue
        chosen = metric.choose_tokenizer(rows.references)
        settled[name] = chosen.name
        if chosen.reason:
            said[chosen.reason] = None
    for reason in said:
        tell(reason)
    return replace(rows, tokenizers=settled)


def metrics_of_task(
    task: str, references: Sequence[str], tokenizers: Mapping[str, str] | None
) -> list[Metric]:
    """All metrics of a task for answers to rows that are known by their references alone.

    Args:
        tokenizers: metric -> tokenizer that was asked for.

    Raises:
        UsageError: an unknown task, or see `Metric.require_tokenizer`, as for EnvironmentProblem.
    """
    asked = tokenizers or {}
    for name, tokenizer in asked.items():
        METRICS[name]().require_tokenizer(tokenizer)
    return [make_metric(name, references, asked) for name in TASKS[task].metrics]


def score_answers(
    task: str,
    answers: Sequence[str],
    references: Sequence[str],
    labels: Labels,
    tokenizers: Mapping[str, str] | None = None,
) -> Quality:
    """All metrics of a task.

    Args:
        answers: of the model: translations, or label names.
        references: reference translations, or the right label names, in the same order.
        labels: all label names the model knows; None where the task has no classes.
        tokenizers: metric -> what splits texts for it, where not the one for the references.

    Raises:
        UsageError: an unknown task.
        InputError: no rows, another number of answers than references, or an unknown label.
    """
    metrics = metrics_of_task(task, references, tokenizers)
    return _score(metrics, answers, references, labels)


def metrics_of(rows: Rows) -> tuple[str, ...]:
    """Names of the metrics of answers to some rows, the main one first."""
    return TASKS[rows.task].metrics_of(rows)


def metrics_for(rows: Rows) -> list[Metric]:
    """The metrics of answers to some rows, the main one first."""
    references = rows.references
    return [make_metric(name, references, rows.tokenizers) for name in metrics_of(rows)]


def require_references(rows: Rows) -> None:
    """Check that answers to some rows can be scored, before there are any.

    Raises:
        InputError: a metric cannot be computed with their references.
        EnvironmentProblem: it needs a package that is not installed.
    """
    for name in metrics_of(rows):
        METRICS[name]().require_references(rows.references)


def score_rows(rows: Rows, answers: Sequence[str]) -> Quality:
    """All metrics of the answers to some rows, which were read with the labels; see above."""
    return _score(metrics_for(rows), rows.judged(answers), rows.references, rows.labels)


def main_metric(rows: Rows, answers: Sequence[str]) -> tuple[float, str]:
    """The main metric of the answers to some rows, and its signature with its name."""
    metric = metrics_for(rows)[0]
    quality = _score([metric], rows.judged(answers), rows.references, rows.labels)
    return quality.metrics[metric.name], f"{metric.name}|{quality.signatures[metric.name]}"


def _score(
    metrics: Sequence[Metric], answers: Sequence[str], references: Sequence[str], labels: Labels
) -> Quality:
    check_lengths(answers, references)
    for metric in metrics:
        metric.require(answers, references, labels)
    (distinct, right), groups = group_rows(answers, references)
    counts = np.bincount(groups).astype(np.float64)
    values = {}
    for metric in metrics:
        (statistics,) = metric.statistics([distinct], right, labels)
        values[metric.name] = metric.score(statistics, counts)
    signatures = {metric.name: metric.signature(labels) for metric in metrics}
    return Quality(metrics=values, signatures=signatures, rows=len(references))
