"""The report's sentences: plain text about what was measured, unfavorable results included."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compressor.report import facts, gate_text, numbers
from compressor.report.max_drop import unproven
from compressor.report.schema import Report
from compressor.results import (
    HALF_RANGE,
    Comparison,
    QualitySearch,
    Timing,
    Variant,
)

_NOT_COMPARABLE = "timings of different runs cannot be compared; each run's own report has them"


def join(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))


def units(variant: Variant) -> str:
    """`72 of 144 heads (50%)`; `72 of 144 heads (50%) and 96 of 288 neurons (33%)`.

    Neurons are mentioned where some were removed; `all 144 heads` where only neurons were.
    """
    if not facts.lost_neurons(variant):
        return _kept(variant, "heads")
    return join([_kept(variant, "heads"), _kept(variant, "neurons")])


def _kept(variant: Variant, which: str) -> str:
    kept, total = facts.kept(variant, which), facts.total(variant, which)
    if kept == total and which not in facts.lost(variant):
        return f"all {total:,} {which}"
    return f"{kept:,} of {total:,} {which} ({numbers.percent(kept, total)})"


def work(variant: Variant) -> str:
    """`52% of the multiply-adds`, where neurons were removed and it is known; else empty."""
    if variant.macs_share is None or not facts.lost_neurons(variant):
        return ""
    return f"{numbers.percent(variant.macs_share, 1)} of the multiply-adds"


def join_parts(*parts: str) -> str:
    """The parts that are not empty, with commas."""
    return ", ".join(filter(None, parts))


def speedup(timing: Timing) -> str:
    """`0.99 [0.97, 1.01]`; just the ratio where there is no interval."""
    ratio = numbers.fixed(timing.speedup, 2)
    if timing.speedup_interval is None:
        return ratio
    return f"{ratio} {numbers.interval(timing.speedup_interval, 2)}"


def quality(variant: Variant, metric: str) -> str:
    """`BLEU 33.90 against 34.21 (-0.31 [-0.62, +0.01], p = 0.062): no significant difference`."""
    found = facts.comparison(variant, metric)
    if found is None:
        style = facts.metric_style(metric)
        unit = f" {style.unit}" if style.unit else ""
        alone = numbers.fixed(facts.value(variant, metric), style.digits)
        return f"{style.label} {alone}{unit}, not compared with dense"
    return _compared(found)


def _compared(found: Comparison) -> str:
    style = facts.metric_style(found.metric)
    unit = f" {style.unit}" if style.unit else ""
    pruned, dense = (numbers.fixed(v, style.digits) for v in (found.pruned, found.dense))
    difference = numbers.fixed(found.difference, style.digits, sign=True)
    bounds = numbers.interval(found.interval, style.digits, sign=True)
    p_value = numbers.p_equation(found.p_value)
    verdict = facts.JUDGMENT_WORDS[facts.judge(found)]
    against = f"{pruned}{unit} against {dense}{unit}"
    return f"{style.label} {against} ({difference} {bounds}, {p_value}): {verdict}"


def quality_sentences(report: Report) -> list[str]:
    """One sentence per variant about quality, or one that says it was not measured."""
    metrics = facts.metrics(report)
    if not metrics:
        return ["Quality was not measured: the run had no test rows."]
    lines = []
    for variant in report.variants:
        if variant.quality is None and not variant.comparisons:
            lines.append(f"Quality of {variant.name} was not measured.")
            continue
        parts = "; ".join(quality(variant, metric) for metric in metrics)
        lines.append(f"{variant.name}, with {units(variant)}: {parts}.")
        if variant.base_comparisons:
            parts = "; ".join(map(_compared, variant.base_comparisons))
            lines.append(f"{variant.name} against {variant.base}: {parts}.")
    return [*lines, *precision_sentences(report)]


def shared_rows(shared: int, total: int) -> str:
    """`3 of 24 test rows are calibration rows too, so …`, without the final full stop."""
    are = "is a calibration row" if shared == 1 else "are calibration rows"
    return f"{shared:,} of {total:,} test rows {are} too, so the loss on new text can be greater"


def data_sentences(report: Report) -> list[str]:
    """A warning where test rows are calibration rows too; empty where none are."""
    runs = facts.runs(report)
    if report.test is None:
        return []
    if len({run.shared_rows for run in runs}) == 1:
        count = runs[0].shared_rows
        return [f"{shared_rows(count, report.test.rows)}."] if count else []
    return [
        f"Of {join(run.variants)}: {shared_rows(run.shared_rows, report.test.rows)}."
        for run in runs
        if run.shared_rows
    ]


def drop_sentences(report: Report) -> list[str]:
    """Warnings about models searched for a `--max-drop`: the rows do not prove it, or it is missed.

    The second can be so of a default precision other than the float32 that was searched.
    """
    lines = []
    searches: dict[str, QualitySearch] = {}
    for run in facts.runs(report):
        if not isinstance(run.search, QualitySearch):
            continue
        searches |= dict.fromkeys(run.variants, run.search)
        warning = unproven(run.search)
        if warning:
            lines.append(f"{join(run.variants)}: {warning}" if report.runs else warning)
    for variant in facts.delivered(report):
        if variant.name in searches:
            lines += _missed(report, variant, searches[variant.name])
    return lines


def _missed(report: Report, variant: Variant, search: QualitySearch) -> list[str]:
    style = facts.metric_style(search.metric)
    found = facts.comparison(variant, search.metric)
    if found is None or not -found.difference > search.drop + facts.ROUNDING:
        return []
    whose = f"{variant.name}: the" if report.runs else "The"
    start = (
        f"{whose} measured drop of {numbers.fixed(-found.difference, style.digits)} in "
        f"{style.label} is more than the {search.drop:.15g} asked for"
    )
    rows = f"{report.test.rows:,} test rows" if report.test else "the test rows"
    if found.interval[1] >= -search.drop:
        return [f"{start}, but {rows} are too few to be sure: use more."]
    return [f"{start}, significantly so on {rows}."]


def precision_sentences(report: Report) -> list[str]:
    """Each artifact's default precision, and why others that were exported are not the default."""
    lines = []
    for variant in facts.pruned(report):
        builds = facts.builds(report, variant)
        if len(builds) == 1:
            continue
        chosen = facts.default_build(report, variant)
        lines.append(
            f"The artifact of {variant.name} runs in {chosen.precision} unless a precision is "
            "named."
        )
        lines += _refusals(builds)
    return lines


