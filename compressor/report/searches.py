"""What a report says of a search for a budget: what was tried, and what that proves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from compressor.budgets.max_drop import within
from compressor.report import facts, numbers, phrases
from compressor.report.schema import Report
from compressor.report.table import ReportTable, make_table
from compressor.results import ROUNDING, QualitySearch, SpeedSearch


@dataclass(frozen=True)
class Search:
    """A run's search."""

    tables: list[ReportTable] = field(default_factory=list)  # with notes on how the search ended
    warnings: list[str] = field(default_factory=list)  # each names the model it is about
    limitation: str = ""  # for the model card


def describe(report: Report) -> Search:
    """How the units to remove were searched; empty if the budget was their number."""
    if isinstance(report.search, QualitySearch):
        return _quality(report, report.search)
    if isinstance(report.search, SpeedSearch):
        return Search(_speed(report, report.search))
    return Search()


def _speed(report: Report, search: SpeedSearch) -> list[ReportTable]:
    """The choices that were timed, those after whole layers were dropped, and the costs."""
    costs = search.costs
    batch, dense = costs.batch_size, 1000 * costs.dense_seconds
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
        f"The finished model was timed once more: {phrases.speedup(row)} at batch {batch}."
        for variant in facts.delivered(report)
        for row in facts.with_speedup(report, variant)
        if row.batch_size == batch
    ]
    tries = [
        (
            str(number),
            numbers.fixed(choice.aim, 3),
            choice.kept,
            numbers.fixed(choice.predicted, 3),
            phrases.ratio(choice.speedup, choice.speedup_interval),
            "reached" if choice.met else "missed",
        )
        for number, choice in enumerate(search.tries, 1)
    ]
    layers = [
        (
            ", ".join(choice.layers) or "none",
            choice.kept or numbers.ABSENT,
            numbers.fixed(choice.speedup, 3),
            "missed" if choice.divergence is None else numbers.fixed(choice.divergence, 4),
        )
        for choice in search.layers
    ]
    rows = [
        (
            facts.kind_label(row.kind),
            f"{row.units:,}",
            str(row.layers),
            phrases.ratio(row.speedup, row.speedup_interval),
            numbers.adaptive(dense * row.saved_share),
        )
        for row in costs.rows
    ]
    shown = numbers.adaptive(dense)
    return [
        make_table("tries", tries, notes, wanted=search.wanted),
        make_table("layers", layers),
        make_table("costs", rows, batch=batch, lengths=costs.lengths, dense=shown),
    ]


def _quality(report: Report, search: QualitySearch) -> Search:
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
    notes = [f"The smallest model was searched whose {wanted}.", held_out]
    rows = [
        (
            str(number),
            f"{probe.kept:,}",
            f"{probe.neurons:,}",
            f"{100 * probe.macs:.0f}%",
            style.score(probe.comparison.pruned),
            style.difference(probe.comparison.difference),
            style.interval(probe.comparison.interval),
            style.difference(probe.bound),
            "searched" if number <= len(search.probes) else "held out",
            "accepted" if probe.accepted
            else "not proven" if within(probe, search.drop) else "refused",
        )
        for number, probe in enumerate([*search.probes, *search.looks], 1)
    ]  # fmt: skip
    table = make_table("candidates", rows, notes, metric=style.label, drop=search.drop)
    return Search([table], warnings, held_out)


def unproven(search: QualitySearch) -> str:
    """A warning if proof was asked for and the rows are too few; else empty."""
    delivered = next((look for look in search.looks if look.position == search.delivered), None)
    style = facts.metric_style(search.metric)
    if search.proof != "bound" or search.proven or delivered is None:
        return ""
    rows = search.rows.rows + search.held_out
    # Test rows, those to search on included, that would about prove what a model lost; of one that
    # was looked at on the held-out rows, these say it.
    looked = {x.position for x in search.looks}
    sides = [(x, search.rows.rows) for x in search.probes if x.position not in looked]
    sides += [(x, search.held_out) for x in search.looks]
    needed = {
        x.position: math.ceil(x.rows_needed * rows / side)
        for x, side in sides
        if x.rows_needed is not None and side and not x.accepted and within(x, search.drop)
    }
    enough = "no number of rows would do for this model, whose drop is at the limit"
    if delivered.position in needed:
        about = numbers.two_digits_up(needed[delivered.position])
        enough = f"about {about:,} would do for this model if its drop stayed as measured"
    if needed and (mildest := min(needed, key=needed.__getitem__)) != delivered.position:
        about = numbers.two_digits_up(needed[mildest])
        enough += f", about {about:,} for the mildest cut that was tried"
    return (
        f"{rows:,} test rows are too few to show that {style.label} falls by at most "
        f"{search.drop:.15g}: it can fall by {style.score(-delivered.bound)}; {enough}."
    )
