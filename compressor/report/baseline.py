"""A report beside that of an earlier run: what got worse, significantly or not.

Two runs share no answers, so what is compared is what each run measured against its own dense
model: the difference in quality on the same rows, and the ratio of timings taken in turn. The
interval of the difference of two such numbers follows from their own intervals (MOVER: Zou & Donner
2008, "Construction of confidence intervals about effect measures", Statistics in Medicine 27). It
takes the runs for independent; runs on the same rows agree more than that, so that a change called
significant is one.

A significant loss in the task's main metric fails the gate. Where a dense model's score is at the
metric's floor, or the two runs have other settings for the metric, as BLEU's tokenizer, nothing can
be concluded, and the gate is not passed either. Everything else is told: sizes and
counts are exact, but have limits of their own; speed-ups of two runs are compared on the same
machine alone, and the machine's load may have changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from compressor.errors import InputError
from compressor.evaluation import confidence_bounds
from compressor.report import facts
from compressor.report.schema import Change, Report
from compressor.results import Comparison, Outcome, Timing, Variant

RULE = "baseline"
_VERSIONS = ("version:", "rouge-score:")  # parts of signatures
_MACHINE = ("cpu", "instructions", "cores", "gpu")
_Interval = tuple[float, float]
_Pair = tuple[Variant, Variant]  # earlier, now


def compare_reports(report: Report, earlier: Report) -> list[Change]:
    """Every number that both reports have of a delivered model.

    Models are matched by their names, or where each report has one, these.

    Raises:
        InputError: reports of different tasks, or no model of one is in the other.
    """
    return [
        change
        for pair in _pairs(report, earlier)
        for change in (
            *_quality(report, earlier, pair),
            *_speed(report, earlier, pair),
            *_sizes(pair),
        )
    ]


def outcomes(report: Report, earlier: Report) -> list[Outcome]:
    """A gate outcome for every model that both have: failed by a significant loss of quality.

    Raises:
        InputError: as `compare_reports`, or the main metric is not in both.
    """
    metric = facts.primary_metric(report)
    found = []
    for pair in _pairs(report, earlier):
        changes = _quality(report, earlier, pair)
        change = next((x for x in changes if metric and x.what == _title(metric)), None)
        if change is None:
            raise InputError(
                f"--baseline cannot be checked for {pair[1].name}: its quality is not compared "
                "with the dense model's in both reports; give reports of runs with --test",
                id="baseline-not-measured",
            )
        found.append(_outcome(change, metric or ""))
    return found


def _outcome(change: Change, metric: str) -> Outcome:
    style = facts.metric_style(metric)
    moved = change.after - change.before
    words = {
        "worse": "significantly worse than the baseline",
        "better": "significantly better than the baseline",
        "same": "no significant change from the baseline",
        "unknown": "cannot be compared with the baseline",
    }[change.judgment]
    passed = change.judgment in ("same", "better")
    unclear = change.judgment == "unknown" and change.note
    reason = f": {change.note}" if unclear else ""
    message = (
        f"{change.what} {style.difference(change.after)}, earlier "
        f"{style.difference(change.before)}: a change of {style.difference(moved)} "
        f"{style.interval(change.interval)}, {words}{reason}"
    )
    return Outcome(
        rule=f"{RULE} {metric}",
        variant=change.variant,
        met=passed,
        message=message,
        verdict="passed" if passed else "inconclusive" if unclear else "failed",
        measured=moved,
        interval=change.interval,
        limit=0.0,
    )


def _pairs(report: Report, earlier: Report) -> list[_Pair]:
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


def _title(metric: str) -> str:
    return f"{facts.metric_style(metric).label} against dense"


def _quality(report: Report, earlier: Report, pair: _Pair) -> Iterator[Change]:
    then, now = pair
    for metric in facts.metrics(report):
        before, after = (facts.comparison(variant, metric) for variant in pair)
        if before is None or after is None:
            continue
        bounds = (
            confidence_bounds(before, facts.test_rows(earlier, then)),
            confidence_bounds(after, facts.test_rows(report, now)),
        )
        known = None if None in bounds or other_settings(then, now, metric) else _difference(
            (before.difference, bounds[0]), (after.difference, bounds[1])  # type: ignore[arg-type]
        )  # fmt: skip
        judgment = _judged(known, 0.0)
        if judgment != "worse" and (before.at_floor or after.at_floor):
            judgment = "unknown"
        yield Change(
            variant=now.name,
            what=_title(metric),
            before=before.difference,
            after=after.difference,
            interval=known,
            judgment=judgment,
            note="; ".join(_quality_notes(report, earlier, pair, (before, after))),
        )


def _quality_notes(
    report: Report, earlier: Report, pair: _Pair, found: tuple[Comparison, Comparison]
) -> Iterator[str]:
    before, after = found
    settings = other_settings(*pair, after.metric) or other_settings(*pair, after.metric, True)
    if settings:
        yield f"measured with {settings}"
    if report.test is None or earlier.test is None or report.test.sha256 != earlier.test.sha256:
        yield "on other test rows"
    elif not settings and not math.isclose(before.dense, after.dense, abs_tol=1e-6):
        yield "the dense models differ"
    for text in (facts.floor_text(before, "the earlier dense model's"), facts.floor_text(after)):
        if text:
            yield text


def other_settings(then: Variant, now: Variant, metric: str, versions: bool = False) -> str:
    """Where two signatures of a metric differ, `tok:zh, earlier tok:13a`; empty where nowhere.

    Args:
        versions: whether those of packages count.
    """
    parts = [
        set(model.quality.signatures.get(metric, "").split("|")) if model.quality else set()
        for model in (now, then)
    ]
    own, old = (
        ", ".join(sorted(x for x in mine - other if versions or not x.startswith(_VERSIONS)))
        for mine, other in (parts, reversed(parts))
    )
    return f"{own or 'less'}, earlier {old or 'less'}" if own or old else ""


def _speed(report: Report, earlier: Report, pair: _Pair) -> Iterator[Change]:
    then, now = pair
    before = {row.batch_size: row for row in facts.timings(earlier, then.name)}
    for row in facts.timings(report, now.name):
        old = before.get(row.batch_size)
        if old is None or old.speedup is None or row.speedup is None:
            continue
        note = _speed_note(report, earlier)
        known = None if note else _ratio(old, row)
        yield Change(
            variant=now.name,
            what=f"speed-up at batch {row.batch_size}",
            before=old.speedup,
            after=row.speedup,
            interval=known,
            judgment=_judged(known, 1.0),
            note=note,
        )


def _speed_note(report: Report, earlier: Report) -> str:
    """Why speed-ups of two runs cannot be compared; empty if they can."""
    now, then = report.throughput, earlier.throughput
    assert now is not None
    assert then is not None
    if any(report.hardware.get(name) != earlier.hardware.get(name) for name in _MACHINE):
        return "on another machine"
    for name in ("provider", "device", "threads", "lengths"):
        if getattr(now, name) != getattr(then, name):
            return f"timed with other {name}"
    return ""


def _sizes(pair: _Pair) -> Iterator[Change]:
    then, now = pair
    exact = [
        ("ONNX MB", then.onnx_bytes / 1e6, now.onnx_bytes / 1e6),
        ("parameters", float(then.parameters), float(now.parameters)),
        ("multiply-adds, share of dense", then.macs_share, now.macs_share),
    ]
    for what, before, after in exact:
        if math.isnan(before) or math.isnan(after):
            continue
        same = math.isclose(before, after, rel_tol=1e-9)
        yield Change(
            variant=now.name,
            what=what,
            before=before,
            after=after,
            judgment="same" if same else "worse" if after > before else "better",
        )


def _difference(before: tuple[float, _Interval], after: tuple[float, _Interval]) -> _Interval:
    """The interval of after - before, each given with its own interval (MOVER)."""
    (old, (old_low, old_high)), (new, (new_low, new_high)) = before, after
    below = math.hypot(new - new_low, old_high - old)
    above = math.hypot(new_high - new, old - old_low)
    return new - old - below, new - old + above


def _ratio(before: Timing, after: Timing) -> _Interval | None:
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


def _judged(interval: _Interval | None, neutral: float) -> facts.Judgment:
    if interval is None:
        return "unknown"
    low, high = interval
    return "worse" if high < neutral else "better" if low > neutral else "same"
