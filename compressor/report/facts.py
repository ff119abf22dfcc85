"""What follows from a report's numbers, for all renderers: unit counts, significance, the lead."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from compressor.evaluation import METRICS, confidence_bounds
from compressor.export.precision_names import BASE, ON_DEVICE
from compressor.model.sublayers import KINDS, kind_of
from compressor.report import numbers
from compressor.report.schema import Report
from compressor.results import Comparison, Interval, Ranking, Timing, Variant, Verdict
from compressor.tasks import TASKS

SIGNIFICANCE = 0.05

Judgment = Literal["worse", "better", "same", "unknown"]
JUDGMENT_WORDS: dict[Judgment, str] = {
    "worse": "significantly worse",
    "better": "significantly better",
    "same": "no significant difference",
    "unknown": "not determined",
}
Gain = Literal["faster", "same", "slower", "unknown"]
KIND_LABELS = {
    "encoder_self": "encoder self-attention",
    "decoder_self": "decoder self-attention",
    "cross": "cross-attention",
    "encoder_ffn": "encoder feed-forward",
    "decoder_ffn": "decoder feed-forward",
}


@dataclass(frozen=True)
class MetricStyle:
    """How a metric is written."""

    label: str
    digits: int = 2
    unit: str = ""
    counted: str = "rows"  # what it is averaged over

    @property
    def title(self) -> str:
        """`accuracy (%)`."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def score(self, value: float | None) -> str:
        return numbers.fixed(value, self.digits)

    def with_unit(self, value: float | None) -> str:
        """`95.84 %`."""
        return f"{self.score(value)} {self.unit}".rstrip()

    def difference(self, value: float | None) -> str:
        return numbers.fixed(value, self.digits, sign=True)

    def interval(self, bounds: Interval | None) -> str:
        """`[-0.62, +0.01]`, of a difference."""
        return numbers.interval(bounds, self.digits, sign=True)


def metric_style(metric: str) -> MetricStyle:
    """How to write a metric; an unknown one keeps its name."""
    if metric not in METRICS:
        return MetricStyle(metric, digits=3)
    known = METRICS[metric]
    return MetricStyle(known.label, known.digits, known.unit, known.counted)


def kind_label(kind: str) -> str:
    """`encoder self-attention` for `encoder_self`."""
    return KIND_LABELS.get(kind, kind)


def models(report: Report) -> list[Variant]:
    """The dense model, then the variants."""
    return [report.dense, *report.variants]


def pruned(report: Report) -> list[Variant]:
    """The pruned models in float32, without their other precisions."""
    return [variant for variant in report.variants if not variant.base]


def delivered(report: Report) -> list[Variant]:
    """The variant that each artifact runs unless a precision is named."""
    return [variant for variant in report.variants if variant.default]


def builds(report: Report, variant: Variant) -> list[Variant]:
    """The model of `variant` in all precisions and engines, float32 first."""
    return [model for model in models(report) if variant.family in (model.name, model.base)]


def precisions(report: Report, variant: Variant) -> list[Variant]:
    """`builds` in the default engine."""
    return [model for model in builds(report, variant) if model.in_default_engine]


def default_build(report: Report, variant: Variant) -> Variant:
    """The precision of a model that its artifact runs unless one is named."""
    return next((build for build in builds(report, variant) if build.default), variant)


def low_precision(report: Report, variant: Variant) -> str:
    """The precision of a variant below float32; for float32 the one that suits the device."""
    if variant.precision != report.dense.precision:
        return variant.precision
    device = report.throughput.device if report.throughput else "cpu"
    return next((name for name in ON_DEVICE.get(device, ON_DEVICE["cpu"]) if name != BASE), BASE)


def dense_alone(report: Report, variant: Variant) -> Variant | None:
    """The dense model in a variant's `low_precision`: what that gives without pruning."""
    wanted = low_precision(report, variant)
    alone = (build for build in precisions(report, report.dense) if build.precision == wanted)
    return next((build for build in alone if build is not report.dense), None)


def scoring(report: Report, variant: Variant) -> Ranking | None:
    """How the units of a variant were ranked; all precisions of a model share it."""
    base = next((other for other in report.variants if other.name == variant.base), variant)
    return base.scoring or report.scoring


