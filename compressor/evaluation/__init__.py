"""Quality of a model's outputs, and whether the difference of two models is significant.

- `score_rows`: all metrics of a model's outputs for rows; `main_metric`: the first of them
- `with_lengths`: adds the score of long sources, and how many translations have other lengths
- `compare_rows`: the paired bootstrap of the difference of two models in each metric
- `lower_bound`, `confidence_bounds`: how much worse or better a model may be
- `rows_to_settle`: how many rows a narrower bound would need

To add a metric, write a subclass of `Metric` and add a line to `METRICS`; from outside this
package, `METRICS.register` adds one.
"""

from compressor.evaluation.bounds import confidence_bounds, lower_bound, rows_to_settle, scaled_rows
from compressor.evaluation.lengths import with_lengths
from compressor.evaluation.metric import (
    METRICS,
    main_metric,
    metrics_for,
    metrics_of,
    require_references,
    score_rows,
    with_tokenizers,
)
from compressor.evaluation.significance import DEFAULT_SEED, compare_rows, require_above_chance

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
    "with_lengths",
    "with_tokenizers",
]
