"""The tables of a search for a budget as text; see `tables.py`."""

from __future__ import annotations

from collections.abc import Sequence

from compressor.report import facts, numbers
from compressor.report.table import ReportTable, ResultCell, make_table, without_column
from compressor.report.view import CandidateRow, SearchSection
from compressor.steps.results import CostTable, SpeedTry, delivered

_ANSWERS = {"accepted": "good", "refused": "bad"}


def search_tables(search: SearchSection) -> list[ReportTable]:
    """Tables of all that was tried; none where nothing was searched for."""
    made = []
    if search.metric is not None:
        rows = [_candidate(row, number) for number, row in enumerate(search.candidates, 1)]
        label = search.metric.label
        table = make_table("candidates", rows, search.notes, metric=label, drop=search.wanted)
        has_tokens = any(row.tokens for row in search.candidates)
        made.append(table if has_tokens else without_column(table, "Tokens kept"))
    if search.costs is not None:
        made += [*_choices(search), _costs(search.costs)]
    return made


def _candidate(row: CandidateRow, number: int) -> tuple[str, ...]:
    candidate, style = row.candidate, facts.metric_style(row.candidate.comparison.metric)
    return (
        str(number),
        f"{candidate.kept:,}",
        f"{candidate.neurons:,}",
        "" if row.tokens is None else row.tokens.text,
        f"{100 * candidate.macs:.0f}%",
        style.score(candidate.comparison.pruned),
        style.difference(candidate.comparison.difference),
        style.interval(row.interval),
        style.difference(candidate.bound),
        "held out" if row.held_out else "searched",
        ResultCell(row.result, _ANSWERS.get(row.result, "")),
    )


def _reached(choice: SpeedTry, tries: Sequence[SpeedTry]) -> ResultCell:
    """Whether a choice is as fast as wanted, and whether it is the one that was taken."""
    taken = ", taken" * (len(tries) > 1 and choice == delivered(tries))
    return (
        ResultCell(f"reached{taken}", "good") if choice.met else ResultCell(f"missed{taken}", "bad")
    )


def _choices(search: SearchSection) -> list[ReportTable]:
    """The choices that were timed, and those after whole layers were dropped."""
    tries = [
        (
            str(number),
            numbers.fixed(choice.aim, 3),
            choice.kept,
            numbers.fixed(choice.predicted, 3),
            numbers.ratio(choice.speedup, choice.speedup_interval),
            _reached(choice, search.tries),
        )
        for number, choice in enumerate(search.tries, 1)
    ]
    layers = [
        (
            ", ".join(choice.layers) or "none",
            choice.kept or numbers.ABSENT,
            numbers.fixed(choice.speedup, 3),
            ResultCell("missed", "bad")
            if choice.divergence is None
            else numbers.fixed(choice.divergence, 4),
        )
        for choice in search.layers
    ]
    return [
        make_table("tries", tries, search.notes, wanted=search.wanted),
        make_table("layers", layers, training=search.training),
    ]


def _costs(costs: CostTable) -> ReportTable:
    """The time of a batch that removing units of each kind saves."""
    dense = 1000 * costs.dense_seconds
    rows = [
        (
            facts.kind_label(row.kind),
            f"{row.units:,}",
            str(row.layers),
            numbers.ratio(row.speedup, row.speedup_interval),
            numbers.adaptive(dense * row.saved_share),
        )
        for row in costs.rows
    ]
    shown = numbers.adaptive(dense)
    return make_table("costs", rows, batch=costs.batch_size, lengths=costs.lengths, dense=shown)
