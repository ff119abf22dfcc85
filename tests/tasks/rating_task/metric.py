"""The share of answers that are within 1 of the right number."""

from __future__ import annotations

from compressor.evaluation.metric import Labels, MeanMetric


class Within(MeanMetric):
    name, label = "within_one", "Within one"

    def signature(self, labels: Labels) -> str:
        return "within:1"

    def read(self, reference: str) -> float:
        return float(reference)

    def row_score(self, answer: str, reference: float) -> float:
        return float(abs(float(answer) - reference) <= 1)
