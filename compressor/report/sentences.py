"""The report in sentences of plain text: the conclusion, its warnings, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from compressor.recovery import RECOVERIES
from compressor.report import baseline, facts, numbers, phrases, searches
from compressor.report.phrases import gate_sentence, join
from compressor.report.rules import MaxDropRule
from compressor.report.schema import Report
from compressor.results import Timing, Variant
from compressor.tasks import TASKS


def verdict(report: Report) -> str:
    """Everything in one paragraph: the conclusion, the warnings and the gate."""
    parts = (conclusion(report), *warnings(report), gate_sentence(report))
    return " ".join(filter(None, parts))


def conclusion(report: Report) -> str:
    """The result of the most important variant (`facts.headline`), in one sentence.

    `heads-50 keeps 72 of 144 heads (50%): 2.5 to 3.6 times as fast and 5.2 times smaller for -0.70
    BLEU [-1.80, +0.60]; over the fastest dense build …; dense int8 alone is …`.
    """
    variant = facts.headline(report)
    if variant is None:
        return "The report holds no pruned variant."
    text = f"{_lead(report, variant)} keeps {phrases.units(variant)}"
    if facts.lost_neurons(variant):
        text += f", {numbers.percent(variant.macs_share, 1)} of the multiply-adds"
    text += f": {_gains(report, variant)}"
    if not facts.with_speedup(report, variant):
        return f"{text}; speed not measured."
    if best := facts.fastest(report, facts.builds(report, variant)):
        text += (
            f"; over the fastest dense build {join([phrases.over_fastest(row) for row in best])}"
        )
    alone = facts.dense_alone(report, variant)
    gains = "was not measured" if alone is None else f"is {_gains(report, alone)}"
    return f"{text}; dense {facts.low_precision(report, variant)} alone {gains}."


def _lead(report: Report, variant: Variant) -> str:
    """The variant's name, and why the report leads with it."""
    judged = [facts.judge(facts.main_comparison(report, x)) for x in facts.delivered(report)]
    if len(judged) == 1:
        return variant.name
    if set(judged) == {"worse"}:
        return (
            f"All {len(judged)} variants are significantly worse than dense; the mildest, "
            f"{variant.name},"
        )
    why = ""
    if facts.judge(facts.main_comparison(report, variant)) in ("same", "better"):
        why = " that is not significantly worse than dense"
    unmet = {outcome.variant for outcome in report.gate if not outcome.met}
    if unmet and variant.name not in unmet:
        why += f" {'and' if why else 'that'} meets the gate"
    return f"Of {len(judged)} variants {variant.name}, the smallest{why},"


def _gains(report: Report, variant: Variant) -> str:
    """How fast, how large, and at what difference in quality."""
    smaller = report.dense.onnx_bytes / max(variant.onnx_bytes, 1)
    size = f"{numbers.fixed(smaller, 1)} times smaller" if round(smaller, 1) > 1 else "not smaller"
    rows = facts.with_speedup(report, variant)
    text = f"{_speed(rows)} and {size}" if rows else size
    compared = facts.main_comparison(report, variant)
    if compared is None:
        return f"{text}; quality not {'compared' if variant.quality else 'measured'}"
    style = facts.metric_style(compared.metric)
    what = f"points of {style.label}" if style.unit == "%" else style.label
    unclear = ", not determined" if facts.judge(compared) == "unknown" else ""
    return (
        f"{text} for {style.difference(compared.difference)} {what} "
        f"{style.interval(compared.interval)}{unclear}"
    )


