"""A report beside that of an earlier run: what got worse, significantly or not.

Two runs share no answers, so each model's difference from its own dense model is compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from compressor.errors import InputError
from compressor.report import facts, gains
from compressor.report.schema import Change, Report
from compressor.steps.results import Interval, Outcome, Timing, Variant, Verdict

RULE = "baseline"


def compare(report: Report, earlier: Report) -> tuple[list[Outcome], list[Change]]:
    """Compare two reports of the same task, model by model.

    A significant loss in the main metric fails the gate, and so does one that cannot be judged.
    Models are matched by their names; two single models are matched whatever their names.

    Args:
        report: The report to judge.
        earlier: That of an earlier run.

    Returns:
        A gate outcome for every model that both have, and every number that both have of it.

    Raises:
        InputError: reports of different tasks, without a common model, or without its quality.
    """
    outcomes, changes = [], []
    for then, now in _pairs(report, earlier):
        quality = {
            metric: change
            for metric in facts.metrics(report)
            if (change := _quality(report, earlier, then, now, metric))
        }
        metric = facts.primary_metric(report)
        if metric not in quality:
            raise InputError(
                f"--baseline cannot be checked for {now.name}: its quality is not compared "
                "with the dense model's in both reports; give reports of runs with --test",
                id="baseline-not-measured",
            )
        outcomes.append(_outcome(quality[metric], metric))
        changes += [*quality.values(), *_speed(report, earlier, then, now), *_sizes(then, now)]
    return outcomes, changes


def _outcome(change: Change, metric: str) -> Outcome:
    style, moved = facts.metric_style(metric), change.after - change.before
    unclear = change.judgment == "unknown" and bool(change.note)
    verdict: Verdict = "passed" if change.judgment in ("same", "better") else "failed"
    verdict = "inconclusive" if unclear else verdict
    is_open = change.judgment in ("same", "unknown")  # a note says what that is worth
    message = (
        f"{change.what} {style.difference(change.after)}, earlier "
        f"{style.difference(change.before)}: a change of {style.difference(moved)} "
        f"{style.interval(change.interval)}, {facts.JUDGMENT_WORDS[change.judgment]}"
    )
    return Outcome(
        rule=f"{RULE} {metric}",
        variant=change.variant,
        met=verdict == "passed",
        message=f"{message}: {change.note}" if change.note and is_open else message,
        verdict=verdict,
        measured=moved,
        interval=change.interval,
        limit=0.0,
    )


def _pairs(report: Report, earlier: Report) -> list[tuple[Variant, Variant]]:
    """The earlier and the present model of each name."""
    if report.task != earlier.task:
        raise InputError(
            f"--baseline is the report of a {earlier.task} model, and the other one of a "
            f"{report.task} model; give an earlier report of this one",
            id="baseline-of-another-task",
        )
    now, then = facts.delivered(report), facts.delivered(earlier)
    if len(now) == len(then) == 1:
        return [(then[0], now[0])]
    known = {variant.family: variant for variant in then}
    pairs = [(known[model.family], model) for model in now if model.family in known]
    if not pairs:
        raise InputError(
            f"--baseline has no model of the names {', '.join(x.family for x in now) or 'none'}, "
            f"only {', '.join(known) or 'none'}; give the report of a run with the same budgets",
            id="baseline-without-counterpart",
        )
    return pairs


def _quality(
    report: Report, earlier: Report, then: Variant, now: Variant, metric: str
) -> Change | None:
    before, after = (facts.comparison(variant, metric) for variant in (then, now))
    if before is None or after is None:
        return None
    old, new = (
        set(model.quality.signatures.get(metric, "").split("|")) if model.quality else set()
        for model in (then, now)
    )
    # Another version of a package does not compute another metric.
    other = {part for part in old ^ new if not part.startswith(("version:", "rouge-score:"))}
    notes = []
    if old != new:
        notes.append(
            f"measured with {', '.join(sorted(new - old)) or 'less'}, earlier "
            f"{', '.join(sorted(old - new)) or 'less'}"
        )
    if report.test is None or earlier.test is None or report.test.sha256 != earlier.test.sha256:
        notes.append("on other test rows")
    elif not notes and not math.isclose(before.dense, after.dense, abs_tol=1e-6):
        notes.append("the dense models differ")
    notes += [facts.floor_text(before, "the earlier dense model's"), facts.floor_text(after)]
    old_bounds, bounds = facts.bounds(earlier, then, before), facts.bounds(report, now, after)
    interval = None
    if old_bounds and bounds and not other:
        interval = _difference((before.difference, old_bounds), (after.difference, bounds))
    judgment = _judged(interval, 0.0)
    if judgment == "same" and any(
        facts.are_few(compared, facts.test_rows(of, model))
        for of, model, compared in ((earlier, then, before), (report, now, after))
    ):
        notes.append("few rows")
    if judgment != "worse" and (before.at_floor or after.at_floor):
        judgment = "unknown"
    return Change(
        variant=now.name,
        what=f"{facts.metric_style(metric).label} against dense",
        before=before.difference,
        after=after.difference,
        interval=interval,
        judgment=judgment,
        note="; ".join(filter(None, notes)),
    )


def _speed(report: Report, earlier: Report, then: Variant, now: Variant) -> Iterator[Change]:
    run, old_run = report.throughput, earlier.throughput
    if run is None or old_run is None:
        return
    machine, note = ("cpu", "instructions", "cores", "gpu"), ""
    settings = ("provider", "device", "threads", "lengths")
    if any(report.hardware.get(name) != earlier.hardware.get(name) for name in machine):
        note = "on another machine"
    elif other := [name for name in settings if getattr(run, name) != getattr(old_run, name)]:
        note = f"timed with other {other[0]}"
    known = {row.batch_size: row for row in gains.with_speedup(earlier, then)}
    for row in gains.with_speedup(report, now):
        if before := known.get(row.batch_size):
            interval = None if note else _ratio(before, row)
            yield Change(
                variant=now.name,
                what=f"speed-up at batch {row.batch_size}",
                before=before.speedup or 0.0,
                after=row.speedup or 0.0,
                interval=interval,
                judgment=_judged(interval, 1.0),
                note=note,
            )


def _sizes(then: Variant, now: Variant) -> Iterator[Change]:
    for what, before, after in (
        ("ONNX MB", then.onnx_bytes / 1e6, now.onnx_bytes / 1e6),
        ("parameters", float(then.parameters), float(now.parameters)),
        ("multiply-adds, share of dense", then.macs_share, now.macs_share),
    ):
        same = math.isclose(before, after, rel_tol=1e-9)
        judgment: facts.Judgment = "same" if same else "worse" if after > before else "better"
        yield Change(variant=now.name, what=what, before=before, after=after, judgment=judgment)


def _difference(before: tuple[float, Interval], after: tuple[float, Interval]) -> Interval:
    """The interval of after - before, each with its own interval, as if they were independent.

    MOVER: Zou & Donner 2008, Statistics in Medicine 27. Runs on the same rows agree more.
    """
    (old, (old_low, old_high)), (new, (new_low, new_high)) = before, after
    below = math.hypot(new - new_low, old_high - old)
    above = math.hypot(new_high - new, old - old_low)
    return new - old - below, new - old + above


def _ratio(before: Timing, after: Timing) -> Interval | None:
    """The interval of the later speed-up over the earlier one, by their logarithms."""
    logs = []
    for row in (before, after):
        values = (row.speedup or 0.0, *(row.speedup_interval or (0.0, 0.0)))
        if not all(math.isfinite(value) and value > 0 for value in values):
            return None
        ratio, low, high = map(math.log, values)
        logs.append((ratio, (low, high)))
    low, high = _difference(*logs)
    return math.exp(low), math.exp(high)


def _judged(interval: Interval | None, neutral: float) -> facts.Judgment:
    if interval is None:
        return "unknown"
    low, high = interval
    return "worse" if high < neutral else "better" if low > neutral else "same"