def shows_neurons(report: Report) -> bool:
    """Whether any model lost neurons; only then are they mentioned."""
    return any(map(lost_neurons, report.variants))


def kinds(report: Report) -> list[str]:
    """Kinds of sublayers to show: attention, and feed-forward parts if any lost neurons."""
    parts = (report.dense.heads, report.dense.neurons if shows_neurons(report) else {})
    return [kind for part in parts for kind in KINDS if kind in map(kind_of, part)]


def units_title(report: Report) -> str:
    return "Heads and neurons" if shows_neurons(report) else "Heads"


def layers(variant: Variant, kind: str) -> list[str]:
    """Names of a variant's sublayers of one kind, by layer number."""
    names = [name for name in (*variant.heads, *variant.neurons) if kind_of(name) == kind]
    return sorted(names, key=lambda name: int(name.rpartition(".")[2]))


def kept(variant: Variant, which: str) -> int:
    """Number of kept units: all `heads`, all `neurons`, or those of one kind of sublayer."""
    return _sum(variant, which, variant.counts)


def total(variant: Variant, which: str) -> int:
    """Number of units before removal, as in `kept`."""
    return _sum(variant, which, variant.heads | variant.neurons)


def _sum(variant: Variant, which: str, counts: Mapping[str, int]) -> int:
    groups = {"heads": variant.heads, "neurons": variant.neurons}
    return sum(counts[name] for name in groups.get(which) or layers(variant, which))


def lost_neurons(variant: Variant) -> bool:
    return kept(variant, "neurons") < total(variant, "neurons")


def lost(variant: Variant) -> list[str]:
    """Which units were removed: `heads`, `neurons` or both; `heads` if none were."""
    units = ("heads", "neurons")
    return [x for x in units if kept(variant, x) < total(variant, x)] or ["heads"]


def metrics(report: Report) -> list[str]:
    """Metrics of any model in the report, in the order of first mention."""
    names: list[str] = []
    for model in models(report):
        names += model.quality.metrics if model.quality else ()
        names += (comparison.metric for comparison in model.comparisons)
    return list(dict.fromkeys(names))


def primary_metric(report: Report) -> str | None:
    """The metric the report leads with: the task's main one if measured, else the first."""
    measured = metrics(report)
    usual = TASKS[report.task].main_metric
    return usual if usual in measured else next(iter(measured), None)


def value(model: Variant, metric: str) -> float | None:
    """A model's score in a metric, or None if it was not measured."""
    return model.quality.metrics.get(metric) if model.quality else None


def comparison(variant: Variant, metric: str | None) -> Comparison | None:
    """A variant's comparison with the dense model in one metric, if it was made."""
    return next((made for made in variant.comparisons if made.metric == metric), None)


def main_comparison(report: Report, variant: Variant) -> Comparison | None:
    return comparison(variant, primary_metric(report))


def test_rows(report: Report, variant: Variant) -> int:
    """On how many rows a variant's quality was measured; 0 if unknown."""
    if variant.quality is not None:
        return variant.quality.rows
    return 0 if report.test is None else report.test.rows


def bounds(report: Report, variant: Variant, compared: Comparison) -> Interval | None:
    """The 95 % confidence bounds of a difference; see `evaluation.confidence_bounds`."""
    return confidence_bounds(compared, test_rows(report, variant))


def significant(p_value: float, interval: Sequence[float]) -> bool:
    """Whether a difference is significant: two-sided p below 5%, and 0 outside the 95% interval.

    The two need not agree: they can come from different tests, or from a skewed distribution.
    """
    low, high = interval
    return p_value < SIGNIFICANCE and (low > 0 or high < 0)


def judge(compared: Comparison | None) -> Judgment:
    """Whether a variant is better or worse than dense by a paired comparison; see `significant`."""
    if compared is None or math.isnan(compared.p_value) or math.isnan(compared.difference):
        return "unknown"
    if not significant(compared.p_value, compared.interval):
        return "unknown" if compared.at_floor else "same"  # at the floor it shows nothing
    return "worse" if compared.difference < 0 else "better"


