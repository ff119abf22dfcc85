"""Quality of a model's outputs, and whether the difference of two models is significant.

- `answers.answers`: an exported model's outputs for rows
- `score_rows`, `main_metric`: all metrics of the outputs for rows, or the main one
- `with_tokenizers`: rows with the tokenizers of their metrics
- `find_floor`, `require_sight`: whether a metric could show a loss
- `require_references`: whether rows can be scored
- `compare_rows`: paired bootstrap of the difference in each metric
- `lower_bound`: one-sided confidence bound of the difference, for a search
- `confidence_bounds`: both bounds, from a finished comparison

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
from compressor.evaluation.floor import Floor, find_floor, require_sight
from compressor.evaluation.metric import Metric, SumMetric
from compressor.evaluation.metrics import (
    METRICS,
    main_metric,
    make_metric,
    metrics_for,
    metrics_of,
    require_references,
    score_rows,
    with_tokenizers,
)
from compressor.evaluation.significance import DEFAULT_RESAMPLES, DEFAULT_SEED, compare_rows

__all__ = [
    "DEFAULT_RESAMPLES",
    "DEFAULT_SEED",
    "METRICS",
    "Floor",
    "LowerBound",
    "Metric",
    "SumMetric",
    "compare_rows",
    "confidence_bounds",
    "find_floor",
    "lower_bound",
    "main_metric",
    "make_metric",
    "metrics_for",
    "metrics_of",
    "require_references",
    "require_sight",
    "rows_to_settle",
    "scaled_rows",
    "score_rows",
    "with_tokenizers",
]
