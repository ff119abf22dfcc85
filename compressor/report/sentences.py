"""The report's sentences: plain text about what was measured, unfavorable results included.

They name a model and conclude; how many units it has and what was measured stands in the tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from compressor.report import budgets, facts, gate_text, numbers, phrases
from compressor.report.in_short import in_short
from compressor.report.phrases import join
from compressor.report.schema import Report
from compressor.results import HALF_RANGE, Timing, Variant


def quality_sentences(report: Report) -> list[str]:
    """Which models differ from dense in which metric, and which precision is the default."""
    metrics = facts.metrics(report)
    if not metrics:
        return ["Quality was not measured: the run had no test rows."]
    lines = _judgments(report, metrics)
    lines += floor_sentences(report)
    missing = [v.name for v in report.variants if v.quality is None and not v.comparisons]
    if missing:
        lines.append(f"Quality of {join(missing)} was not measured.")
    return [*lines, *precision_sentences(report)]


# Of a list of models, in metrics.
_JUDGED: dict[facts.Judgment, str] = {
    "worse": "Significantly worse than dense in",
    "better": "Significantly better than dense in",
    "same": "Not shown to differ from dense (the intervals say how much may be lost) in",
    "unknown": "Not determined whether different from dense in",
}


def _judgments(report: Report, metrics: Sequence[str]) -> list[str]:
    """A sentence for each judgment and the models it is true of, in all metrics in which it is."""
    groups: dict[tuple[facts.Judgment, tuple[str, ...]], list[str]] = {}
    for metric in metrics:
        judged = {
            variant.name: facts.judge(found)
            for variant in report.variants
            if (found := facts.comparison(variant, metric))
        }
        for judgment in _JUDGED:
            names = tuple(name for name, found in judged.items() if found == judgment)
            if names:
                label = facts.metric_style(metric).label
                groups.setdefault((judgment, names), []).append(label)
    return [
        f"{_JUDGED[judgment]} {join(labels)}: {join(names)}."
        for (judgment, names), labels in groups.items()
    ]


def floor_sentences(report: Report) -> list[str]:
    """In which metrics nothing can be concluded, because the dense model's score is their floor."""
    texts = (facts.floor_text(x) for variant in report.variants for x in variant.comparisons)
    return [f"{text[0].upper()}{text[1:]}." for text in dict.fromkeys(filter(None, texts))]


def data_sentences(report: Report) -> list[str]:
    """A warning where test rows are calibration rows too; empty where none are."""
    if report.test is None or not report.shared_rows:
        return []
    return [f"{phrases.shared_rows(report.shared_rows, report.test.rows)}."]


def precision_sentences(report: Report) -> list[str]:
    """The default precision of the artifacts that come in several."""
    chosen: dict[str, list[str]] = {}
    for variant in facts.pruned(report):
        if len(facts.precisions(report, variant)) > 1:
            precision = facts.default_build(report, variant).precision
            chosen.setdefault(precision, []).append(variant.name)
    runs = [
        f"{join(names)} {'runs' if len(names) == 1 else 'run'} in {precision}"
        for precision, names in chosen.items()
    ]
    return [f"Unless a precision is named, {join(runs)}."] if runs else []


def refusals(report: Report) -> list[str]:
    """One sentence for each precision that cannot be an artifact's default."""
    return [
        f"{build.name} {reason}, so it is not the default."
        for variant in facts.pruned(report)
        for build in facts.precisions(report, variant)
        if build.base and (reason := _refusal(build))
    ]


