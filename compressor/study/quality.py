"""The effect of removing heads on the metrics of a model.

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import false_discovery_control
from torch import nn

from compressor.budgets.units import select
from compressor.evaluation import compare_rows, main_metric, metrics_of
from compressor.importance.ablation_runs import outputs_without_units
from compressor.model.sublayers import Mask, Scores
from compressor.report import numbers
from compressor.report.facts import SIGNIFICANCE, MetricStyle, metric_style, significant
from compressor.study.options import Testing
from compressor.study.run import StudiedModel
from compressor.tasks.opened import DataRows

# The main metric (`value`) of a model with fewer heads against the `dense` one's on the same rows:
# `difference` in points, its 95 % `interval`, two-sided `p`, all `metrics`, whether the dense value
# is the metric's floor (`at_floor`); after `corrected` also `p_holm` and `p_bh`.
Effect = dict[str, Any]


class MeasuredQuality:
    """A dense model's outputs for the test rows, and the change of its metrics with fewer heads.

    Args:
        model: dense.
        rows: with test rows.
        settings: beam width, resamples, tokenizers.
    """

    def __init__(self, model: StudiedModel, rows: DataRows, settings: Testing) -> None:
        assert rows.test is not None
        self.model = model
        self.rows = rows.test
        self.settings = settings
        self.batches = model.batches(self.rows)
        model.progress.message(f"evaluating all heads on {len(self.rows.sources)} rows …")
        self.dense = self.outputs()
        self.value, signature = main_metric(self.rows, self.dense)
        if "--num-beams" in model.task.options:
            signature += f"|beams:{settings.num_beams or 1}"
        self.metric = metrics_of(self.rows)[0]
        self.style = metric_style(self.metric)
        points = "points of " if self.style.unit == "%" else ""
        self.axis = f"change in {points}{self.style.label}"
        self.text = f"All heads: {self.style.title} {self.style.score(self.value)}"
        self.facts = {  # for the JSON file
            "metric": self.metric,
            "dense": self.value,
            "signature": signature,
            "resamples": settings.resamples,
        }

    def outputs(self, mask: Mask | None = None, network: nn.Module | None = None) -> list[str]:
        """A model's outputs for all rows, in their order.

        Args:
            mask: heads that it removes are gated to zero; None for none.
            network: another network of the same model; None for the dense one.
        """
        # A head with a gate of 0 equals a removed one, and the model stays whole.
        with self.model.scoring(self.batches, mask=mask, network=network) as scoring:
            return outputs_without_units(scoring, [], self.settings.num_beams)[0]

    def effect(self, outputs: Sequence[str]) -> Effect:
        """The change of the metrics from the dense model's outputs to others; see `Effect`."""
        resamples, seed = self.settings.resamples, self.model.seed
        comparisons = compare_rows(self.rows, self.dense, outputs, resamples, seed)
        main = comparisons[0]
        return {
            "dense": main.dense,
            "value": main.pruned,
            "difference": main.difference,
            "interval": main.interval,
            "p": main.p_value,
            "metrics": {one.metric: one.pruned for one in comparisons},
            "at_floor": main.at_floor,
        }

    def without(self, mask: Mask) -> Effect:
        """The change of the metrics when the heads that a mask removes are gated to zero."""
        return self.effect(self.dense if mask.count() == mask.total() else self.outputs(mask))

    def corrected(
        self, effects: Sequence[Effect], what: str
    ) -> tuple[list[Effect], dict[str, Any], str]:
        """Correct the p-values of several tests.

        Args:
            effects: of all tests.
            what: was tested, in the plural, for the sentence.

        Returns:
            The effects with `p_holm` and `p_bh` (Benjamini & Hochberg 1995); how many are
            significant; and this as a sentence.
        """
        p_values = [effect["p"] for effect in effects]
        p_bh = false_discovery_control(p_values, method="bh").tolist()
        adjusted = zip(effects, holm(p_values), p_bh, strict=True)
        tests = [effect | {"p_holm": p, "p_bh": share} for effect, p, share in adjusted]
        count = len(tests)
        counts = {"tests": count, "level": SIGNIFICANCE, "expected_by_chance": SIGNIFICANCE * count}
        for kind in ("", "_bh", "_holm"):
            counts[f"significant{kind}"] = sum(is_significant(test, f"p{kind}") for test in tests)
        counts["at_floor"] = any(test["at_floor"] for test in tests)
        sentence = (
            f"At the 5% level {counts['significant']} of {count} {what} change the metric "
            f"significantly; up to {numbers.fixed(counts['expected_by_chance'], 1)} would by "
            f"chance if none had an effect. Corrected for {count} tests: "
            f"{counts['significant_bh']} (Benjamini-Hochberg), {counts['significant_holm']} (Holm)."
        )
        return tests, counts, sentence


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm 1979: the probability of even one false discovery stays below them.

    Args:
        p_values: of all tests, in any order.

    Returns:
        The adjusted ones, in the same order.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    # The smallest is multiplied by all n, the next by n - 1, …; none falls below the one before.
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted.tolist()


def is_significant(effect: Effect, p: str = "p") -> bool:
    """Whether an effect is significant at the 5 % level.

    Args:
        effect: see `Effect`.
        p: which of its p-values decides; the interval is that of the single test.
    """
    # Only p-values are corrected; the interval is that of the single test.
    return significant(effect[p], effect["interval"])


def mark(effect: Effect) -> str:
    """`**` significant after Holm's correction, `*` after Benjamini & Hochberg's."""
    return "**" if is_significant(effect, "p_holm") else "*" * is_significant(effect, "p_bh")


def effect_cells(effect: Effect, style: MetricStyle, mark: str = "") -> tuple[str, ...]:
    """Cells of a table: change, interval, p-value and, if corrected, those by BH and Holm."""
    change = style.difference(effect["difference"]) + mark
    p_values = (numbers.p_value(effect[p]) for p in ("p", "p_bh", "p_holm") if p in effect)
    return change, style.interval(effect["interval"]), *p_values


def removals(scores: Scores, full: Mask, pool: str, percentages: Sequence[int]) -> list[Mask]:
    """The masks at percentages of a kind's heads, or of all heads.

    Numbers of heads are rounded, halves up; each number occurs once.

    Args:
        scores: heads with the lowest are removed first.
        full: the mask of the dense model.
        pool: `heads` or a kind of sublayer.
        percentages: of the pool's heads, to remove.
    """
    total = full.total(pool)
    floors = dict.fromkeys(full.kinds(), 0)
    # `round` would take a half to the next even number.
    counts = dict.fromkeys(int(percent * total / 100 + 0.5) for percent in percentages)
    return [select(scores, full, {pool: total - count}, floors) for count in counts]
