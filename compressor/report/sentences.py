"""The report in sentences of plain text: the conclusion, its warnings, where it was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from compressor.model.sublayers import TOKEN_KIND, TOKEN_UNITS, Mask, layer_of
from compressor.report import facts, numbers
from compressor.report.gains import FastestGain, all_timings
from compressor.report.numbers import join
from compressor.report.schema import Report
from compressor.report.view import BuildSummary, Difference, Headline, SpeedRow
from compressor.steps.results import Outcome, Quality, SpeedSearch, Throughput, Timing, Variant

if TYPE_CHECKING:
    from compressor.tasks.opened import DataRows

APART = 0.15  # difference of the encoder's shares of time and of multiply-adds that is told
WIDE = 0.2  # width of a speed-up's interval, as a share of it, above which it is uncertain


def conclusion(report: Report, headline: Headline | None) -> str:
    """The result of the most important build (`facts.headline`), in one sentence.

    `heads-50 keeps 72 of 144 heads (50%): 2.5 to 3.6 times as fast and 5.2 times smaller at a loss
    of 0.70 BLEU (difference [-1.80, +0.60]); over the fastest dense build here (int8): …; dense
    int8 alone is …`.
    """
    variant = facts.headline(report)
    if variant is None or headline is None:
        return "The report holds no pruned variant."
    text = f"{_lead(report, variant)} keeps {units_kept(variant)}"
    work = f"{numbers.percent(variant.macs_share, 1)} of the multiply-adds"
    if "tokens" in facts.lost(variant):
        text += f", hands on {tokens_handed_on(variant.handed_on)}, and has {work}"
    elif "neurons" in facts.lost(variant):
        text += f", {work}"
    text += f": {gains_text(report, headline.build)}"
    if not _compared_in_speed(headline.build):
        return f"{text}; speed not measured."
    text += over_fastest_dense(report, headline)
    alone = headline.dense_alone
    gained = "was not measured" if alone is None else f"is {gains_text(report, alone)}"
    return f"{text}; dense {facts.low_precision(report, variant)} alone {gained}."


def lengths_text(quality: Quality) -> list[str]:
    """How a translator answers long sources, and how long its answers are; empty of others.

    `bleu 31.20 on 213 rows of more than 20 words`.
    """
    long, texts = quality.long_sources, []
    if long is not None:
        metric = next(iter(quality.metrics))
        rows = f"{long.rows:,} rows of more than {long.words} words"
        score = f"{metric} {facts.metric_style(metric).score(long.score)} on {rows}"
        texts.append(f"{rows}, too few for a score" if long.score is None else score)
    if quality.other_lengths is not None:
        share = numbers.percent(quality.other_lengths, 1, 1)
        texts.append(f"{share} of answers have over 30% more or fewer words than the first one's")
    return texts


def _lead(report: Report, variant: Variant) -> str:
    """The variant's name, and why the report leads with it."""
    judged = [facts.judge_main(report, other) for other in facts.delivered(report)]
    if len(judged) == 1:
        return variant.name
    if set(judged) == {"worse"}:
        return (
            f"{'Both' if len(judged) == 2 else f'All {len(judged)}'} variants are significantly "
            "worse than dense; the mildest, "
            f"{variant.name},"
        )
    why = ""
    if facts.judge_main(report, variant) in ("same", "better"):
        why = " that is not significantly worse than dense"
    unmet = {outcome.variant for outcome in report.gate if not outcome.met}
    if unmet and variant.name not in unmet:
        why += f" {'and' if why else 'that'} meets the gate"
    return f"Of {len(judged)} variants {variant.name}, the smallest{why},"


