"""The report in sentences: the conclusion, its warnings, and what to do next.

They are plain text, shared by the pages, the terminal and scripts; a format escapes them. How
models were measured stands in the notes and captions of `tables`.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from compressor.recovery import RECOVERIES
from compressor.report import baseline, facts, numbers, phrases, searches
from compressor.report.phrases import gate_sentence, join
from compressor.report.rule_kinds import MaxDropRule
from compressor.report.schema import Report
from compressor.results import HALF_RANGE, Timing, Variant


def verdict(report: Report) -> str:
    """Everything in one paragraph: the conclusion, the warnings and the gate."""
    parts = (conclusion(report), *warnings(report), gate_sentence(report))
    return " ".join(filter(None, parts))


def conclusion(report: Report) -> str:
    """The result of the most important variant (`facts.headline`), in one sentence.

    `heads-50 keeps 72 of 144 heads (50%): 2.5 to 3.6 times as fast and 5.2 times smaller for -0.70
    BLEU [-1.80, +0.60]; dense int8 alone is …`.
    """
    variant = facts.headline(report)
    if variant is None:
        return "The report holds no pruned variant."
    kept = f"{_lead(report, variant)} keeps {phrases.units(variant)}"
    if facts.lost_neurons(variant):
        kept += f", {numbers.percent(variant.macs_share, 1)} of the multiply-adds"
    gains = _gains(report, variant)
    if gains is None:
        speed = _speed(facts.with_speedup(report, variant))
        return f"{kept}; {_quality(report, variant)}; {speed}."
    alone = facts.dense_alone(report, variant)
    dense = None if alone is None else _gains(report, alone)
    end = "was not measured" if dense is None else f"is {dense}"
    return f"{kept}: {gains}; dense {facts.low_precision(report, variant)} alone {end}."


def _lead(report: Report, variant: Variant) -> str:
    """The variant's name, and why the report leads with it."""
    variants, metric = facts.delivered(report), facts.primary_metric(report)
    count = len(variants)
    if count == 1:
        return variant.name
    if all(facts.judge(facts.comparison(x, metric)) == "worse" for x in variants):
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


def _gains(report: Report, variant: Variant) -> str | None:
    """How fast, how large, and at what difference in quality; None if not all was measured."""
    rows = facts.with_speedup(report, variant)
    compared = facts.comparison(variant, facts.primary_metric(report))
    if not rows or compared is None or facts.judge(compared) == "unknown":
        return None
    smaller = report.dense.onnx_bytes / variant.onnx_bytes
    size = f"{numbers.fixed(smaller, 1)} times smaller" if round(smaller, 1) > 1 else "not smaller"
    style = facts.metric_style(compared.metric)
    what = f"points of {style.label}" if style.unit == "%" else style.label
    return (
        f"{_speed(rows)} and {size} for {style.difference(compared.difference)} {what} "
        f"{style.interval(compared.interval)}"
    )


def _quality(report: Report, variant: Variant) -> str:
    """`BLEU 33.90 against 34.21 (-0.31 [-0.62, +0.01], p = 0.062): no significant difference`."""
    metric = facts.primary_metric(report)
    compared = facts.comparison(variant, metric)
    if compared is not None:
        style = facts.metric_style(compared.metric)
        judgment = facts.JUDGMENT_WORDS[facts.judge(compared)]
        return (
            f"{style.label} {style.with_unit(compared.pruned)} against "
            f"{style.with_unit(compared.dense)} ({phrases.change(compared)}, "
            f"{numbers.p_equation(compared.p_value)}): {judgment}"
        )
    if metric is None or variant.quality is None:
        return "quality not measured"
    style = facts.metric_style(metric)
    return f"{style.label} {style.with_unit(facts.value(variant, metric))}, not compared with dense"


def _speed(rows: Sequence[Timing]) -> str:
    """`2.5 to 3.6 times as fast`: all that the intervals of the batch sizes allow.

    An interval that reaches below 1 shows no gain, and is given as it is.
    """
    if not rows:
        return "speed not measured"
    faster = [row for row in rows if facts.pays(row)]
    parts = []
    if faster:
        bounds = [row.speedup_interval or (row.speedup or 0.0,) * 2 for row in faster]
        low, high = min(x for x, _ in bounds), max(x for _, x in bounds)
        digits = 1 if low >= 1.05 else 2  # less would be written as no gain
        ends = dict.fromkeys(numbers.fixed(end, digits) for end in (low, high))
        parts.append(f"{' to '.join(ends)} times as fast")
        if len(faster) < len(rows):
            parts[0] += f" at batch {join([str(row.batch_size) for row in faster])}"
    for gain, what in (
        ("same", "with no measurable gain in speed"),
        ("slower", "slower"),
        ("unknown", "without a usable speed-up"),
    ):
        batches = [
            f"{row.batch_size} ({phrases.speedup(row)})" for row in rows if facts.gain(row) == gain
        ]
        if batches:
            parts.append(f"{what} at batch {join(batches)}")
    return ", ".join(parts)


