"""What removing heads does to the metric, and which of many such effects are significant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import false_discovery_control
from torch import nn

from compressor.evaluation import METRICS, compare_rows, main_metric, metrics_of
from compressor.importance.ablation_runs import outputs_without_units
from compressor.model.sublayers import Mask
from compressor.pipeline.inputs import DataRows
from compressor.report import numbers
from compressor.report.facts import SIGNIFICANCE, MetricStyle, metric_style, significant
from compressor.study.options import Testing
from compressor.study.run import StudiedModel

# The main metric (`value`) of a model with fewer heads against the `dense` one's on the same rows:
# the `difference` in points, its 95 % `interval`, the two-sided `p`, all `metrics`, and whether the
# dense value is the metric's floor (`at_floor`), so that nothing follows. After `corrected` also
# `p_holm` (Holm: the chance of even one false discovery) and `p_bh` (Benjamini & Hochberg: the
# share of false discoveries).
Effect = dict[str, Any]

MARKS = "* significant at the 5% level after Benjamini-Hochberg's correction, ** after Holm's"


class MeasuredQuality:
    """A dense model's outputs for the test rows, and what the metric loses with fewer heads."""

    def __init__(self, model: StudiedModel, rows: DataRows, settings: Testing) -> None:
        assert rows.test is not None
        self.model, self.rows, self.settings = model, rows.test, settings
        self.metric = metrics_of(self.rows)[0]
        self.style = metric_style(self.metric)
        self.batches = model.batches(self.rows)
        model.progress.message(f"evaluating all heads on {len(self.rows.sources)} rows …")
        self.dense = self.outputs()
        self.value, self.signature = main_metric(self.rows, self.dense)
        if "--num-beams" in model.task.options:
            self.signature += f"|beams:{settings.num_beams or 1}"

    def facts(self) -> dict[str, Any]:
        """The dense model's value, for the JSON file."""
        return {
            "metric": self.metric,
            "dense": self.value,
            "signature": self.signature,
            "resamples": self.settings.resamples,
        }

    def outputs(self, mask: Mask | None = None, network: nn.Module | None = None) -> list[str]:
        """A model's outputs for all rows, in their order; arguments as of `scoring`."""
        # A head with a gate of 0 equals a removed one, and the model stays whole.
        with self.model.scoring(self.batches, mask=mask, network=network) as scoring:
            return outputs_without_units(scoring, [], self.settings.num_beams)[0]

    def effect(self, outputs: Sequence[str]) -> Effect:
        """The metric's change from the dense model's outputs."""
        resamples, seed = self.settings.resamples, self.model.seed
        comparisons = compare_rows(self.rows, self.dense, outputs, resamples, seed)
        main = next(one for one in comparisons if one.metric == self.metric)
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
        """The metric's change when the heads that a mask removes are silenced."""
        return self.effect(self.dense if mask.count() == mask.total() else self.outputs(mask))

    def corrected(
        self, effects: Sequence[Effect], what: str
    ) -> tuple[list[Effect], dict[str, Any], list[str]]:
        """Correct the p-values of many effects for their number: some are small by chance.

        Returns:
            The effects with `p_holm` and `p_bh`; how many are significant (`expected_by_chance` is
            the most to expect if no head had an effect); and this in sentences.
        """
        p_values = [effect["p"] for effect in effects]
        p_bh = false_discovery_control(p_values, method="bh").tolist()
        adjusted = zip(effects, holm(p_values), p_bh, strict=True)
        tests = [effect | {"p_holm": p, "p_bh": share} for effect, p, share in adjusted]
        count, resamples = len(tests), self.settings.resamples
        chance = SIGNIFICANCE * count
        plain, bh, by_holm = (
            sum(is_significant(test, p) for test in tests) for p in ("p", "p_bh", "p_holm")
        )
        sentences = [
            f"At the 5% level {plain} of {count} {what} change the metric significantly; up to "
            f"{numbers.fixed(chance, 1)} would by chance if none had an effect. Corrected for "
            f"{count} tests: {bh} (Benjamini-Hochberg), {by_holm} (Holm)."
        ]
        # The smallest p-value of a bootstrap is 1 / (resamples + 1); some metrics have exact tests.
        if not METRICS[self.metric].has_exact_test and count / (resamples + 1) >= SIGNIFICANCE:
            sentences.append(
                f"{resamples:,} resamples are too few for Holm's correction of {count} tests: it "
                f"needs at least {int(count / SIGNIFICANCE):,} for any p-value to be small enough."
            )
        counts = {
            "tests": count,
            "level": SIGNIFICANCE,
            "expected_by_chance": chance,
            "significant": plain,
            "significant_bh": bh,
            "significant_holm": by_holm,
            "at_floor": any(test["at_floor"] for test in tests),
        }
        return tests, counts, sentences


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm 1979: the chance of even one false discovery stays below them."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    # The smallest is multiplied by all n, the next by n - 1, …; none falls below the one before.
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted.tolist()


def is_significant(effect: Effect, p: str = "p") -> bool:
    """Whether an effect is significant by one of its p-values."""
    # Only p-values are corrected; the interval is that of the single test.
    return significant(effect[p], effect["interval"])


def mark(effect: Effect) -> str:
    """`**` significant after Holm's correction, `*` after Benjamini & Hochberg's."""
    return "**" if is_significant(effect, "p_holm") else "*" * is_significant(effect, "p_bh")


def unit_of(style: MetricStyle) -> str:
    """The unit of a difference: `BLEU`, `points of accuracy`."""
    return f"points of {style.label}" if style.unit == "%" else style.label


def cells(effect: Effect, style: MetricStyle, mark: str = "") -> tuple[str, ...]:
    """Change, interval and p-values, without correction and, if it is corrected, by BH and Holm."""
    change = style.difference(effect["difference"]) + mark
    p_values = (numbers.p_value(effect[p]) for p in ("p", "p_bh", "p_holm") if p in effect)
    return change, style.interval(effect["interval"]), *p_values
