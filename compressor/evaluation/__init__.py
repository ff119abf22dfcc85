"""Quality of a model's outputs, and whether a smaller model's quality really differs.

- `score_translation`: BLEU and chrF with sacreBLEU's signatures
- `score_classification`: accuracy, macro F1, Matthews correlation
- `compare`: paired bootstrap of the difference in each of these metrics
"""

from compressor.evaluation.classification import score_classification
from compressor.evaluation.significance import DEFAULT_RESAMPLES, DEFAULT_SEED, compare
from compressor.evaluation.translation import score_translation

__all__ = [
    "DEFAULT_RESAMPLES",
    "DEFAULT_SEED",
    "compare",
    "score_classification",
    "score_translation",
]