def warnings(report: Report) -> list[str]:
    """What the numbers do not show, and which of them to doubt."""
    lines = floors(report) + searches.describe(report).warnings
    if report.test is not None and report.shared_rows:
        lines.append(f"{phrases.shared_rows(report.shared_rows, report.test.rows)}.")
    rows = [row for row in facts.all_timings(report) if row.speedup is not None]
    if wide := sum(map(facts.is_wide, rows)):
        lines.append(
            f"The intervals of {wide} of {len(rows)} speed-ups are wider than a fifth: measured on "
            "a busy machine, run again."
        )
    for variant in facts.pruned(report):
        for build in facts.precisions(report, variant):
            if build.base and (reason := _not_default(build)):
                lines.append(f"{build.name} {reason}, so it is not the default.")
    return lines


def floors(report: Report) -> list[str]:
    """In which metrics nothing can be concluded, because the dense model's score is their floor."""
    texts = (facts.floor_text(x) for variant in report.variants for x in variant.comparisons)
    return [f"{text[0].upper()}{text[1:]}." for text in dict.fromkeys(filter(None, texts))]


def _not_default(build: Variant) -> str:
    """Why a precision must not be its artifact's default; empty if it may be."""
    exceeded = next((check for check in build.checks if not check.is_met), None)
    if exceeded and exceeded.name == HALF_RANGE:
        return (
            f"computes values of {exceeded.largest_difference:.2g} times float16's range, "
            f"more than the {exceeded.tolerance:.2g} that is safe"
        )
    if exceeded:
        return (
            f"differs from PyTorch by {exceeded.largest_difference:.2g} of the largest logit, "
            f"more than the {exceeded.tolerance:.2g} that is usual"
        )
    worse = [c.metric for c in build.base_comparisons if facts.judge(c) == "worse"]
    if not worse:
        return ""
    labels = join([facts.metric_style(metric).label for metric in worse])
    return f"is significantly worse than {build.base} in {labels}"


_AGAIN = "compress run -c recipe.yaml -o NEW"


def recommendation(report: Report) -> tuple[str, str]:
    """What to do next, and the command for it, to run in the directory of the artifact.

    Empty texts if there is no variant.
    """
    variant = facts.headline(report)
    if variant is None:
        return "", ""
    compared = facts.comparison(variant, facts.primary_metric(report))
    rows = facts.with_speedup(report, variant)
    alone = facts.dense_alone(report, variant)
    unmet = [x for x in report.gate if x.variant == variant.name and not x.met]
    failed = {x.rule.split()[0] for x in unmet if x.verdict == "failed"}
    of_quality = {MaxDropRule.option, baseline.RULE}
    if compared is None:
        return "Measure what it costs in quality, on rows with answers.", f"{_AGAIN} --test FILE"
    if not rows:
        return "Measure how fast it is on the machine that will serve it.", f"{_AGAIN} --bench"
    if report.gate and not unmet:
        directory = shlex.quote(variant.directory)
        return "It meets the gate: use it.", f"compress predict {directory} FILE"
    worse = not report.gate and facts.judge(compared) == "worse"
    if worse or failed & of_quality:
        if any(name in variant.recovery and x.trains for name, x in RECOVERIES.items()):
            return "It loses quality, though it was trained: remove less.", _rerun(variant, 0.1)
        return (
            "It loses quality: train it on the dense model's predictions, on as much text of your "
            "kind as there is.",
            f"{_AGAIN} --recover reconstruct+distill --distill-text FILE",
        )
    if alone is not None and not _is_better(report, variant, alone):
        return (
            f"It is not shown to be faster than dense {alone.precision} alone, which loses no "
            "more: take that, or remove more.",
            f"compress export -m MODEL --precision {report.dense.precision},{alone.precision} "
            "-o NEW",
        )
    if failed:
        return "It is slower or larger than the gate allows: remove more.", _rerun(variant, -0.2)
    if unmet and not of_quality & {x.rule.split()[0] for x in unmet}:
        return "The timings do not decide it: measure longer.", f"{_AGAIN} --bench-seconds 10"
    if unmet or facts.judge(compared) == "unknown":
        return "The test rows do not decide it: take more, or others.", f"{_AGAIN} --test FILE"
    if not any(map(facts.pays, rows)):
        return "It is not faster on this machine: remove more.", _rerun(variant, -0.2)
    rule = f"--max-metric-drop {compared.metric}=1 --min-speedup 1.2@{rows[-1].batch_size}"
    return "Hold it to limits of your own.", f"compress gate report.json {rule}"


def _rerun(variant: Variant, by: float) -> str:
    """The run once more, with another share of the multiply-adds."""
    share = variant.macs_share + by if math.isfinite(variant.macs_share) else 0.5
    return f"{_AGAIN} --macs {min(max(share, 0.1), 0.95):.2g}"


def _is_better(report: Report, variant: Variant, alone: Variant) -> bool:
    """Whether a variant is faster than a dense build at a batch size, or loses less."""
    metric = facts.primary_metric(report)
    pruned, dense = (facts.comparison(x, metric) for x in (variant, alone))
    if pruned is None or dense is None or pruned.difference > dense.difference:
        return True
    rates = {row.batch_size: row.sentences_per_second for row in facts.timings(report, alone.name)}
    return any(
        row.sentences_per_second > rates.get(row.batch_size, 0)
        for row in facts.timings(report, variant.name)
    )
