"""What a report says of a search for `--max-drop`: on which rows, and what it proved."""

from __future__ import annotations

import math
from itertools import compress

from compressor.budgets.max_drop import within
from compressor.report import facts, numbers
from compressor.report.schema import Report
from compressor.report.table import Column, ReportTable
from compressor.results import ROUNDING, QualityProbe, QualitySearch, Variant


def describe(report: Report, search: QualitySearch) -> tuple[list[ReportTable], list[str], str]:
    """The candidates, warnings where the drop is not proven or too large, and on which rows."""
    warnings = list(filter(None, [unproven(search)]))
    for variant in facts.delivered(report):
        warnings += _missed(report, variant, search)
    return [_probes(search)], warnings, _held_out(search)


def _sentences(search: QualitySearch) -> list[str]:
    label, allowed = _label(search), f"{search.drop:.15g}"
    if search.proof == "bound":
        line = (
            f"The smallest model was searched whose drop in {label} is shown to be at most "
            f"{allowed}: measured, and by the lower end of the 95% interval."
        )
    else:
        line = (
            f"The smallest model was searched whose measured drop in {label} is at most {allowed}; "
            "proof was not asked for."
        )
    lines = [line, _held_out(search)]
    delivered = _delivered_look(search)
    if delivered is not None:
        inside = "within" if search.proven else "beyond"
        lines.append(
            f"On the held-out rows the lower confidence bound of the difference in {label} is "
            f"{_number(search, delivered.bound)}, {inside} the limit."
        )
    return lines


def _held_out(search: QualitySearch) -> str:
    """How many rows were searched on, how many held out, and how often these were looked at."""
    count, looks = len(search.probes), len(search.looks)
    models = "1 model" if count == 1 else f"{count} models"
    text = (
        f"The search judged {models} on {search.rows.rows:,} rows; all other figures are measured "
        f"on {search.held_out:,} rows that were held out of it"
    )
    if looks == 1:
        return f"{text} and looked at once."
    return (
        f"{text}. These judged {looks} models in turn, and each time the bound was widened (half "
        "the error), so that all together pass a model that loses more in at most 5% of runs."
    )


def _delivered_look(search: QualitySearch) -> QualityProbe | None:
    """The delivered model as the held-out rows judged it."""
    return next((seen for seen in search.looks if seen.position == search.delivered), None)


def unproven(search: QualitySearch) -> str:
    """A warning where proof was asked for and the rows are too few; empty where they are enough."""
    delivered = _delivered_look(search)
    if search.proof != "bound" or search.proven or delivered is None:
        return ""
    needed = _rows_needed(search, delivered)
    if needed is None:
        enough = "no number of rows would do for this model, whose drop is at the limit"
    else:
        enough = f"about {needed:,} would do for this model if its drop stayed as measured"
    mildest = min(_rows_of_others(search, delivered), default=None)
    if mildest is not None and (needed is None or mildest < needed):
        enough += f", about {mildest:,} for the mildest cut that was tried"
    return (
        f"{_test_rows(search):,} test rows are too few to show that {_label(search)} falls by at "
        f"most {search.drop:.15g}: it can fall by {_number(search, -delivered.bound)}; {enough}."
    )


def _rows_needed(search: QualitySearch, judged: QualityProbe) -> int | None:
    """Test rows, those to search on included, that would about prove what a model lost.

    Rounded up to two digits; None where no number would.
    """
    side = search.held_out if judged in search.looks else search.rows.rows
    if judged.rows_needed is None or not side:
        return None
    return numbers.two_digits_up(math.ceil(judged.rows_needed * _test_rows(search) / side))


def _rows_of_others(search: QualitySearch, delivered: QualityProbe) -> list[int]:
    """`_rows_needed` of the models that lost no more than allowed but could not prove it."""
    needed = [
        _rows_needed(search, x)
        for x in (*search.probes, *search.looks)
        if not x.accepted and within(x, search.drop) and x.position != delivered.position
    ]
    return [rows for rows in needed if rows is not None]


def _missed(report: Report, variant: Variant, search: QualitySearch) -> list[str]:
    """A warning about a measured drop above the limit.

    That can be so of a default precision other than the float32 that was searched.
    """
    found = facts.comparison(variant, search.metric)
    if found is None or not -found.difference > search.drop + ROUNDING:
        return []
    start = (
        f"The measured drop of {_number(search, -found.difference)} in {_label(search)} is "
        f"more than the {search.drop:.15g} asked for"
    )
    rows = f"{report.test.rows:,} test rows" if report.test else "the test rows"
    if found.interval[1] >= -search.drop:
        return [f"{start}, but {rows} are too few to be sure: use more."]
    return [f"{start}, significantly so on {rows}."]


def _probes(search: QualitySearch) -> ReportTable:
    style = facts.metric_style(search.metric)
    judged = [*search.probes, *search.looks]
    columns = (
        *map(Column, ("Probe", "Heads kept", "Neurons kept", "Multiply-adds", style.label)),
        *map(Column, ("Difference", "95% interval", "Bound")),
        Column("Rows", numeric=False),
        Column("Result", numeric=False),
    )
    counts = {"Heads kept": {p.kept for p in judged}, "Neurons kept": {p.neurons for p in judged}}
    # What is the same in all probes is no news.
    shown = [len(counts.get(column.title, ())) != 1 for column in columns]
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
            _result(search, probe),
        )
        for number, probe in enumerate(judged, 1)
    ]
    return ReportTable(
        key="probes",
        caption="Candidates that were built and judged; "
        f"{style.label} may fall by {search.drop:.15g}. Difference is pruned minus dense. Bound is "
        "its lower confidence bound, at 97.5%; each further look at the held-out rows halves the "
        "error.",
        columns=tuple(compress(columns, shown)),
        rows=tuple(tuple(compress(row, shown)) for row in rows),
        title="Budget",
        notes=tuple(_sentences(search)),
    )


def _result(search: QualitySearch, probe: QualityProbe) -> str:
    if probe.accepted:
        return "accepted"
    return "not proven" if within(probe, search.drop) else "refused"


def _test_rows(search: QualitySearch) -> int:
    return search.rows.rows + search.held_out


def _label(search: QualitySearch) -> str:
    return facts.metric_style(search.metric).label


def _number(search: QualitySearch, number: float) -> str:
    return facts.metric_style(search.metric).score(number)
