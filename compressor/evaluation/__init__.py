"""Quality of a model's outputs, and whether a smaller model's quality really differs.

- `score_answers`: the metrics of a task, by the task's name
- `score_translation`: BLEU and chrF with sacreBLEU's signatures
- `score_classification`: accuracy, macro F1, Matthews correlation
- `compare`: paired bootstrap of the difference in each of these metrics
"""

from collections.abc import Callable, Sequence

from compressor.evaluation.classification import score_classification
from compressor.evaluation.significance import DEFAULT_RESAMPLES, DEFAULT_SEED, compare
from compressor.evaluation.translation import score_translation
from compressor.results import Quality

__all__ = [
    "DEFAULT_RESAMPLES",
    "DEFAULT_SEED",
    "compare",
    "score_answers",
    "score_classification",
    "score_translation",
]


def score_answers(
    task: str, answers: Sequence[str], references: Sequence[str], labels: Sequence[str] | None
) -> Quality:
    """All metrics of a task; `labels` are the checkpoint's label names where it has classes."""
    return _SCORERS[task](answers, references, labels)


_SCORERS: dict[str, Callable[[Sequence[str], Sequence[str], Sequence[str] | None], Quality]] = {
    "translation": lambda answers, references, _: score_translation(answers, references),
    "classification": lambda answers, references, labels: score_classification(
        answers, references, labels or []
    ),
}
