"""Quality of a model's answers, and whether a smaller model's quality really differs.

- `answers`: what an exported model answers to rows (`compressor.evaluation.answers`)
- `score_answers`: all metrics of a task
- `main_metric`: the task's main metric alone
- `compare`: paired bootstrap of the difference in each of these metrics
- `lower_bound`: how much worse the smaller model may be, as far as the rows tell
- `confidence_bounds`: how much worse or better, from a finished comparison

To add a metric, write a subclass of `Metric` and add a line to `METRICS`, or from outside this
package call `METRICS.register`.
"""

from compressor.evaluation.bounds import (
    LowerBound,
    confidence_bounds,
    lower_bound,
    rows_to_settle,
    scaled_rows,
)
from compressor.evaluation.metric import Metric, SumMetric
from compressor.evaluation.metrics import METRICS, main_metric, score_answers
from compressor.evaluation.significance import DEFAULT_RESAMPLES, DEFAULT_SEED, compare

__all__ = [
    "DEFAULT_RESAMPLES",
    "DEFAULT_SEED",
    "METRICS",
    "LowerBound",
    "Metric",
    "SumMetric",
    "compare",
    "confidence_bounds",
    "lower_bound",
    "main_metric",
    "rows_to_settle",
    "scaled_rows",
    "score_answers",
]