def _refusal(build: Variant) -> str:
    """Why a precision must not be the default; empty if it may be."""
    exceeded = [check for check in build.checks if not check.is_met]
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
        if variant.dropped_layers:
            lines.append(
                f"{variant.name} skips {join(variant.dropped_layers)} (counted from 0), with all "
                "of their normalizations; the layers behind them have moved up."
            )
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
    if report.throughput is None:
        return ["Throughput was not measured."]
    lines = []
    if report.throughput.device == "cpu" and "fp16" in {v.precision for v in report.variants}:
        lines.append(
            "fp16 is for GPUs: on a CPU onnxruntime casts to float32 for most of it, and its speed "
            "here says nothing."
        )
    groups: dict[tuple[facts.Gain, tuple[int, ...]], list[str]] = {}
    for variant in report.variants:
        rows = facts.with_speedup(report, variant)
        if not rows:
            lines.append(f"The speed-up of {variant.name} was not measured.")
        for gain in dict.fromkeys(map(facts.gain, rows)):
            sizes = tuple(row.batch_size for row in rows if facts.gain(row) == gain)
            groups.setdefault((gain, sizes), []).append(variant.name)
    return (
        lines
        + [
            f"{join(names)} {_GAINS[gain][len(names) > 1]} at batch {join(list(map(str, sizes)))}."
            for (gain, sizes), names in groups.items()
        ]
        + _over_fastest(report)
    )


def _over_fastest(report: Report) -> list[str]:
    """Where several engines were timed, what each pruned model gains in the best of its builds."""
    lines = []
    for variant in facts.pruned(report):
        timed = [
            row
            for build in facts.builds(report, variant)
            for row in facts.timings(report, build.name)
            if row.fastest_speedup is not None
        ]
        best: dict[int, Timing] = {}
        for row in sorted(timed, key=lambda row: row.sentences_per_second):
            best[row.batch_size] = row
        gains = [
            f"{numbers.fixed(row.fastest_speedup, 2)} "
            f"{numbers.interval(row.fastest_speedup_interval, 2)} at batch {size} "
            f"({row.variant} over {row.fastest})"
            for size, row in sorted(best.items())
        ]
        if gains:
            lines.append(
                f"The fastest build of {variant.name}, over the fastest dense build of any engine: "
                f"{join(gains)}."
            )
    return lines


# Of one model, of several.
_GAINS: dict[facts.Gain, tuple[str, str]] = {
    "faster": ("pays", "pay"),
    "same": ("does not pay", "do not pay"),
    "slower": ("is slower than dense", "are slower than dense"),
    "unknown": ("has no usable speed-up", "have no usable speed-up"),
}


def verdict(report: Report) -> str:
    """The report in a few sentences, about its most important variant (`facts.headline`)."""
    variant = facts.headline(report)
    if variant is None:
        return "The report holds no pruned variant."
    metric = facts.primary_metric(report)
    kept = ", ".join(filter(None, (phrases.units(variant), phrases.work(variant))))
    parts = (
        f"{_lead(report, variant, metric)} keeps {kept}",
        _quality(variant, metric),
        _speed_range(report, variant),
    )
    sentences = (
        "; ".join(parts) + ".",
        *floor_sentences(report),
        *budgets.search(report).warnings,
        *data_sentences(report),
        *refusals(report),
        in_short(report, variant),
        gate_text.gate_sentence(report),
    )
    return " ".join(filter(None, sentences))


def _quality(variant: Variant, metric: str | None) -> str:
    found = facts.comparison(variant, metric)
    if found is not None:
        return phrases.quality(found)
    if metric is None or variant.quality is None:
        return "quality not measured"
    style = facts.metric_style(metric)
    return f"{style.label} {style.with_unit(facts.value(variant, metric))}, not compared with dense"


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
        kind += " that is not significantly worse than dense"
    if failed and variant.name not in failed:
        kind += " and meets the gate" if "that" in kind else " that meets the gate"
    return f"Of {count} variants {variant.name}, {kind},"


def _speed_range(report: Report, variant: Variant) -> str:
    rows = facts.with_speedup(report, variant)
    if not rows:
        return "speed not measured"
    ends: Sequence[Timing] = [rows[0]]
    if len(rows) > 1:
        ends = [pick(rows, key=lambda row: row.speedup or 0.0) for pick in (min, max)]
    return "speed-up " + " to ".join(
        f"{phrases.speedup(row)} at batch {row.batch_size}" for row in ends
    )
