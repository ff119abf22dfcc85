"""What a report says of a search for a budget: what was tried, and what that proves."""

from __future__ import annotations

from dataclasses import dataclass, field

from compressor.report import facts, max_drop, numbers, phrases
from compressor.report.schema import Report
from compressor.report.table import ReportTable, columns
from compressor.results import QualitySearch, SpeedSearch


@dataclass(frozen=True)
class Search:
    """A run's search."""

    tables: list[ReportTable] = field(default_factory=list)  # with notes on how the search ended
    warnings: list[str] = field(default_factory=list)  # each names the model it is about
    limitation: str = ""  # for the model card


def describe(report: Report) -> Search:
    """How the units to remove were searched; empty if the budget was their number."""
    if isinstance(report.search, QualitySearch):
        return Search(*max_drop.describe(report, report.search))
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
    return ReportTable(
        "tries",
        f"Choices of units, timed against dense until one reached {search.wanted:.15g}.",
        columns("Try, >Aimed at, >Units kept, >Predicted, >Measured, Result"),
        tuple(
            (
                str(number),
                numbers.fixed(choice.aim, 3),
                choice.kept,
                numbers.fixed(choice.predicted, 3),
                phrases.ratio(choice.speedup, choice.speedup_interval),
                "reached" if choice.met else "missed",
            )
            for number, choice in enumerate(search.tries, 1)
        ),
        title="Budget",
        notes=tuple(notes),
    )


def _layers(search: SpeedSearch) -> ReportTable:
    return ReportTable(
        "layers",
        "Numbers of whole layers that were dropped before units were chosen: the units "
        "left at the wanted speed, and the divergence from the dense model on held-out rows, in "
        "nats, after the recovery without training. The least one was taken.",
        columns("Layers dropped", "Units kept", "Measured", "Divergence"),
        tuple(
            (
                ", ".join(choice.layers) or "none",
                choice.kept or numbers.ABSENT,
                numbers.fixed(choice.speedup, 3),
                "missed" if choice.divergence is None else numbers.fixed(choice.divergence, 4),
            )
            for choice in search.layers
        ),
        title="Layers dropped",
    )


def _costs(search: SpeedSearch) -> ReportTable:
    costs = search.costs
    return ReportTable(
        "costs",
        f"Cost of units at batch {costs.batch_size} ({costs.lengths}): the model with all "
        "sublayers of one kind reduced was timed in turns with dense, which takes "
        f"{numbers.adaptive(1000 * costs.dense_seconds)} ms a batch. Saved is per sublayer, "
        "smoothed so that removing more units never saves less.",
        columns("Sublayers", "Units kept", "Layers", "Speed-up", "Saved ms"),
        tuple(
            (
                facts.kind_label(row.kind),
                f"{row.units:,}",
                str(row.layers),
                phrases.ratio(row.speedup, row.speedup_interval),
                numbers.adaptive(1000 * costs.dense_seconds * row.saved_share),
            )
            for row in costs.rows
        ),
        title="Cost of units",
    )
