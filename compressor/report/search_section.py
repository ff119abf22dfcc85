"""The section on a search for a budget: the choices tried, and what they prove."""

from __future__ import annotations

import math

from compressor.budgets.max_drop import is_within
from compressor.model.sublayers import TOKEN_UNITS
from compressor.report import facts, numbers
from compressor.report.gains import with_speedup
from compressor.report.schema import Report
from compressor.report.sentences import speedup
from compressor.report.view import CandidateRow, SearchSection
from compressor.steps.results import ROUNDING, QualityCandidate, QualitySearch, SpeedSearch


def search_section(report: Report) -> SearchSection:
    """How the units to remove were searched; empty if the budget was their number."""
    if isinstance(report.search, QualitySearch):
        return _for_drop(report, report.search)
    if isinstance(report.search, SpeedSearch):
        return _for_speed(report, report.search)
    return SearchSection()


def _for_speed(report: Report, search: SpeedSearch) -> SearchSection:
    batch = search.costs.batch_size
    notes = [
        f"Units were chosen to make the model {search.wanted:.15g} times as fast at batch {batch}: "
        "by the measured cost of sublayers, those with the lowest sum of scores were removed."
    ]
    if not any(choice.met for choice in search.tries):
        notes.append(
            f"The wanted speed-up was not reached in {len(search.tries)} tries; the fastest choice "
            "was taken."
        )
    notes += [
        f"The finished model was timed once more: {speedup(row)} at batch {batch}."
        for variant in facts.delivered(report)
        for row in with_speedup(report, variant)
        if row.batch_size == batch
    ]
    return SearchSection(
        notes=tuple(notes),
        wanted=search.wanted,
        tries=tuple(search.tries),
        layers=tuple(search.layers),
        training=f"with {search.probe_steps} steps of training"
        if search.probe_steps
        else "without training",
        costs=search.costs,
    )


def _for_drop(report: Report, search: QualitySearch) -> SearchSection:
    """The candidates, warnings if the drop is not proven or too large, and on which rows."""
    style, limit = facts.metric_style(search.metric), f"{search.drop:.15g}"
    warnings = list(filter(None, [unproven(search)]))
    for variant in facts.delivered(report):
        # Another default precision than the float32 that was searched can lose more.
        compared = facts.comparison(variant, search.metric)
        if compared is not None and -compared.difference > search.drop + ROUNDING:
            warnings.append(
                f"The measured drop of {style.score(-compared.difference)} in {style.label} is "
                f"more than the {limit} asked for."
            )
    wanted = f"measured drop in {style.label} is at most {limit}; proof was not asked for"
    if search.proof == "bound":
        wanted = f"drop in {style.label} is shown to be at most {limit}, by its 95% interval"
    held_out = (
        f"The search judged {len(search.probes)} models on {search.rows.rows:,} rows; all other "
        f"figures are measured on {search.held_out:,} rows that were held out of it (looks at "
        f"them: {len(search.looks)}; each further one has half the error)."
    )
    probes = [_candidate(search, x, search.rows.rows, held_out=False) for x in search.probes]
    looks = [_candidate(search, x, search.held_out, held_out=True) for x in search.looks]
    return SearchSection(
        notes=(f"The smallest model was searched whose {wanted}.", held_out),
        warnings=tuple(warnings),
        limitation=held_out,
        metric=style,
        wanted=search.drop,
        candidates=(*probes, *looks),
    )


def _candidate(
    search: QualitySearch, candidate: QualityCandidate, rows: int, *, held_out: bool
) -> CandidateRow:
    refused = "not proven" if is_within(candidate.comparison, search.drop) else "refused"
    tenths = candidate.handed_on
    tokens = facts.Kept(sum(tenths), TOKEN_UNITS * len(tenths), is_share=True) if tenths else None
    return CandidateRow(
        candidate=candidate,
        tokens=tokens,
        interval=facts.interval_of(candidate.comparison, rows),
        held_out=held_out,
        result="accepted" if candidate.accepted else refused,
    )


def unproven(search: QualitySearch) -> str:
    """A warning if proof was asked for and the rows are too few; else empty."""
    delivered = next((look for look in search.looks if look.position == search.delivered), None)
    style = facts.metric_style(search.metric)
    if search.proof != "bound" or search.proven or delivered is None:
        return ""
    rows = search.rows.rows + search.held_out
    needed = _rows_needed(search)
    enough = "more rows will not decide this for this model: its drop equals the limit"
    if delivered.position in needed:
        about = numbers.ceil_to_two_digits(needed[delivered.position])
        enough = f"about {about:,} are needed for this model, if its drop stays the same"
    if needed and (mildest := min(needed, key=needed.__getitem__)) != delivered.position:
        about = numbers.ceil_to_two_digits(needed[mildest])
        enough += f", about {about:,} for the mildest cut that was tried"
    return (
        f"{rows:,} test rows are too few to show that {style.label} falls by at most "
        f"{search.drop:.15g}: it can fall by {style.score(-delivered.bound)}; {enough}."
    )


def _rows_needed(search: QualitySearch) -> dict[int, int]:
    """Position of a candidate -> test rows, those to search on included, that would prove its drop.

    Of one that was looked at on the held-out rows, these say it.
    """
    rows = search.rows.rows + search.held_out
    looked = {look.position for look in search.looks}
    sides = [(x, search.rows.rows) for x in search.probes if x.position not in looked]
    sides += [(x, search.held_out) for x in search.looks]
    return {
        x.position: math.ceil(x.rows_needed * rows / side)
        for x, side in sides
        if x.rows_needed is not None
        and side
        and not x.accepted
        and is_within(x.comparison, search.drop)
    }