def units_kept(variant: Variant) -> str:
    """`72 of 144 heads (50%) and 96 of 288 neurons (33%) in 10 of 12 layers`.

    Neurons are mentioned if some were removed, layers if whole ones were dropped.
    """
    parts = []
    for which in ("heads", "neurons") if "neurons" in facts.lost(variant) else ("heads",):
        kept, total = facts.kept(variant, which), facts.total(variant, which)
        parts.append(f"{kept:,} of {total:,} {which} ({numbers.percent(kept, total)})")
    text = " and ".join(parts)
    if variant.dropped_layers:
        layers = len({layer_of(name) for name in variant.heads})
        text += f" in {layers - len(variant.dropped_layers)} of {layers} layers"
    return text


def tokens_handed_on(tenths: Sequence[int]) -> str:
    """`100, 50 and 30% of a row's tokens from layer to layer`."""
    return f"{numbers.shares(tenths)} of a row's tokens from layer to layer"


def units_by_kind(mask: Mask) -> str:
    """`cross 30 of 48; hands on 50 and 30% of …`: kinds of sublayers that lost units."""
    texts = [
        f"{kind} {mask.count(kind):,} of {mask.total(kind):,}"
        for kind in mask.kinds()
        if mask.count(kind) < mask.total(kind) and kind != TOKEN_KIND
    ]
    tenths = mask.handed_on()
    if min(tenths, default=TOKEN_UNITS) < TOKEN_UNITS:
        texts.append(f"hands on {tokens_handed_on(tenths)}")
    return "; ".join(texts)


def gains_text(report: Report, build: BuildSummary) -> str:
    """How fast, how large, and at what difference in quality, against dense."""
    smaller = report.dense.onnx_bytes / max(build.onnx_bytes, 1)
    size = f"{numbers.fixed(smaller, 1)} times smaller" if round(smaller, 1) > 1 else "not smaller"
    rows = _compared_in_speed(build)
    text = f"{speed_gained(rows)} and {size}" if rows else size
    if build.difference is None:
        return f"{text}; quality not {'measured' if build.score is None else 'compared'}"
    return f"{text} {quality_cost(build.difference)}"


def _compared_in_speed(build: BuildSummary) -> list[SpeedRow]:
    return [row for row in build.speeds if row.timing.speedup is not None]


def quality_cost(difference: Difference) -> str:
    """`at a significant loss of 3.01 BLEU (difference [-3.60, -2.41])`, or a gain, or neither."""
    style, value = difference.style, difference.difference
    what = f"points of {style.label}" if style.unit == "%" else style.label
    interval = f"(difference {style.interval(difference.interval)})"
    unclear = ", not determined" if difference.judgment == "unknown" else ""
    shown = style.score(abs(value))
    if math.isnan(value):
        return f"at a difference of NaN {what}{unclear}"
    if not shown.strip("0.,") and difference.judgment in ("same", "unknown"):
        return f"at the same {style.label} {interval}{unclear}"
    significant = "significant " if difference.judgment in ("worse", "better") else ""
    kind = "loss" if value < 0 else "gain"
    return f"at a {significant}{kind} of {shown} {what} {interval}{unclear}"


def speed_gained(rows: Sequence[SpeedRow]) -> str:
    """`2.5 to 3.6 times as fast`: the smallest and the largest speed-up that pays.

    Batch sizes at which it does not pay follow with their speed-ups and intervals.
    """
    parts = []
    if faster := [row.timing for row in rows if row.gain == "faster"]:
        parts.append(f"{numbers.span([row.speedup or 0.0 for row in faster])} times as fast")
        if len(faster) < len(rows):
            parts[0] += f" at batch {join([str(row.batch_size) for row in faster])}"
    for gain, what in (
        ("same", "with no measurable gain in speed"),
        ("slower", "slower"),
        ("unknown", "without a usable speed-up"),
    ):
        timed = [row.timing for row in rows if row.gain == gain]
        if timed:
            batches = [f"{row.batch_size} ({speedup(row)})" for row in timed]
            parts.append(f"{what} at batch {join(batches)}")
    return ", ".join(parts)


