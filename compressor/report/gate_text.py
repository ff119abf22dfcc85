"""What reports and messages say of gate rules, and of changes since an earlier run."""

from __future__ import annotations

from compressor.report import facts, numbers
from compressor.report.schema import Change, Report
from compressor.results import Outcome


def result(outcome: Outcome) -> str:
    """`passed`, `FAILED`, or `inconclusive, counts as failed`."""
    if outcome.verdict != "inconclusive":
        return "passed" if outcome.verdict == "passed" else "FAILED"
    return f"inconclusive, counts as {'passed' if outcome.met else 'FAILED'}"


def outcome_line(outcome: Outcome) -> str:
    """One rule's outcome for one artifact, with the numbers."""
    return numbers.printable(f"{result(outcome)}  {outcome.variant}: {outcome.message}")


def change_line(change: Change) -> str:
    """One number beside that of an earlier run."""
    bounds = "" if change.interval is None else f" {numbers.interval(change.interval, 3)}"
    note = f" ({change.note})" if change.note else ""
    return numbers.printable(
        f"{change_result(change)}  {change.variant}: {change.what} {change.after:.6g}, earlier "
        f"{change.before:.6g}{bounds}{note}"
    )


def change_result(change: Change) -> str:
    """What became of a number since an earlier run; sizes and counts need no test."""
    if change.interval is None and change.judgment != "unknown":
        return {"worse": "larger", "better": "smaller", "same": "unchanged"}[change.judgment]
    return facts.JUDGMENT_WORDS[change.judgment]


def gate_sentence(report: Report) -> str | None:
    """How many gate rules are met; None without rules."""
    if not report.gate:
        return None
    unmet = sum(not outcome.met for outcome in report.gate)
    total = len(report.gate)
    open_ones = sum(outcome.verdict == "inconclusive" for outcome in report.gate)
    which = f" ({open_ones} inconclusive)" if open_ones and total > 1 else ""
    if total == 1:
        which = " (inconclusive)" if open_ones else ""
        return f"The gate check is {'not met' if unmet else 'met'}{which}."
    if unmet:
        return f"{unmet} of {total} gate checks {'is' if unmet == 1 else 'are'} not met{which}."
    return f"All {total} gate checks are met{which}."
