"""How a report describes searches for a budget: a wanted speed-up, an allowed drop in quality."""

from __future__ import annotations

from dataclasses import replace
from itertools import compress

from compressor.report import facts, numbers, sentences
from compressor.report.max_drop import search_sentences
from compressor.report.schema import Report, Run
from compressor.report.tables import Column, Table
from compressor.results import CostTable, QualityProbe, QualitySearch, SpeedSearch


def budget_sentences(report: Report) -> list[str]:
    """How the units to remove were searched; empty where the budget gave their number."""
    lines = []
    for run in facts.runs(report):
        about: list[str] = []
        if isinstance(run.search, SpeedSearch):
            about = _speed_sentences(report, run, run.search)
        if isinstance(run.search, QualitySearch):
            about = search_sentences(run.search, report.test)
        lines += [_variants_prefix(report, run) + sentence for sentence in about]
    return lines


def tables(report: Report) -> list[Table]:
    """What the searches measured; empty where the budgets gave the number of heads."""
    tables = []
    for number, run in enumerate(facts.runs(report), 1):
        measured: list[Table] = []
        if isinstance(run.search, SpeedSearch):
            measured = [_tries(run.search), _costs(run.search.costs)]
        if isinstance(run.search, QualitySearch) and run.search.probes:
            measured = [_probes(run.search)]
        for table in measured:
            key = f"{table.key}-{number}" if report.runs else table.key
            caption = _variants_prefix(report, run) + table.caption
            tables.append(replace(table, key=key, caption=caption))
    return tables


def _variants_prefix(report: Report, run: Run) -> str:
    """`heads-50 and heads-25: ` where the report combines several runs, else nothing."""
    return f"{sentences.join(run.variants)}: " if report.runs else ""


def _speed_sentences(report: Report, run: Run, search: SpeedSearch) -> list[str]:
    batch = search.costs.batch_size
    lines = [
        f"Units were chosen to make the model {search.wanted:.15g} times as fast at batch {batch}: "
        "by the measured cost of sublayers, those with the lowest sum of scores were removed."
    ]
    if not any(choice.met for choice in search.tries):
        lines.append(
            f"The wanted speed-up was not reached in {len(search.tries)} tries; the fastest choice "
            "was taken."
        )
    for name in run.variants:
        for row in facts.timings(report, name):
            if row.batch_size == batch and row.speedup is not None:
                short = ", less than wanted" if row.speedup < search.wanted else ""
                lines.append(
                    f"The finished model was timed once more: {sentences.speedup(row)} at batch "
                    f"{batch}{short}."
                )
    return lines


def _costs(table: CostTable) -> Table:
    return Table(
        key="costs",
        caption=f"Cost of units at batch {table.batch_size} ({table.lengths}): the model with all "
        "sublayers of one kind reduced was timed in turns with dense, which takes "
        f"{numbers.adaptive(1000 * table.dense_seconds)} ms a batch. Saved is per sublayer, "
        "smoothed so that removing more units never saves less.",
        columns=(
            Column("Sublayers", numeric=False),
            *map(Column, ("Units kept", "Layers", "Speed-up", "95% interval", "Saved ms")),
        ),
        rows=tuple(
            (
                facts.kind_label(row.kind),
                f"{row.units:,}",
                str(row.layers),
                numbers.fixed(row.speedup, 3),
                numbers.interval(row.speedup_interval, 3),
                numbers.adaptive(1000 * table.dense_seconds * row.saved_share),
            )
            for row in table.rows
        ),
    )


def _tries(search: SpeedSearch) -> Table:
    return Table(
        key="tries",
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


def _probes(search: QualitySearch) -> Table:
    style = facts.metric_style(search.metric)
    judged = [*search.probes, *search.looks]
    optional = {
        "Neurons kept": any(probe.neurons is not None for probe in judged),
        "Multiply-adds": any(probe.macs is not None for probe in judged),
        "Bound": any(probe.bound is not None for probe in judged),
        "Rows": bool(search.looks),
    }
    caption = (
        f"Models that were built and judged to find how far the model can be cut; {style.label} "
        f"may fall by {search.drop:.15g}. Difference is pruned minus dense."
    )
    if optional["Bound"]:
        caption += (
            " Bound is its lower confidence bound, at 97.5%; each further look at the held-out "
            "rows halves the error."
        )
    columns = (
        *map(Column, ("Probe", "Heads kept", "Neurons kept", "Multiply-adds", style.label)),
        *map(Column, ("Difference", "95% interval", "Bound")),
        Column("Rows", numeric=False),
        Column("Result", numeric=False),
    )
    shown = [optional.get(column.title, True) for column in columns]
    rows = [
        (
            str(number),
            str(probe.kept),
            "all" if probe.neurons is None else f"{probe.neurons:,}",
            "" if probe.macs is None else f"{100 * probe.macs:.0f}%",
            numbers.fixed(probe.comparison.pruned, style.digits),
            numbers.fixed(probe.comparison.difference, style.digits, sign=True),
            numbers.interval(probe.comparison.interval, style.digits, sign=True),
            numbers.fixed(probe.bound, style.digits, sign=True),
            "searched" if number <= len(search.probes) else "held out",
            _result(search, probe),
        )
        for number, probe in enumerate(judged, 1)
    ]
    return Table(
        key="probes",
        caption=caption,
        columns=tuple(compress(columns, shown)),
        rows=tuple(tuple(compress(row, shown)) for row in rows),
    )


def _result(search: QualitySearch, probe: QualityProbe) -> str:
    if probe.accepted:
        return "accepted"
    inside = -probe.comparison.difference <= search.drop + facts.ROUNDING
    return "not proven" if inside and probe.bound is not None else "refused"
