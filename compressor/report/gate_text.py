"""Words for outcomes of gate rules, and for changes since an earlier run."""

from __future__ import annotations

from compressor.report import facts, numbers
from compressor.report.schema import Change, Report
from compressor.results import Outcome


def result(outcome: Outcome) -> str:
    """`passed`, `FAILED`, or `inconclusive, counts as failed`."""
    met = "passed" if outcome.met else "FAILED"
    if outcome.verdict == "inconclusive":
        return f"inconclusive, counts as {met}"
    return "passed" if outcome.verdict == "passed" else "FAILED"


def outcome_line(outcome: Outcome) -> str:
    """One rule's outcome for one artifact, with the numbers."""
    return numbers.printable(f"{result(outcome)}  {outcome.variant}: {outcome.message}")


def change_result(change: Change) -> str:
    """Whether a number got worse since an earlier run; sizes and counts need no test."""
    if change.interval is None and change.judgment != "unknown":
        return {"worse": "larger", "better": "smaller", "same": "unchanged"}[change.judgment]
    return facts.JUDGMENT_WORDS[change.judgment]


def change_line(change: Change) -> str:
    """One number beside that of an earlier run."""
    bounds = "" if change.interval is None else f" {numbers.interval(change.interval, 3)}"
    note = f" ({change.note})" if change.note else ""
    return numbers.printable(
        f"{change_result(change)}  {change.variant}: {change.what} {change.after:.6g}, earlier "
        f"{change.before:.6g}{bounds}{note}"
    )


def gate_sentence(report: Report) -> str | None:
    """How many gate rules are met; None without rules."""
    total = len(report.gate)
    unmet = sum(not outcome.met for outcome in report.gate)
    inconclusive = sum(outcome.verdict == "inconclusive" for outcome in report.gate)
    if total == 0:
        return None
    if total == 1:
        which = " (inconclusive)" if inconclusive else ""
        return f"The gate check is {'not met' if unmet else 'met'}{which}."
    which = f" ({inconclusive} inconclusive)" if inconclusive else ""
    if unmet:
        return f"{unmet} of {total} gate checks {'is' if unmet == 1 else 'are'} not met{which}."
    return f"All {total} gate checks are met{which}."
