"""Questions to a report that its numbers answer: which builds there are, what is significant.

The gate's rules ask them, the end of a run, and the view that pages are made of (`view.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from compressor.evaluation import METRICS, confidence_bounds
from compressor.export.precision_names import BASE, ON_DEVICE
from compressor.model.sublayers import KINDS, TOKEN_KIND, TOKEN_UNITS, kind_of, layer_of
from compressor.report import numbers
from compressor.report.schema import Report
from compressor.steps.results import Comparison, Interval, Ranking, Variant, Verdict
from compressor.tasks import TASKS

SIGNIFICANCE = 0.05

Judgment = Literal["worse", "better", "same", "unknown"]
JUDGMENT_WORDS: dict[Judgment, str] = {
    "worse": "significantly worse",
    "better": "significantly better",
    "same": "no significant difference",
    "unknown": "not determined",
}
KIND_LABELS = {
    "encoder_self": "encoder self-attention",
    "decoder_self": "decoder self-attention",
    "cross": "cross-attention",
    "encoder_ffn": "encoder feed-forward",
    "decoder_ffn": "decoder feed-forward",
    "encoder_tokens": "encoder tokens, tenths",
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
        """`95.84`, of a value of the metric."""
        return numbers.fixed(value, self.digits)

    def with_unit(self, value: float | None) -> str:
        """`95.84 %`."""
        return f"{self.score(value)} {self.unit}".rstrip()

    def difference(self, value: float | None) -> str:
        """`-0.36`, of a difference of two values."""
        return numbers.fixed(value, self.digits, sign=True)

    def interval(self, bounds: Interval | None) -> str:
        """`[-0.62, +0.01]`, of a difference."""
        return numbers.interval(bounds, self.digits, sign=True)


@dataclass(frozen=True)
class Kept:
    """Units that are kept, of how many before removal; of one attention sublayer also which."""

    kept: int
    total: int
    heads: tuple[int, ...] | None = None
    is_share: bool = False  # of tokens, which are shown in percent

    @property
    def text(self) -> str:
        """`72/144`: units kept of units before; `62%` of tokens."""
        write = numbers.percent if self.is_share else numbers.kept_of
        return write(self.kept, self.total)


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


def shows(report: Report, units: str) -> bool:
    """Whether any model lost `neurons`, or `tokens`; only then are they mentioned."""
    return any(units in lost(variant) for variant in report.variants)


def kinds(report: Report) -> list[str]:
    """Kinds of sublayers to show: attention, and what else lost units in any model."""
    parts = (report.dense.heads, report.dense.neurons if shows(report, "neurons") else {})
    shown = [kind for part in parts for kind in KINDS if kind in map(kind_of, part)]
    return [*shown, *([TOKEN_KIND] if shows(report, "tokens") else [])]


def units_title(report: Report) -> str:
    """The title of what says which units are kept: `Heads, neurons and tokens`."""
    return numbers.join(["Heads", *(x for x in ("neurons", "tokens") if shows(report, x))])


def layers(variant: Variant, kind: str) -> list[str]:
    """Names of a variant's sublayers of one kind, by layer number."""
    every = handed_on(variant) if kind == TOKEN_KIND else (*variant.heads, *variant.neurons)
    names = [name for name in every if kind_of(name) == kind]
    return sorted(names, key=lambda name: int(name.rpartition(".")[2]))


def handed_on(variant: Variant) -> dict[str, int]:
    """Tenths of a row's tokens that each encoder layer that is left, but the last, hands on.

    By names with the layer's number in the dense model: `encoder_tokens.2`.
    """
    attentions = layers(variant, "encoder_self")
    left = [name for name in attentions if layer_of(name) not in variant.dropped_layers]
    names = [name.replace("encoder_self", TOKEN_KIND) for name in left[:-1]]
    return dict(zip(names, variant.handed_on or [TOKEN_UNITS] * len(names), strict=True))


def kept(variant: Variant, which: str) -> int:
    """Number of kept units: all `heads`, `neurons` or `tokens`, or of one kind of sublayer."""
    return _sum(variant, which, variant.counts | handed_on(variant))


def total(variant: Variant, which: str) -> int:
    """Number of units before removal, as in `kept`."""
    tenths = dict.fromkeys(handed_on(variant), TOKEN_UNITS)
    return _sum(variant, which, variant.heads | variant.neurons | tenths)


def _sum(variant: Variant, which: str, counts: Mapping[str, int]) -> int:
    groups = {"heads": variant.heads, "neurons": variant.neurons, "tokens": handed_on(variant)}
    return sum(counts[name] for name in groups.get(which) or layers(variant, which))


def kept_of(variant: Variant, which: str) -> Kept:
    """`kept` beside `total`; of tokens the mean share that layers hand on."""
    is_share = which in (TOKEN_KIND, "tokens")
    return Kept(kept(variant, which), total(variant, which), is_share=is_share)