def speedup(timing: Timing) -> str:
    """The speed-up over dense with its interval: `0.99 [0.97, 1.01]`."""
    return numbers.ratio(timing.speedup, timing.speedup_interval)


def over_fastest_dense(report: Report, headline: Headline) -> str:
    """`; over the fastest dense build here (int8): 2.0 to 2.9 times`; empty if it is not known.

    The build is named where another one than the headline's is the fastest of its model.
    """
    made = [gain for gain in headline.over_fastest if math.isfinite(gain.ratio)]
    if not made:
        return ""
    sizes: dict[str, list[str]] = {}
    for gain in made:
        sizes.setdefault(_how(report, gain.dense), []).append(str(gain.batch_size))
    which = next(iter(sizes))
    if len(sizes) > 1:
        which = join([f"{how} at batch {join(batches)}" for how, batches in sizes.items()])
    names = list(dict.fromkeys(gain.build for gain in made))
    others = "" if names == [headline.build.name] else f", by {join(names)}"
    times = numbers.span([gain.ratio for gain in made])
    return f"; over the fastest dense build here ({which}): {times} times{others}"


def _how(report: Report, name: str) -> str:
    """The precision of a build, and its engine unless that is the default one."""
    build = next(model for model in facts.models(report) if model.name == name)
    return build.precision if build.in_default_engine else f"{build.precision} in {build.engine}"


def gain_with_names(gain: FastestGain) -> str:
    """`1.25 [1.20, 1.30] at batch 16 (heads-50-int8 over dense-int8)`."""
    ratio = numbers.ratio(gain.ratio, gain.interval)
    return f"{ratio} at batch {gain.batch_size} ({gain.build} over {gain.dense})"


# --- warnings


def floors(report: Report) -> list[str]:
    """In which metrics nothing can be concluded, because the dense model's score is their floor."""
    texts = (facts.floor_text(x) for variant in report.variants for x in variant.comparisons)
    return [f"{text[0].upper()}{text[1:]}." for text in dict.fromkeys(filter(None, texts))]


def few_rows(headline: Headline | None) -> list[str]:
    """A warning where the headline's build was judged on few test rows."""
    difference = headline.build.difference if headline else None
    if difference is None or not difference.has_few_rows:
        return []
    style, (low, _) = difference.style, difference.interval
    counted = (
        f"{difference.rows:,} test {style.counted} are" if difference.rows else "Test rows are"
    )
    text = f"{counted} few: the interval of the difference in {style.label} is "
    text += style.interval(difference.interval)
    if low < 0:
        text += f", so a loss of {style.score(-low)} is not ruled out"
    return [f"{text}."]


def shared_rows(shared: int, total: int) -> str:
    """`3 of 24 test rows are calibration rows too, so …`, without the final full stop."""
    are = "is a calibration row" if shared == 1 else "are calibration rows"
    return f"{shared:,} of {total:,} test rows {are} too, so the loss on new text can be greater"


def warning_of_shared_rows(data: DataRows) -> str:
    """The warning that test rows are calibration rows, too; empty if none is."""
    shared = data.shared
    if not shared or data.test is None:
        return ""
    text = shared_rows(shared, len(data.test.sources))
    return f"warning: {text}; give other --test rows"


def time_beside_products(report: Report) -> list[str]:
    """That the dense model's time goes elsewhere than its multiply-adds; empty if it does not.

    Only where units were chosen by counts.
    """
    if isinstance(report.search, SpeedSearch):
        return []
    apart = [
        (row.encoder_time, row.encoder_macs, row.batch_size)
        for row in all_timings(report)
        if row.encoder_time is not None and row.encoder_macs is not None
    ]
    far = [x for x in apart if abs(x[0] - x[1]) > APART]
    if not far:
        return []
    row = max(far, key=lambda row: abs(row[0] - row[1]))
    shares = [numbers.percent(x, 1) for share in row[:2] for x in (share, 1 - share)]
    return [
        f"At batch {row[2]} the dense model's encoder and decoder take {shares[0]} and {shares[1]} "
        f"of the time, for {shares[2]} and {shares[3]} of the multiply-adds, by which units were "
        "chosen: --speedup chooses by time."
    ]


