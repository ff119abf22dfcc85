"""A report beside that of an earlier run: what got worse, significantly or not.

Two runs share no answers, so what is compared is what each run measured against its own dense
model: the difference in quality, and the ratio of timings taken in turn. The interval of the
difference of two such numbers follows from their own intervals (MOVER: Zou & Donner 2008,
"Construction of confidence intervals about effect measures", Statistics in Medicine 27). It takes
the runs for independent; runs on the same rows agree more, so that a change called significant is.

A significant loss in the task's main metric fails the gate. Where nothing can be concluded, because
a dense model's score is at the metric's floor or the metric was computed in another way, the gate
is not passed either. Speed-ups are compared on the same machine alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from compressor.errors import InputError
from compressor.report import facts
from compressor.report.schema import Change, Report
from compressor.results import Interval, Outcome, Timing, Variant

RULE = "baseline"
_WORDS: dict[facts.Judgment, str] = {
    "worse": "significantly worse than the baseline",
    "better": "significantly better than the baseline",
    "same": "no significant change from the baseline",
    "unknown": "cannot be compared with the baseline",
}


def compare_reports(report: Report, earlier: Report) -> list[Change]:
    """Every number that both reports have of a delivered model.

    Models are matched by their names; two single models are matched whatever their names.

    Raises:
        InputError: reports of different tasks, or no model of one is in the other.
    """
    changes: list[Change] = []
    for then, now in _pairs(report, earlier):
        for metric in facts.metrics(report):
            changes += _quality(report, earlier, then, now, metric)
        changes += _speed(report, earlier, then, now)
        changes += _sizes(then, now)
    return changes


def outcomes(report: Report, earlier: Report) -> list[Outcome]:
    """A gate outcome for every model that both have: failed by a significant loss of quality.

    Raises:
        InputError: as `compare_reports`, or the main metric is not in both.
    """
    metric, made = facts.primary_metric(report), []
    for then, now in _pairs(report, earlier):
        change = next(_quality(report, earlier, then, now, metric), None) if metric else None
        if metric is None or change is None:
            raise InputError(
                f"--baseline cannot be checked for {now.name}: its quality is not compared "
                "with the dense model's in both reports; give reports of runs with --test",
                id="baseline-not-measured",
            )
        style, moved = facts.metric_style(metric), change.after - change.before
        unclear = change.judgment == "unknown" and bool(change.note)
        passed = change.judgment in ("same", "better")
        message = (
            f"{change.what} {style.difference(change.after)}, earlier "
            f"{style.difference(change.before)}: a change of {style.difference(moved)} "
            f"{style.interval(change.interval)}, {_WORDS[change.judgment]}"
        )
        made.append(
            Outcome(
                rule=f"{RULE} {metric}",
                variant=change.variant,
                met=passed,
                message=f"{message}: {change.note}" if unclear else message,
                verdict="passed" if passed else "inconclusive" if unclear else "failed",
                measured=moved,
                interval=change.interval,
                limit=0.0,
            )
        )
    return made


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
) -> Iterator[Change]:
    before, after = (facts.comparison(variant, metric) for variant in (then, now))
    if before is None or after is None:
        return
    parts = [
        set(model.quality.signatures.get(metric, "").split("|")) if model.quality else set()
        for model in (then, now)
    ]
    versions = ("version:", "rouge-score:")
    settings = [{x for x in of_run if not x.startswith(versions)} for of_run in parts]
    notes = []
    if parts[0] != parts[1]:
        old, new = settings if settings[0] != settings[1] else parts
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
    if old_bounds and bounds and settings[0] == settings[1]:
        interval = _difference((before.difference, old_bounds), (after.difference, bounds))
    judgment = _judged(interval, 0.0)
    if judgment != "worse" and (before.at_floor or after.at_floor):
        judgment = "unknown"
    yield Change(
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
    note = ""
    settings = ("provider", "device", "threads", "lengths")
    other = [name for name in settings if getattr(run, name) != getattr(old_run, name)]
    machine = ("cpu", "instructions", "cores", "gpu")
    if any(report.hardware.get(name) != earlier.hardware.get(name) for name in machine):
        note = "on another machine"
    elif other:
        note = f"timed with other {other[0]}"
    known = {row.batch_size: row for row in facts.with_speedup(earlier, then)}
    for row in facts.with_speedup(report, now):
        before = known.get(row.batch_size)
        if before is not None:
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
    exact = [
        ("ONNX MB", then.onnx_bytes / 1e6, now.onnx_bytes / 1e6),
        ("parameters", float(then.parameters), float(now.parameters)),
        ("multiply-adds, share of dense", then.macs_share, now.macs_share),
    ]
    for what, before, after in exact:
        if math.isnan(before) or math.isnan(after):
            continue
        same = math.isclose(before, after, rel_tol=1e-9)
        judgment: facts.Judgment = "same" if same else "worse" if after > before else "better"
        yield Change(variant=now.name, what=what, before=before, after=after, judgment=judgment)


def _difference(before: tuple[float, Interval], after: tuple[float, Interval]) -> Interval:
    """The interval of after - before, each with its own interval (MOVER)."""
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