def _speed(rows: Sequence[Timing]) -> str:
    """`2.5 to 3.6 times as fast`: all that the intervals of the batch sizes allow."""
    parts = []
    if faster := [row for row in rows if facts.pays(row)]:
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
    known = [(x.speedup, *x.speedup_interval) for x in facts.all_timings(report)
             if x.speedup and x.speedup_interval]  # fmt: skip
    if wide := sum(high - low > speedup / 5 for speedup, low, high in known):
        lines.append(
            f"The intervals of {wide} of {len(known)} speed-ups are wider than a fifth: measured "
            "on a busy machine, run again."
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
    for check in build.checks:
        if not check.is_met:
            reached, most = f"{check.largest_difference:.2g}", f"{check.tolerance:.2g}"
            return f"does not pass the check {check.name!r} ({reached}, at most {most})"
    worse = [c.metric for c in build.base_comparisons if facts.judge(c) == "worse"]
    labels = join([facts.metric_style(metric).label for metric in worse])
    return f"is significantly worse than {build.base} in {labels}" if worse else ""


_AGAIN = "compress run -c recipe.yaml -o NEW"


def recommendation(report: Report) -> tuple[str, str]:
    """What to do next, and the command for it, to run in the directory of the artifact."""
    variant = facts.headline(report)
    if variant is None:
        return "", ""
    share = variant.macs_share
    more, less = (f"{_AGAIN} --macs {min(max(share + by, 0.1), 0.95):.2g}" for by in (-0.2, 0.1))
    compared, rows = facts.main_comparison(report, variant), facts.with_speedup(report, variant)
    alone = facts.dense_alone(report, variant)
    # Verdicts of unmet rules about quality, and about speed and size.
    quality, other = set[str](), set[str]()
    for outcome in report.gate:
        if outcome.variant == variant.name and not outcome.met:
            is_quality = outcome.rule.split()[0] in (MaxDropRule.option, baseline.RULE)
            (quality if is_quality else other).add(outcome.verdict)
    if compared is None:
        return "Measure what it costs in quality, on rows with answers.", f"{_AGAIN} --test FILE"
    if not rows:
        return "Measure how fast it is on the machine that will serve it.", f"{_AGAIN} --bench"
    if report.gate and not quality | other:
        directory = shlex.quote(variant.directory)
        return "It meets the gate: use it.", f"compress predict {directory} FILE"
    if "failed" in quality or (not report.gate and facts.judge(compared) == "worse"):
        if any(name in variant.recovery and x.trains for name, x in RECOVERIES.items()):
            return "It loses quality, though it was trained: remove less.", less
        advice, command = "It loses quality: train it on the dense model's predictions", _AGAIN
        if not TASKS[report.task].one_example_per_row:  # whose lines would be no rows
            return f"{advice}.", f"{command} --recover reconstruct+distill"
        return (
            f"{advice}, on as much text of your kind as there is.",
            f"{command} --recover reconstruct+distill --distill-text FILE",
        )
    if alone is not None and not _is_better(report, variant, alone):
        return (
            f"It is not shown to be faster than dense {alone.precision} alone, which loses no "
            "more: take that, or remove more.",
            f"compress export -m MODEL --precision {report.dense.precision},{alone.precision} "
            "-o NEW",
        )
    if "failed" in other or not (report.gate or any(map(facts.pays, rows))):
        return "It is not as fast or as small as it should be: remove more.", more
    if quality or facts.judge(compared) == "unknown":
        return "The test rows do not decide it: take more, or others.", f"{_AGAIN} --test FILE"
    if other:
        return "The timings do not decide it: measure longer.", f"{_AGAIN} --bench-seconds 10"
    rule = f"--max-metric-drop {compared.metric}=1 --min-speedup 1.2@{rows[-1].batch_size}"
    return "Hold it to limits of your own.", f"compress gate report.json {rule}"


def _is_better(report: Report, variant: Variant, alone: Variant) -> bool:
    """Whether a variant is faster than a dense build at a batch size, or loses less."""
    pruned, dense = (facts.main_comparison(report, x) for x in (variant, alone))
    if pruned is None or dense is None or pruned.difference > dense.difference:
        return True
    rates = {row.batch_size: row.sentences_per_second for row in facts.timings(report, alone.name)}
    return any(
        row.sentences_per_second > rates.get(row.batch_size, 0)
        for row in facts.timings(report, variant.name)
    )
