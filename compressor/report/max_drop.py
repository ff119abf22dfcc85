"""What a report says of a search for `--max-drop`: on which rows, and what it proved."""

from __future__ import annotations

import math
from itertools import compress

from compressor.budgets.max_drop import within
from compressor.report import facts, numbers
from compressor.report.schema import Report
from compressor.report.table import ReportTable, columns
from compressor.results import ROUNDING, QualityCandidate, QualitySearch


def describe(report: Report, search: QualitySearch) -> tuple[list[ReportTable], list[str], str]:
    """The candidates, warnings if the drop is not proven or too large, and on which rows."""
    style, limit = facts.metric_style(search.metric), f"{search.drop:.15g}"
    rows = f"{report.test.rows:,} test rows" if report.test else "the test rows"
    warnings = list(filter(None, [unproven(search)]))
    for variant in facts.delivered(report):
        # Another default precision than the float32 that was searched can lose more.
        compared = facts.comparison(variant, search.metric)
        if compared is not None and -compared.difference > search.drop + ROUNDING:
            sure = compared.interval[1] < -search.drop
            end = (
                f"significantly so on {rows}"
                if sure
                else f"but {rows} are too few to be sure: use more"
            )
            warnings.append(
                f"The measured drop of {style.score(-compared.difference)} in {style.label} is "
                f"more than the {limit} asked for, {end}."
            )
    if search.proof == "bound":
        wanted = f"drop in {style.label} is shown to be at most {limit}, by its 95% interval"
    else:
        wanted = f"measured drop in {style.label} is at most {limit}; proof was not asked for"
    held_out = _held_out(search)
    notes = [f"The smallest model was searched whose {wanted}.", held_out]
    delivered = _delivered(search)
    if delivered is not None:
        notes.append(
            f"On the held-out rows the lower confidence bound of the difference in {style.label} "
            f"is {style.score(delivered.bound)}, {'within' if search.proven else 'beyond'} the "
            "limit."
        )
    return [_candidates(search, tuple(notes))], warnings, held_out


def _held_out(search: QualitySearch) -> str:
    """How many rows were searched on, how many held out, and how often those judged a model."""
    count, looks = len(search.probes), len(search.looks)
    text = (
        f"The search judged {count} model{'' if count == 1 else 's'} on {search.rows.rows:,} rows; "
        f"all other figures are measured on {search.held_out:,} rows that were held out of it"
    )
    if looks == 1:
        return f"{text} and looked at once."
    return (
        f"{text}. These judged {looks} models in turn, and each time the bound was widened (half "
        "the error), so that all together pass a model that loses more in at most 5% of runs."
    )


def _delivered(search: QualitySearch) -> QualityCandidate | None:
    """The delivered model as the held-out rows judged it."""
    return next((look for look in search.looks if look.position == search.delivered), None)


def unproven(search: QualitySearch) -> str:
    """A warning if proof was asked for and the rows are too few; else empty."""
    delivered, style = _delivered(search), facts.metric_style(search.metric)
    if search.proof != "bound" or search.proven or delivered is None:
        return ""
    needed = _rows_needed(search, delivered)
    enough = (
        "no number of rows would do for this model, whose drop is at the limit"
        if needed is None
        else f"about {needed:,} would do for this model if its drop stayed as measured"
    )
    others = [
        rows
        for x in (*search.probes, *search.looks)
        if not x.accepted and within(x, search.drop) and x.position != delivered.position
        if (rows := _rows_needed(search, x)) is not None
    ]
    if others and (needed is None or min(others) < needed):
        enough += f", about {min(others):,} for the mildest cut that was tried"
    return (
        f"{search.rows.rows + search.held_out:,} test rows are too few to show that {style.label} "
        f"falls by at most {search.drop:.15g}: it can fall by {style.score(-delivered.bound)}; "
        f"{enough}."
    )


def _rows_needed(search: QualitySearch, judged: QualityCandidate) -> int | None:
    """Test rows, those to search on included, that would about prove what a model lost.

    Rounded up to two digits; None if no number would.
    """
    side = search.held_out if judged in search.looks else search.rows.rows
    if judged.rows_needed is None or not side:
        return None
    rows = search.rows.rows + search.held_out
    return numbers.two_digits_up(math.ceil(judged.rows_needed * rows / side))


def _candidates(search: QualitySearch, notes: tuple[str, ...]) -> ReportTable:
    style = facts.metric_style(search.metric)
    judged = [*search.probes, *search.looks]
    titles = (
        *columns("Model", "Heads kept", "Neurons kept", "Multiply-adds", style.label, "Difference"),
        *columns(">95% interval, >Bound, Rows, Result"),
    )
    # Counts that are the same for all are left out.
    counts = {"Heads kept": {x.kept for x in judged}, "Neurons kept": {x.neurons for x in judged}}
    shown = [len(counts.get(column.title, ())) != 1 for column in titles]
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
    return ReportTable(
        "candidates",
        f"Models that were built and judged; {style.label} may fall by "
        f"{search.drop:.15g}. Difference is pruned minus dense. Bound is its lower confidence "
        "bound, at 97.5%; each further look at the held-out rows halves the error.",
        tuple(compress(titles, shown)),
        tuple(tuple(compress(row, shown)) for row in rows),
        title="Budget",
        notes=notes,
    )
