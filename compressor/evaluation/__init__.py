"""Quality of a model's outputs, and whether the difference of two models is significant.

From outside this package, `METRICS.register` adds a metric.
"""

from compressor.evaluation.metric import (
    METRICS,
    main_metric,
    metrics_for,
    metrics_of,
    require_references,
    score_rows,
    with_tokenizers,
)
from compressor.evaluation.significance import (
    DEFAULT_SEED,
    compare_rows,
    confidence_bounds,
    lower_bound,
    require_above_chance,
    rows_to_settle,
    scaled_rows,
)

__all__ = [
    "DEFAULT_SEED",
    "METRICS",
    "compare_rows",
    "confidence_bounds",
    "lower_bound",
    "main_metric",
    "metrics_for",
    "metrics_of",
    "require_above_chance",
    "require_references",
    "rows_to_settle",
    "scaled_rows",
    "score_rows",
    "with_tokenizers",
]
