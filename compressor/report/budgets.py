"""How a report describes searches for a budget: a wanted speed-up, an allowed drop in quality."""

from __future__ import annotations

from dataclasses import replace

from compressor.report import facts, numbers, sentences
from compressor.report.schema import Report, Run
from compressor.report.tables import Column, Table
from compressor.results import CostTable, QualitySearch, SpeedSearch

SEARCHED_ON_TEST = (
    "The number of heads was searched on the test rows themselves, which the intervals do not "
    "account for: on other rows the drop can be larger than they say."
)


def budget_sentences(report: Report) -> list[str]:
    """How the number of heads was searched; empty where the budget gave it."""
    lines = []
    for run in facts.runs(report):
        about: list[str] = []
        if isinstance(run.search, SpeedSearch):
            about = _speed_sentences(report, run, run.search)
        if isinstance(run.search, QualitySearch):
            about = _quality_sentences(report, run.search)
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


def _quality_sentences(report: Report, search: QualitySearch) -> list[str]:
    label = facts.metric_style(search.metric).label
    allowed = f"{search.drop:.15g}"
    bound = f"-{allowed}" if search.drop else "0"
    where = "the test rows"
    if report.test is not None:
        where = f"{report.test.rows:,} rows of {sentences.join(report.test.files)}"
    count = len(search.probes)
    lines = [
        f"As many heads were removed as possible before {where} showed a drop in {label} of more "
        f"than {allowed}: a number of heads is refused if the whole 95% interval of the difference "
        f"lies below {bound}.",
        f"The search built and ran {count} {'model' if count == 1 else 'models'}. "
        f"{SEARCHED_ON_TEST}",
    ]
    if not any(probe.accepted for probe in search.probes):
        lines.append("No head could be removed.")
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
    return Table(
        key="probes",
        caption="Models that were built and run to find how many heads can be removed; "
        f"{style.label} may fall by {search.drop:.15g}. Difference is pruned minus dense.",
        columns=(
            *map(Column, ("Probe", "Heads kept", style.label, "Difference", "95% interval")),
            Column("Result", numeric=False),
        ),
        rows=tuple(
            (
                str(number),
                str(probe.kept),
                numbers.fixed(probe.comparison.pruned, style.digits),
                numbers.fixed(probe.comparison.difference, style.digits, sign=True),
                numbers.interval(probe.comparison.interval, style.digits, sign=True),
                "accepted" if probe.accepted else "refused",
            )
            for number, probe in enumerate(search.probes, 1)
        ),
    )
