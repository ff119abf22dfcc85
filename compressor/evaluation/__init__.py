"""Quality of a model's outputs, and whether the difference of two models is significant.

To add a metric, write a subclass of `Metric` and add a line to `METRICS`, or from outside this
package call `METRICS.register`. `compressor.evaluation.answers` has an exported model's outputs.
"""

from compressor.evaluation.bounds import (
    LowerBound,
    confidence_bounds,
    lower_bound,
    rows_to_settle,
    scaled_rows,
)
from compressor.evaluation.metric import (
    METRICS,
    Metric,
    SumMetric,
    main_metric,
    make_metric,
    metrics_for,
    metrics_of,
    require_references,
    score_rows,
    with_tokenizers,
)
from compressor.evaluation.significance import (
    DEFAULT_RESAMPLES,
    DEFAULT_SEED,
    Floor,
    compare_rows,
    find_floor,
    require_sight,
)

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