def _refusals(builds: Sequence[Variant]) -> list[str]:
    """One sentence for each precision that cannot be an artifact's default."""
    return [
        f"{build.name} {reason}, so it is not the default."
        for build in builds
        if build.base and (reason := _refusal(build))
    ]


def _refusal(build: Variant) -> str:
    """Why a precision must not be the default; empty if it may be."""
    exceeded = [c for c in build.checks if not c.largest_difference <= c.tolerance]
    if exceeded and exceeded[0].name == HALF_RANGE:
        return (
            f"computes values of {exceeded[0].largest_difference:.2g} times float16's range, "
            f"more than the {exceeded[0].tolerance:.2g} that is safe"
        )
    if exceeded:
        return (
            f"differs from PyTorch by {exceeded[0].largest_difference:.2g} of the largest logit, "
            f"more than the {exceeded[0].tolerance:.2g} that is usual"
        )
    worse = [c for c in build.base_comparisons if facts.judge(c) == "worse"]
    if worse:
        labels = join([facts.metric_style(comparison.metric).label for comparison in worse])
        return f"is significantly worse than {build.base} in {labels}"
    return ""


def emptied_sentences(report: Report) -> list[str]:
    """What variants lost whole: attention, feed-forward parts, and layers with all of theirs."""
    lines = []
    for variant in facts.pruned(report):
        names = facts.emptied(variant)
        attention = [name for name in names if name in variant.heads]
        parts = [name for name in names if name in variant.neurons]
        lines += _emptied(variant, attention, "layer", "heads")
        lines += _emptied(variant, parts, "feed-forward part", "neurons")
        layers = facts.emptied_layers(variant)
        if layers:
            verb, whose = ("has", "its") if len(layers) == 1 else ("have", "their")
            lines.append(
                f"In {variant.name} {join(layers)} {verb} no units left at all: only {whose} "
                "biases and normalizations are still applied."
            )
    return lines


def _emptied(variant: Variant, names: list[str], what: str, units: str) -> list[str]:
    if not names:
        return []
    subject = f"{what} {names[0]} has" if len(names) == 1 else f"{what}s {join(names)} have"
    left = "its output bias is" if len(names) == 1 else "their output biases are"
    return [f"In {variant.name} {subject} no {units} left: only {left} still applied."]


def speed_sentences(report: Report) -> list[str]:
    """Where pruning pays and where it does not, for every variant and batch size."""
    if any(run.timed for run in report.runs):
        return [f"Throughput is not shown: {_NOT_COMPARABLE}."]
    if report.throughput is None:
        return ["Throughput was not measured."]
    lines = []
    if report.throughput.device == "cpu" and "fp16" in {v.precision for v in report.variants}:
        lines.append(
            "fp16 is for GPUs: on a CPU onnxruntime casts to float32 for most of it, and its speed "
            "here says nothing."
        )
    for variant in report.variants:
        rows = [row for row in facts.timings(report, variant.name) if row.speedup is not None]
        if not rows:
            lines.append(f"The speed-up of {variant.name} was not measured.")
        lines += _pays(report, variant, [row for row in rows if facts.pays(row)])
        lines += [_does_not_pay(report, row) for row in rows if not facts.pays(row)]
        lines += [_above_limit(report, row) for row in rows if _exceeds(row)]
    return lines