def units_of(variant: Variant, name: str) -> Kept | None:
    """The units of one sublayer that a variant keeps; None if it is no layer that hands on."""
    if kind_of(name) == TOKEN_KIND:
        tenths = handed_on(variant).get(name)
        return None if tenths is None else Kept(tenths, TOKEN_UNITS, is_share=True)
    if name not in variant.kept:
        return Kept(variant.kept_neurons[name], variant.neurons[name])
    heads = tuple(sorted(variant.kept[name]))
    return Kept(len(heads), variant.heads[name], heads)


def lost(variant: Variant) -> list[str]:
    """Which units were removed, of `heads`, `neurons` and `tokens`; `heads` if none were."""
    units = ("heads", "neurons", "tokens")
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
    """A model's main metric beside the dense model's; None where it was not measured."""
    return comparison(variant, primary_metric(report))


def test_rows(report: Report, variant: Variant) -> int:
    """On how many rows a variant's quality was measured; 0 if unknown."""
    if variant.quality is not None:
        return variant.quality.rows
    return 0 if report.test is None else report.test.rows


def bounds(report: Report, variant: Variant, compared: Comparison) -> Interval | None:
    """The 95 % confidence bounds of a difference; see `evaluation.confidence_bounds`."""
    return confidence_bounds(compared, test_rows(report, variant))


def interval_of(compared: Comparison, rows: int) -> Interval:
    """The 95 % interval of a difference, the one that is shown and that rules are held against.

    It is that of `evaluation.confidence_bounds`; without a number of rows, or with numbers that are
    not finite, the bootstrap's own.
    """
    return confidence_bounds(compared, rows) or compared.interval


def are_few(compared: Comparison, rows: int) -> bool:
    """Whether rows are too few to see a loss that matters, whatever they show.

    That is, whether the interval reaches on average more than a hundredth of the metric's scale
    (1 point of accuracy, 1 BLEU) to either side.
    """
    if compared.metric not in METRICS:
        return False
    low, high = interval_of(compared, rows)
    return high - low > 2 * METRICS[compared.metric].scale / 100


def significant(p_value: float, interval: Sequence[float]) -> bool:
    """Whether a difference is significant: two-sided p below 5%, and 0 outside the 95% interval.

    The two need not agree: they can come from different tests, or from a skewed distribution.
    """
    low, high = interval
    return p_value < SIGNIFICANCE and (low > 0 or high < 0)


def judge(compared: Comparison | None, rows: int) -> Judgment:
    """Whether a variant is better or worse than dense by a paired comparison; see `significant`.

    Args:
        compared: The comparison; None if there is none.
        rows: The number of test rows it was made on; 0 if unknown.
    """
    if compared is None or math.isnan(compared.p_value) or math.isnan(compared.difference):
        return "unknown"
    if not significant(compared.p_value, interval_of(compared, rows)):
        return "unknown" if compared.at_floor else "same"  # at the floor it shows nothing
    return "worse" if compared.difference < 0 else "better"


def judge_main(report: Report, variant: Variant) -> Judgment:
    """`judge` of a variant's main comparison."""
    return judge(main_comparison(report, variant), test_rows(report, variant))


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
    rows = 0 if build.quality is None else build.quality.rows
    judgments = [(judge(made, rows), made.at_floor) for made in build.base_comparisons]
    counted = [judgment for judgment, at_floor in judgments if not at_floor or judgment == "worse"]
    return bool(counted) and all(judgment in ("same", "better") for judgment in counted)


def sound_builds(report: Report, variant: Variant) -> list[Variant]:
    """Builds of a model that may be served: its float32 one, the delivered, and equally good ones.

    Those are the builds that keep the float32 model's quality.
    """
    return [
        build
        for build in builds(report, variant)
        if build.name in (build.family, variant.name) or keeps_quality(build)
    ]


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Failed if one is, else inconclusive if one is."""
    order: tuple[Verdict, ...] = ("passed", "inconclusive", "failed")
    return max(verdicts, key=order.index)


def gate_verdict(report: Report) -> Verdict | None:
    """The worst verdict of the gate's rules; None without rules."""
    return worst_of(outcome.verdict for outcome in report.gate) if report.gate else None


def headline(report: Report) -> Variant | None:
    """The most important variant: gate met, not significantly worse, the smallest.

    Size is the share of heads kept, or of multiply-adds if a model lost neurons or tokens. If all
    variants lose quality significantly, it is the one that loses least.
    """
    candidates = delivered(report)
    failed = {outcome.variant for outcome in report.gate if not outcome.met}
    by_work = not {"neurons", "tokens"}.isdisjoint(x for v in candidates for x in lost(v))

    def rank(variant: Variant) -> tuple[bool, bool, float]:
        compared = main_comparison(report, variant)
        if compared is not None and judge_main(report, variant) == "worse":
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
