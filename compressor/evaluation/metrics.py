"""The metrics by name, and scores of outputs for rows in the metrics of their task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from compressor.evaluation.metric import Metric, group_rows
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
    """A metric with its tokenizer in `tokenizers`, or else one that suits the references."""
    metric = METRICS[name]()
    if name in tokenizers:
        metric.tokenizer = tokenizers[name]
    else:
        metric.tokenizer = metric.choose_tokenizer(references).name
    return metric


def with_tokenizers(
    rows: Rows,
    wanted: Mapping[str, str] | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Rows:
    """Rows with the tokenizers of their metrics, which all parts of the rows then use.

    Args:
        wanted: metric -> tokenizer that the user named.
        report: called with the reason of each choice that is not the default.
    """
    tokenizers, reasons = {}, []
    for name in metrics_of(rows):
        metric = METRICS[name]()
        if wanted and name in wanted:
            metric.require_tokenizer(wanted[name])
            tokenizers[name] = wanted[name]
        else:
            chosen = metric.choose_tokenizer(rows.references)
            tokenizers[name] = chosen.name
            reasons.append(chosen.reason)
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
    """Check that outputs for some rows can be scored; see `Metric.require_references`."""
    for name in metrics_of(rows):
        METRICS[name]().require_references(rows.references)


def score_rows(rows: Rows, answers: Sequence[str]) -> Quality:
    """All metrics of a model's outputs; raises InputError for outputs that cannot be scored."""
    return _score(metrics_for(rows), rows, answers)


def main_metric(rows: Rows, answers: Sequence[str]) -> tuple[float, str]:
    """The main metric of a model's outputs for some rows, and its signature with its name."""
    metric = metrics_for(rows)[0]
    quality = _score([metric], rows, answers)
    return quality.metrics[metric.name], f"{metric.name}|{quality.signatures[metric.name]}"


def _score(metrics: Sequence[Metric], rows: Rows, outputs: Sequence[str]) -> Quality:
    answers, references = rows.judged(outputs), rows.references
    for metric in metrics:
        metric.require(answers, references)
    (distinct, right), groups = group_rows(answers, references)
    counts = np.bincount(groups).astype(np.float64)
    values = {}
    for metric in metrics:
        (statistics,) = metric.statistics([distinct], right)
        values[metric.name] = metric.score(statistics, counts)
    signatures = {metric.name: metric.signature(rows.labels) for metric in metrics}
    return Quality(metrics=values, signatures=signatures, rows=len(references))
