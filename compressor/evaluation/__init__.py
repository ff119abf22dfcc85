"""Quality of a model's outputs, and whether the difference of two models is significant.

From outside this package, `METRICS.register` adds a metric.
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
    main_metric,
    make_metric,
    metrics_for,
    metrics_of,
    require_references,
    score_rows,
    with_tokenizers,
)
from compressor.evaluation.significance import (
    DEFAULT_SEED,
    compare_rows,
    find_floor,
    require_sight,
)

__all__ = [
    "DEFAULT_SEED",
    "METRICS",
    "LowerBound",
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
