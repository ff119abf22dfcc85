"""What removing heads does to the metric, and which of many such effects are significant.

Of many tests some are significant by chance, so the p-values are also corrected for their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from compressor.evaluation import METRICS
from compressor.report import numbers
from compressor.report.facts import metric_style, significant
from compressor.study.statistics import ALPHA, holm

Cells = tuple[str, ...]
MARKS = "* significant at the 5% level after Benjamini-Hochberg's correction, ** after Holm's"


@dataclass(frozen=True)
class Effect:
    """The main metric of a model with fewer heads, against the dense model on the same rows.

    Args:
        difference: of the metric, in points, with its 95 % `interval`; `p` is two-sided.
        metrics: all metrics of the task.
        at_floor: whether the dense model's value is the metric's floor, so that nothing follows.
    """

    dense: float
    value: float
    difference: float
    interval: tuple[float, float]
    p: float
    metrics: dict[str, float]
    at_floor: bool = False

    @property
    def is_significant(self) -> bool:
        return significant(self.p, self.interval)


@dataclass(frozen=True)
class Corrected:
    """An effect with its p-value corrected for the number of tests.

    Args:
        p_holm: by Holm: the probability of even one false discovery.
        p_bh: by Benjamini & Hochberg: the share of false discoveries.
    """

    effect: Effect
    p_holm: float
    p_bh: float

    @property
    def mark(self) -> str:
        """`**` significant after Holm's correction, `*` after Benjamini & Hochberg's."""
        # Only p-values are corrected; the interval is that of the single test.
        if significant(self.p_holm, self.effect.interval):
            return "**"
        return "*" if significant(self.p_bh, self.effect.interval) else ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self.effect), "p_holm": self.p_holm, "p_bh": self.p_bh}


@dataclass(frozen=True)
class MetricText:
    """How the values of a metric are written."""

    metric: str

    @property
    def label(self) -> str:
        """`BLEU`, `accuracy (%)`."""
        return metric_style(self.metric).title

    @property
    def unit(self) -> str:
        """The unit of a difference: `BLEU`, `points of accuracy`."""
        style = metric_style(self.metric)
        return f"points of {style.label}" if style.unit == "%" else style.label

    def value(self, value: float) -> str:
        return metric_style(self.metric).score(value)

    def change(self, value: float) -> str:
        return metric_style(self.metric).difference(value)

    def interval(self, bounds: tuple[float, float]) -> str:
        return metric_style(self.metric).interval(bounds)

    def cells(self, test: Corrected, mark: str = "") -> Cells:
        """Change, interval and the three p-values, without correction, by BH and by Holm."""
        effect = test.effect
        p_values = (numbers.p_value(p) for p in (effect.p, test.p_bh, test.p_holm))
        change = self.change(effect.difference) + mark
        return change, self.interval(effect.interval), *p_values


def corrected(effects: Sequence[Effect]) -> list[Corrected]:
    """The effects with their p-values corrected for the number of effects."""
    from scipy.stats import false_discovery_control

    p_values = [effect.p for effect in effects]
    p_bh = false_discovery_control(p_values, method="bh")
    return [
        Corrected(effect, adjusted, float(share))
        for effect, adjusted, share in zip(effects, holm(p_values), p_bh, strict=True)
    ]


def count_significant(tests: Sequence[Corrected]) -> dict[str, Any]:
    """How many tests are significant, uncorrected and corrected, and by chance.

    By chance is the expected number, at most, if no test had an effect.
    """
    return {
        "tests": len(tests),
        "level": ALPHA,
        "expected_by_chance": ALPHA * len(tests),
        "significant": sum(test.effect.is_significant for test in tests),
        "significant_bh": sum(significant(x.p_bh, x.effect.interval) for x in tests),
        "significant_holm": sum(significant(x.p_holm, x.effect.interval) for x in tests),
    }


def significance_sentences(data: dict[str, Any], what: str) -> list[str]:
    """`count_significant` in words, and whether there are enough resamples for it."""
    tests, resamples = data["tests"], data["resamples"]
    sentences = [
        f"At the 5% level {data['significant']} of {tests} {what} change the metric significantly; "
        f"up to {numbers.fixed(data['expected_by_chance'], 1)} would by chance if none had an "
        f"effect. Corrected for {tests} tests: {data['significant_bh']} (Benjamini-Hochberg), "
        f"{data['significant_holm']} (Holm)."
    ]
    # The smallest p-value of a bootstrap is 1 / (resamples + 1); some metrics have an exact test.
    if not METRICS[data["metric"]].has_exact_test and tests / (resamples + 1) >= ALPHA:
        sentences.append(
            f"{resamples:,} resamples are too few for Holm's correction of {tests} tests: it needs "
            f"at least {int(tests / ALPHA):,} for any p-value to be small enough."
        )
    return sentences
