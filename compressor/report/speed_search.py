"""What a report says of a search for a wanted speed-up: what units cost, and what was tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compressor.report import facts, numbers, phrases
from compressor.report.schema import Report
from compressor.report.table import Column, ReportTable, columns
from compressor.results import CostTable, LayersTry, SpeedSearch


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
    layers = [_layers(search.layers)] if search.layers else []
    first, *others = [*layers, _tries(search), _costs(search.costs)]
    return [replace(first, title="Budget", notes=tuple(notes)), *others], [], ""


def _layers(tries: Sequence[LayersTry]) -> ReportTable:
    return ReportTable(
        key="layers",
        title="Layers dropped",
        caption="Numbers of whole layers that were dropped before units were chosen: the units "
        "left at the wanted speed, and the divergence from the dense model on held-out rows, in "
        "nats, after the repair without training. The least one was taken.",
        columns=(
            Column("Layers dropped", numeric=False),
            *map(Column, ("Units kept", "Measured", "Divergence")),
        ),
        rows=tuple(
            (
                ", ".join(found.layers) or "none",
                found.kept or "–",
                "–" if found.speedup is None else numbers.fixed(found.speedup, 3),
                "missed" if found.divergence is None else numbers.fixed(found.divergence, 4),
            )
            for found in tries
        ),
    )


def _costs(costs: CostTable) -> ReportTable:
    return ReportTable(
        key="costs",
        title="Cost of units",
        caption=f"Cost of units at batch {costs.batch_size} ({costs.lengths}): the model with all "
        "sublayers of one kind reduced was timed in turns with dense, which takes "
        f"{numbers.adaptive(1000 * costs.dense_seconds)} ms a batch. Saved is per sublayer, "
        "smoothed so that removing more units never saves less.",
        columns=columns(
            "Sublayers", "Units kept", "Layers", "Speed-up", "95% interval", "Saved ms"
        ),
        rows=tuple(
            (
                facts.kind_label(row.kind),
                f"{row.units:,}",
                str(row.layers),
                numbers.fixed(row.speedup, 3),
                numbers.interval(row.speedup_interval, 3),
                numbers.adaptive(1000 * costs.dense_seconds * row.saved_share),
            )
            for row in costs.rows
        ),
    )


def _tries(search: SpeedSearch) -> ReportTable:
    return ReportTable(
        key="tries",
        title="Tries",
        caption=f"Choices of units, timed against dense until one reached {search.wanted:.15g}.",
        columns=(
            *map(Column, ("Try", "Aimed at", "Units kept", "Predicted")),
            *map(Column, ("Measured", "95% interval")),
            Column("Result", numeric=False),
        ),
        rows=tuple(
            (
                str(number),
                numbers.fixed(choice.aim, 3),
                choice.kept,
                numbers.fixed(choice.predicted, 3),
                numbers.fixed(choice.speedup, 3),
                numbers.interval(choice.speedup_interval, 3),
                "reached" if choice.met else "missed",
            )
            for number, choice in enumerate(search.tries, 1)
        ),
    )
