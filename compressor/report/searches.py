"""What a report says of a search for a budget: what was tried, and what that proves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from compressor.budgets.max_drop import within
from compressor.report import facts, numbers, phrases
from compressor.report.schema import Report
from compressor.report.table import ReportTable, make_table
from compressor.results import ROUNDING, QualityCandidate, QualitySearch, SpeedSearch


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
        tables = [_tries(report, report.search), _layers(report.search), _costs(report.search)]
        return Search(tables)
    return Search()


def _tries(report: Report, search: SpeedSearch) -> ReportTable:
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
    for variant in facts.delivered(report):
        for row in facts.with_speedup(report, variant):
            if row.batch_size == batch:
                short = ", less than wanted" if (row.speedup or 0) < search.wanted else ""
                notes.append(
                    f"The finished model was timed once more: {phrases.speedup(row)} at batch "
                    f"{batch}{short}."
                )
    rows = [
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
    return make_table("tries", rows, notes, wanted=search.wanted)


def _layers(search: SpeedSearch) -> ReportTable:
    """What would have been left if layers were dropped whole before units were chosen."""
    rows = [
        (
            ", ".join(choice.layers) or "none",
            choice.kept or numbers.ABSENT,
            numbers.fixed(choice.speedup, 3),
            "missed" if choice.divergence is None else numbers.fixed(choice.divergence, 4),
        )
        for choice in search.layers
    ]
    return make_table("layers", rows)


def _costs(search: SpeedSearch) -> ReportTable:
    costs = search.costs
    dense = 1000 * costs.dense_seconds
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
    return make_table(
        "costs", rows,
        batch=costs.batch_size, lengths=costs.lengths, dense=numbers.adaptive(dense),
    )  # fmt: skip


def _quality(report: Report, search: QualitySearch) -> Search:
    """The candidates, warnings if the drop is not proven or too large, and on which rows."""
    style, limit = facts.metric_style(search.metric), f"{search.drop:.15g}"
    rows = f"{report.test.rows:,} test rows" if report.test else "the test rows"
    warnings = list(filter(None, [unproven(search)]))
    for variant in facts.delivered(report):
        # Another default precision than the float32 that was searched can lose more.
        compared = facts.comparison(variant, search.metric)
        if compared is not None and -compared.difference > search.drop + ROUNDING:
            is_sure = compared.interval[1] < -search.drop
            few = f"but {rows} are too few to be sure: use more"
            warnings.append(
                f"The measured drop of {style.score(-compared.difference)} in {style.label} is "
                f"more than the {limit} asked for, "
                f"{f'significantly so on {rows}' if is_sure else few}."
            )
    if search.proof == "bound":
        wanted = f"drop in {style.label} is shown to be at most {limit}, by its 95% interval"
    else:
        wanted = f"measured drop in {style.label} is at most {limit}; proof was not asked for"
    count, looks = len(search.probes), len(search.looks)
    held_out = (
        f"The search judged {count} model{'' if count == 1 else 's'} on {search.rows.rows:,} rows; "
        f"all other figures are measured on {search.held_out:,} rows that were held out of it"
    )
    held_out += (
        " and looked at once."
        if looks == 1
        else f". These judged {looks} models in turn, and each time the bound was widened (half "
        "the error), so that all together pass a model that loses more in at most 5% of runs."
    )
    notes = [f"The smallest model was searched whose {wanted}.", held_out]
    delivered = _delivered(search)
    if delivered is not None:
        notes.append(
            f"On the held-out rows the lower confidence bound of the difference in {style.label} "
            f"is {style.score(delivered.bound)}, {'within' if search.proven else 'beyond'} the "
            "limit."
        )
    return Search([_candidates(search, notes)], warnings, held_out)


def _delivered(search: QualitySearch) -> QualityCandidate | None:
    """The delivered model as the held-out rows judged it."""
    return next((look for look in search.looks if look.position == search.delivered), None)


def unproven(search: QualitySearch) -> str:
    """A warning if proof was asked for and the rows are too few; else empty."""
    delivered, style = _delivered(search), facts.metric_style(search.metric)
    if search.proof != "bound" or search.proven or delivered is None:
        return ""
    rows = search.rows.rows + search.held_out

    def rows_needed(judged: QualityCandidate) -> int | None:
        """Test rows, those to search on included, that would about prove what a model lost."""
        side = search.held_out if judged in search.looks else search.rows.rows
        if judged.rows_needed is None or not side:
            return None  # no number of rows would
        return numbers.two_digits_up(math.ceil(judged.rows_needed * rows / side))

    needed = rows_needed(delivered)
    enough = (
        "no number of rows would do for this model, whose drop is at the limit"
        if needed is None
        else f"about {needed:,} would do for this model if its drop stayed as measured"
    )
    others = [
        other
        for x in (*search.probes, *search.looks)
        if not x.accepted and within(x, search.drop) and x.position != delivered.position
        if (other := rows_needed(x)) is not None
    ]
    if others and (needed is None or min(others) < needed):
        enough += f", about {min(others):,} for the mildest cut that was tried"
    return (
        f"{rows:,} test rows are too few to show that {style.label} falls by at most "
        f"{search.drop:.15g}: it can fall by {style.score(-delivered.bound)}; {enough}."
    )


def _candidates(search: QualitySearch, notes: list[str]) -> ReportTable:
    style = facts.metric_style(search.metric)
    judged = [*search.probes, *search.looks]
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
        for number, probe in enumerate(judged, 1)
    ]  # fmt: skip
    # Counts that are the same for all are left out.
    counts = {"Heads kept": {x.kept for x in judged}, "Neurons kept": {x.neurons for x in judged}}
    same = [title for title, values in counts.items() if len(values) == 1]
    return make_table(
        "candidates", rows, notes, left_out=same, metric=style.label, drop=search.drop
    )
