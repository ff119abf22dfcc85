"""Quality of a model's answers, and whether a smaller model's quality really differs.

- `answers`: what an exported model answers to rows (`compressor.evaluation.answers`)
- `score_answers`: all metrics of a task
- `score_rows`: the same of the answers to rows, in the metrics of these
- `with_tokenizers`: rows with how their metrics split texts, settled once
- `find_floor`, `require_sight`: whether a metric sees anything in a model's answers
- `require_references`: whether rows can be scored at all
- `main_metric`: the main one of them alone
- `compare`, `compare_rows`: paired bootstrap of the difference in each of these metrics
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
from compressor.evaluation.floor import Floor, find_floor, require_sight
from compressor.evaluation.metric import Metric, SumMetric
from compressor.evaluation.metrics import (
    METRICS,
    main_metric,
    make_metric,
    metrics_for,
    metrics_of,
    require_references,
    score_answers,
    score_rows,
    with_tokenizers,
)
from compressor.evaluation.significance import (
    DEFAULT_RESAMPLES,
    DEFAULT_SEED,
    compare,
    compare_rows,
)

__all__ = [
    "DEFAULT_RESAMPLES",
    "DEFAULT_SEED",
    "METRICS",
    "Floor",
    "LowerBound",
    "Metric",
    "SumMetric",
    "compare",
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
    "score_answers",
    "score_rows",
    "with_tokenizers",
]