def uncertain_speedups(report: Report) -> list[str]:
    """How many speed-ups have an interval wider than `WIDE`."""
    known = [
        (row.speedup, *row.speedup_interval)
        for row in all_timings(report)
        if row.speedup and row.speedup_interval
    ]
    count = sum(high - low > WIDE * ratio for ratio, low, high in known)
    if not count:
        return []
    are, intervals = ("is", "interval") if count == 1 else ("are", "intervals")
    return [
        f"{count} of {len(known)} speed-ups {are} uncertain ({intervals} over "
        f"{numbers.percent(WIDE, 1)}); rerun on an idle machine."
    ]


def why_not_default(build: Variant) -> str:
    """Why a precision must not be its artifact's default; empty if it may be."""
    for check in build.checks:
        if not check.is_met:
            reached, most = f"{check.largest_difference:.2g}", f"{check.tolerance:.2g}"
            return f"does not pass the check {check.name!r} ({reached}, at most {most})"
    rows = 0 if build.quality is None else build.quality.rows
    worse = [x.metric for x in build.base_comparisons if facts.judge(x, rows) == "worse"]
    labels = join([facts.metric_style(metric).label for metric in worse])
    return f"is significantly worse than {build.base} in {labels}" if worse else ""


def refused_build(report: Report, build: Variant, summary: BuildSummary) -> str:
    """Why a build is not its artifact's default, and what it would give; empty if it may be."""
    reason = why_not_default(build)
    if not reason:
        return ""
    return f"{build.name} {reason}, so it is not the default; it is {gains_text(report, summary)}."


# --- where it was measured, and the gate


def measured_on(report: Report) -> str:
    """On which machine, with what, on how many rows, and when."""
    timed = report.throughput
    processor = "gpu" if timed and timed.device != "cpu" else "cpu"
    parts = [report.hardware.get(processor) or "an unknown processor"]
    if cores := report.hardware.get("cores"):
        parts.append(f"{cores} core{'' if cores == '1' else 's'}")
    if timed:
        parts.append(f"{timed.threads} thread{'' if timed.threads == 1 else 's'}")
        parts.append(timed.provider)
    if report.test:
        parts.append(f"{report.test.rows:,} test rows")
    return f"Measured on {', '.join(parts)}; {report.created[:10]}."


def providers(throughput: Throughput) -> str:
    """The providers that ran the builds, with the CUDA graphs they had captured at the end."""
    last = {row.variant: row.provider or throughput.provider for row in throughput.rows}
    builds = {ran: [name for name in last if last[name] == ran] for ran in last.values()}
    if len(builds) < 2:
        return next(iter(builds), throughput.provider)
    return "; ".join(f"{ran} ({join(names)})" for ran, names in builds.items())


def outcome_result(outcome: Outcome) -> str:
    """`passed`, `FAILED`, or `inconclusive, counts as FAILED`."""
    met = "passed" if outcome.met else "FAILED"
    return f"inconclusive, counts as {met}" if outcome.verdict == "inconclusive" else met


def outcome_line(outcome: Outcome) -> str:
    """One rule's outcome for one artifact, with the numbers."""
    return numbers.printable(f"{outcome_result(outcome)}  {outcome.variant}: {outcome.message}")


def gate_sentence(report: Report) -> str:
    """How many checks of the gate are met; empty without rules."""
    if not report.gate:
        return ""
    met = sum(outcome.met for outcome in report.gate)
    unclear = sum(outcome.verdict == "inconclusive" for outcome in report.gate)
    which = f" ({unclear} inconclusive)" if unclear else ""
    return f"Gate: {met} of {len(report.gate)} checks met{which}."