def _subject(report: Report, name: str) -> str:
    """`pruning`, with the variant's name where there are several; a precision by its own name."""
    variant = next(variant for variant in report.variants if variant.name == name)
    if variant.base:
        return name
    return "pruning" if len(report.variants) == 1 else f"pruning to {name}"


def _pays(report: Report, variant: Variant, rows: list[Timing]) -> list[str]:
    if not rows:
        return []
    sizes = join([f"{row.batch_size} (speed-up {speedup(row)})" for row in rows])
    return [f"At batch {sizes} {_subject(report, variant.name)} pays."]


def _does_not_pay(report: Report, row: Timing) -> str:
    ratio = row.speedup if row.speedup is not None else math.nan
    start = f"At batch {row.batch_size} {_subject(report, row.variant)}"
    if math.isnan(ratio):
        return f"{start} has no usable speed-up: the ratio is not a number."
    high = row.speedup_interval[1] if row.speedup_interval else ratio
    slower = ", slower than dense" if high < 1 else ""
    return f"{start} does not pay: speed-up {speedup(row)}{slower}."


def _exceeds(row: Timing) -> bool:
    low = row.speedup_interval[0] if row.speedup_interval else row.speedup
    return low is not None and row.limit is not None and low > row.limit


def _above_limit(report: Report, row: Timing) -> str:
    return (
        f"At batch {row.batch_size} {_subject(report, row.variant)} measured a speed-up of "
        f"{speedup(row)}, above the theoretical limit {numbers.fixed(row.limit, 2)}: something "
        "other than the removed work differs between the two models."
    )


def verdict(report: Report) -> str:
    """The report in a few sentences, about its most important variant (`facts.headline`)."""
    variant = facts.headline(report)
    if variant is None:
        return "The report holds no pruned variant."
    metric = facts.primary_metric(report)
    kept = join_parts(units(variant), work(variant))
    parts = [f"{_lead(report, variant, metric)} keeps {kept}"]
    measured = metric is not None and (variant.quality is not None or variant.comparisons)
    parts.append(quality(variant, metric) if metric and measured else "quality not measured")
    parts.append(_speed_range(report, variant))
    refused = [
        line for model in facts.pruned(report) for line in _refusals(facts.builds(report, model))
    ]
    sentences = (
        "; ".join(parts) + ".",
        *drop_sentences(report),
        *data_sentences(report),
        *refused,
        in_short(report, variant),
        gate_text.gate_sentence(report),
    )
    return " ".join(filter(None, sentences))


def in_short(report: Report, variant: Variant) -> str | None:
    """How many times faster and smaller a model is, and at what loss; None if not all is known."""
    rows = [row for row in facts.timings(report, variant.name) if row.speedup is not None]
    metric = facts.primary_metric(report)
    compared = None if metric is None else facts.comparison(variant, metric)
    if not rows or compared is None:
        return None
    judgment = facts.judge(compared)
    if judgment == "unknown":
        return None
    slowest, fastest = (pick(row.speedup or 0.0 for row in rows) for pick in (min, max))
    low, high = numbers.fixed(slowest, 1), numbers.fixed(fastest, 1)
    speed = low if low == high else f"{low} to {high}"
    smaller = numbers.fixed(report.dense.onnx_bytes / variant.onnx_bytes, 1)
    style = facts.metric_style(compared.metric)
    loss = {
        "worse": f"significantly worse in {style.label}",
        "better": f"significantly better in {style.label}",
        "same": f"without significant loss in {style.label}",
    }[judgment]
    return f"In short: {speed} times as fast and {smaller} times smaller, {loss}."


def _lead(report: Report, variant: Variant, metric: str | None) -> str:
    variants = facts.delivered(report)
    count = len(variants)
    if count == 1:
        return variant.name
    judged = [facts.judge(facts.comparison(other, metric)) for other in variants]
    if all(judgment == "worse" for judgment in judged):
        return (
            f"All {count} variants are significantly worse than dense; the mildest, {variant.name},"
        )
    failed = {outcome.variant for outcome in report.gate if not outcome.met}
    kind = "the smallest"
    if facts.judge(facts.comparison(variant, metric)) in ("same", "better"):
        kind += " without significant loss"
    if failed and variant.name not in failed:
        kind += " that meets the gate"
    return f"Of {count} variants {variant.name}, {kind},"


def _speed_range(report: Report, variant: Variant) -> str:
    rows = [row for row in facts.timings(report, variant.name) if row.speedup is not None]
    if not rows:
        return f"speed not {'shown' if any(run.timed for run in report.runs) else 'measured'}"
    if len(rows) == 1:
        return f"speed-up {speedup(rows[0])} at batch {rows[0].batch_size}"
    low, high = (pick(rows, key=lambda row: row.speedup or 0.0) for pick in (min, max))
    return (
        f"speed-up {speedup(low)} at batch {low.batch_size} "
        f"to {speedup(high)} at batch {high.batch_size}"
    )