def floor_text(compared: Comparison, whose: str = "the dense model's") -> str:
    """Why nothing can be concluded from a comparison at the metric's floor; else empty."""
    if not compared.at_floor:
        return ""
    style = metric_style(compared.metric)
    return (
        f"{whose} {style.label} of {style.with_unit(compared.dense)} is at the metric's floor "
        f"({style.with_unit(compared.floor)} for answers that know nothing of the {style.counted})"
        ", so nothing can be concluded from it"
    )


def keeps_quality(build: Variant) -> bool:
    """Whether the test rows were answered, and no metric is significantly below float32's.

    Metrics at whose floor float32 is say nothing; one at least must say something.
    """
    judged = [judge(c) for c in build.base_comparisons if not c.at_floor or judge(c) == "worse"]
    return bool(judged) and all(judgment in ("same", "better") for judgment in judged)


def timings(report: Report, name: str) -> list[Timing]:
    """One model's timings by ascending batch size."""
    rows = report.throughput.rows if report.throughput else []
    return sorted((row for row in rows if row.variant == name), key=lambda row: row.batch_size)


def all_timings(report: Report) -> list[Timing]:
    """Every timing, by model in the report's order, then by ascending batch size."""
    return [row for model in models(report) for row in timings(report, model.name)]


def with_speedup(report: Report, variant: Variant) -> list[Timing]:
    """A variant's timings that were compared with the dense model's."""
    return [row for row in timings(report, variant.name) if row.speedup is not None]


def fastest(report: Report, builds: Sequence[Variant]) -> list[Timing]:
    """Of each batch size the timing with the largest gain over the fastest dense build."""
    best: dict[int, Timing] = {}
    rows = [row for build in builds for row in timings(report, build.name) if row.fastest_speedup]
    for row in sorted(rows, key=lambda row: -(row.fastest_speedup or 0.0)):
        best.setdefault(row.batch_size, row)
    return [best[size] for size in sorted(best)]


def batch_sizes(report: Report) -> list[int]:
    """Batch sizes that were measured, ascending."""
    return sorted({row.batch_size for row in report.throughput.rows}) if report.throughput else []


def gain(timing: Timing) -> Gain:
    """Whether the speed-up's whole interval (without one, the speed-up) is above or below 1.

    The lower end is compared as it is printed, with two decimals: `[1.00, 1.04]` is not above 1.
    """
    if timing.speedup is None or math.isnan(timing.speedup):
        return "unknown"
    low, high = timing.speedup_interval or (timing.speedup, timing.speedup)
    return "faster" if round(low, 2) > 1 else "slower" if high < 1 else "same"


def pays(timing: Timing) -> bool:
    return gain(timing) == "faster"


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Failed if one is, else inconclusive if one is."""
    order: tuple[Verdict, ...] = ("passed", "inconclusive", "failed")
    return max(verdicts, key=order.index)


def gate_verdict(report: Report) -> Verdict | None:
    """The worst verdict of the gate's rules; None without rules."""
    return worst_of(outcome.verdict for outcome in report.gate) if report.gate else None


def headline(report: Report) -> Variant | None:
    """The most important variant: gate met, not significantly worse, the smallest.

    Size is the share of heads kept, or of multiply-adds if a model lost neurons. If all variants
    lose quality significantly, it is the one that loses least.
    """
    candidates = delivered(report)
    failed = {outcome.variant for outcome in report.gate if not outcome.met}
    by_work = any(map(lost_neurons, candidates))

    def rank(variant: Variant) -> tuple[bool, bool, float]:
        compared = main_comparison(report, variant)
        if compared is not None and judge(compared) == "worse":
            return variant.name in failed, True, -compared.difference
        heads_kept = kept(variant, "heads") / (total(variant, "heads") or 1)
        return variant.name in failed, False, variant.macs_share if by_work else heads_kept

    return min(candidates, key=rank, default=None)


def hub_id(report: Report) -> str | None:
    """The model's id on the hub; None if it came from a directory."""
    is_id = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", report.model, re.ASCII)
    # Only models of the hub have a revision.
    return report.model if is_id and report.revision is not None else None


def model_name(report: Report) -> str:
    """The hub id, or the name of the model's directory without where it lies."""
    return hub_id(report) or re.split(r"[\\/]+", report.model.rstrip("\\/"))[-1] or report.model
