"""What a report says of a search for a wanted speed-up: what units cost, and what was tried."""

from __future__ import annotations

from dataclasses import replace

from compressor.report import facts, numbers, phrases
from compressor.report.schema import Report
from compressor.report.table import Column, ReportTable, columns
from compressor.results import SpeedSearch


def describe(report: Report, search: SpeedSearch) -> tuple[list[ReportTable], list[str], str]:
    """The tables of the search; no warnings and no limitation."""
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
    tries = replace(_tries(search), notes=tuple(notes))
    return [tries, *([_layers(search)] if search.layers else []), _costs(search)], [], ""


def _tries(search: SpeedSearch) -> ReportTable:
    return ReportTable(
        key="tries",
        caption=f"Choices of units, timed against dense until one reached {search.wanted:.15g}.",
        columns=(
            *columns("Try", "Aimed at", "Units kept", "Predicted", "Measured"),
            Column("Result", numeric=False),
        ),
        rows=tuple(
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
    )


def _layers(search: SpeedSearch) -> ReportTable:
    return ReportTable(
        key="layers",
        caption="Numbers of whole layers that were dropped before units were chosen: the units "
        "left at the wanted speed, and the divergence from the dense model on held-out rows, in "
        "nats, after the repair without training. The least one was taken.",
        columns=columns("Layers dropped", "Units kept", "Measured", "Divergence"),
        rows=tuple(
            (
                ", ".join(found.layers) or "none",
                found.kept or numbers.ABSENT,
                numbers.fixed(found.speedup, 3),
                "missed" if found.divergence is None else numbers.fixed(found.divergence, 4),
            )
            for found in search.layers
        ),
        title="Layers dropped",
    )


def _costs(search: SpeedSearch) -> ReportTable:
    costs = search.costs
    return ReportTable(
        key="costs",
        caption=f"Cost of units at batch {costs.batch_size} ({costs.lengths}): the model with all "
        "sublayers of one kind reduced was timed in turns with dense, which takes "
        f"{numbers.adaptive(1000 * costs.dense_seconds)} ms a batch. Saved is per sublayer, "
        "smoothed so that removing more units never saves less.",
        columns=columns("Sublayers", "Units kept", "Layers", "Speed-up", "Saved ms"),
        rows=tuple(
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
