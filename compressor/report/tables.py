"""The tables of a report as text: the columns of every part of the view, for all formats alike.

Nothing is worked out here: values are in the view, captions and titles in `tables.toml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compressor.report import facts, numbers
from compressor.report.gains import FastestGain, Gain
from compressor.report.search_tables import search_tables
from compressor.report.sentences import outcome_result, speedup
from compressor.report.table import Column, ReportTable, ResultCell, make_table, without_column
from compressor.report.view import (
    BuildSummary,
    Difference,
    Fact,
    Headline,
    LengthsSection,
    QualitySection,
    ReportView,
    SampleAnswers,
    SizeRow,
    SpeedRow,
    SpeedSection,
    UnitsSection,
)
from compressor.steps.results import Outcome

_FASTER: dict[Gain, str] = {
    "faster": " times as fast",
    "same": ", no measurable gain",
    "slower": ", slower",
    "unknown": ", not usable",
}
_PAYS: dict[Gain, ResultCell] = {
    "faster": ResultCell("pays", "good"),
    "same": ResultCell("does not pay"),
    "slower": ResultCell("slower than dense", "bad"),
    "unknown": ResultCell("not usable"),
}
_TONES: dict[facts.Judgment, str] = {"worse": "bad", "better": "good"}


def tables(view: ReportView) -> dict[str, ReportTable]:
    """All tables that have rows, by key, in their order on a page; `conclusion` stands above."""
    made = (
        gate(view.gate),
        baseline(view),
        quality(view.quality),
        *lengths(view.quality.lengths),
        throughput(view.speed.rows, view.speed.counted_tokens),
        engines(view.speed),
        size(view.sizes, view.units),
        *search_tables(view.search),
        units(view.units),
        checks(view),
        facts_table("origin", view.provenance, view.report.notes),
        facts_table("signatures", view.signatures),
        facts_table("environment", view.environment),
    )
    return {table.key: table for table in made if table.rows}


def facts_table(key: str, pairs: Iterable[Fact], notes: Sequence[str] = ()) -> ReportTable:
    """Names and values."""
    return make_table(key, [(fact.name, fact.value) for fact in pairs], notes)


# --- above all others


def conclusion(headline: Headline) -> ReportTable:
    """Dense, the most important build, and what the dense model's low precision gives alone."""
    dense, build = headline.dense, headline.build
    alone = headline.dense_alone
    titles, builds = [f"{dense.name} {dense.precision}", build.name, "Difference"], [build]
    if alone is not None:
        titles += [f"Dense {alone.precision} alone", "Difference"]
        builds.append(alone)
    rows = []
    if headline.metric is not None:
        cells = [headline.metric.title, headline.metric.score(dense.score)]
        for shown in builds:
            cells += [headline.metric.score(shown.score), _judged(shown.difference)]
        rows.append(cells)
    for batch in headline.batch_sizes:
        cells = [f"Latency at batch {batch} (ms)", _latency(dense, batch)]
        for shown in builds:
            cells += [_latency(shown, batch), _gained(shown.at_batch(batch))]
        rows.append(cells)
        rows += _over_fastest(headline, builds, batch)
    cells = ["Size (ONNX MB)", numbers.megabytes(dense.onnx_bytes)]
    for shown in builds:
        cells.append(numbers.megabytes(shown.onnx_bytes))
        cells.append(numbers.change(shown.onnx_bytes, dense.onnx_bytes))
    return make_table("conclusion", map(tuple, [*rows, cells]), more=list(map(Column, titles)))


def _judged(difference: Difference | None) -> str:
    """`-0.31 [-0.62, +0.01], no significant difference`."""
    return numbers.ABSENT if difference is None else f"{difference.text}, {_judgment(difference)}"


def _judgment(difference: Difference) -> ResultCell:
    """The judgment in words, with a remark where there are few rows."""
    few = " (few rows)" if difference.has_few_rows else ""
    words = facts.JUDGMENT_WORDS[difference.judgment]
    return ResultCell(f"{words}{few}", _TONES.get(difference.judgment, ""))


def _latency(build: BuildSummary, batch: int) -> str:
    """The median time of one batch, in ms."""
    row = build.at_batch(batch)
    return numbers.adaptive(row.timing.latency_ms.get("p50") if row else None)


def _gained(row: SpeedRow | None) -> str:
    """`1.16 [1.14, 1.18] times as fast`, or `0.99 [0.97, 1.01], no measurable gain`."""
    if row is None or row.gain is None:
        return numbers.ABSENT
    return f"{speedup(row.timing)}{_FASTER[row.gain]}"


def _over_fastest(
    headline: Headline, builds: Sequence[BuildSummary], batch: int
) -> list[list[str]]:
    """A row with what each build gains over the fastest dense one at a batch size, if known."""
    dense, *gains = [
        None if row is None else row.over_fastest
        for row in (build.at_batch(batch) for build in (headline.dense, *builds))
    ]
    known = [gain for gain in gains if gain]
    if not known:
        return []
    title = f"Over the fastest dense build at batch {batch} ({known[0].dense})"
    return [[title, _times(dense), *(cell for gain in gains for cell in (_times(gain), ""))]]


def _times(gain: FastestGain | None) -> str:
    return "" if gain is None else numbers.ratio(gain.ratio, gain.interval)


def samples(answers: SampleAnswers) -> ReportTable:
    """Test rows with the answers of dense and of the most important build."""
    rows = [(" / ".join(row.texts), row.reference, *row.answers) for row in answers.rows]
    names = [Column(name, numeric=False) for name in answers.models]
    return make_table("samples", rows, more=names, count=len(rows))


# --- one for each section


def gate(outcomes: Sequence[Outcome]) -> ReportTable:
    """Every rule for every variant."""
    rows = [
        (x.variant, x.rule, ResultCell(outcome_result(x), _tone_of(x)), x.message) for x in outcomes
    ]
    return make_table("gate", rows)


def _tone_of(outcome: Outcome) -> str:
    if not outcome.met:
        return "bad"
    return "good" if outcome.verdict == "passed" else ""


def baseline(view: ReportView) -> ReportTable:
    """Every number beside that of an earlier run."""
    rows = []
    # Sizes and counts have no interval.
    exact = facts.JUDGMENT_WORDS | {"worse": "larger", "better": "smaller", "same": "unchanged"}
    for change in view.changes:
        words = facts.JUDGMENT_WORDS if change.interval else exact
        both = (change.before, change.after)
        values = (numbers.fixed(value, 0 if abs(value) >= 1e4 else 3) for value in both)
        bounds = "" if change.interval is None else numbers.interval(change.interval, 3)
        result = words[change.judgment] + (f" ({change.note})" if change.note else "")
        tone = _TONES.get(change.judgment, "") if change.interval else ""
        rows.append((change.variant, change.what, *values, bounds, ResultCell(result, tone)))
    return make_table("baseline", rows)


def quality(section: QualitySection) -> ReportTable:
    """Scores, and differences with their intervals."""
    rows: list[tuple[str, ...]] = []
    for row in section.rows:
        start, made = (row.build, row.style.title, row.style.score(row.score)), row.difference
        if made is None:
            result = "reference" if row.is_reference else "not compared"
            rows.append((*start, "", "", "", "", result))
            continue
        change = row.style.difference(made.difference), row.style.interval(made.interval)
        p_value = numbers.p_value(made.p_value)
        rows.append((*start, made.against, *change, p_value, _judgment(made)))
    of = f", means over {section.means_over}" if section.means_over else ""
    return make_table("quality", rows, section.notes, of=of)


def lengths(section: LengthsSection | None) -> list[ReportTable]:
    """What a translator fails at first; no table for other tasks."""
    if section is None:
        return []
    score = section.style.score
    rows = [
        (
            row.build,
            score(row.score),
            score(row.long_score),
            "" if row.other_lengths is None else numbers.percent(row.other_lengths, 1, 1),
        )
        for row in section.rows
    ]
    few = all(row.long_score is None for row in section.rows)
    table = make_table(
        "lengths",
        rows,
        metric=section.style.title,
        rows_of="1 row" if section.long_rows == 1 else f"{section.long_rows:,} rows",
        count=section.words,
        few=", too few for a score" if few else "",
    )
    return [table]


def throughput(timed: Sequence[SpeedRow], counted: str = "") -> ReportTable:
    """Rates, latency and memory of timings; models without a speed-up are the reference."""
    rows = []
    for speed in timed:
        row = speed.timing
        latencies = [row.latency_ms.get(name) for name in ("p50", "p90", "p99")]
        rates = (row.sentences_per_second, row.tokens_per_second, *latencies, row.peak_memory_mib)
        gained: tuple[str, ...] = ("", "", "reference")
        if speed.gain is not None:
            gained = (speedup(row), numbers.fixed(row.macs_ratio, 2), _PAYS[speed.gain])
        start = (row.variant, str(row.batch_size), *map(numbers.adaptive, rates))
        rows.append((*start, gained[0], _times(speed.over_fastest), *gained[1:]))
    has_several = any(speed.over_fastest for speed in timed)
    said = (
        " Over fastest dense: over the fastest dense build of any precision and engine at that "
        "batch size."
    )
    table = make_table(
        "throughput", rows, counted=counted, over_fastest=said if has_several else ""
    )
    return table if has_several else without_column(table, "Over fastest dense")


def engines(section: SpeedSection) -> ReportTable:
    """Speed-ups over dense builds; no rows where one engine was timed."""
    rows = [
        (
            row.variant,
            str(row.batch_size),
            row.engine or "",
            row.precision or "",
            numbers.adaptive(row.sentences_per_second),
            numbers.ratio(row.engine_speedup, row.engine_speedup_interval),
            numbers.ratio(row.fastest_speedup, row.fastest_speedup_interval),
            row.fastest or "",
        )
        for row in (x.timing for x in section.rows if section.several_engines)
    ]
    return make_table("engines", rows, section.notes)


def size(sizes: Sequence[SizeRow], section: UnitsSection) -> ReportTable:
    """Units, multiply-adds, parameters and bytes, the dense model's first."""

    def changed(text: str, now: int, before: int) -> str:
        return text if now == before else f"{text} ({numbers.change(now, before)})"

    rows, dense = [], sizes[0]
    for row in sizes:
        if not row.in_default_engine:
            continue  # other engines run the same files, or further ones
        checkpoint, onnx = map(numbers.megabytes, (row.checkpoint_bytes, row.onnx_bytes))
        rows.append(
            (
                row.build,
                row.precision,
                row.heads.text,
                row.neurons.text,
                row.tokens.text,
                numbers.percent(row.macs_share, 1, 1),
                changed(f"{row.parameters:,}", row.parameters, dense.parameters),
                changed(checkpoint, row.checkpoint_bytes, dense.checkpoint_bytes),
                changed(onnx, row.onnx_bytes, dense.onnx_bytes),
            )
        )
    said = " Tokens: the share of a row's that layers hand on, in the mean."
    tokens = said if section.shows_tokens else ""
    table = make_table("size", rows, units=section.title, tokens=tokens)
    return table if section.shows_tokens else without_column(table, "Tokens")


def units(section: UnitsSection) -> ReportTable:
    """Which heads each sublayer of each variant keeps, how many neurons and tokens; sums."""

    def cell(units: facts.Kept | None) -> str:
        if units is None:
            return numbers.ABSENT
        if units.heads is None:
            return units.text
        return f"{units.text}: {' '.join(map(str, units.heads)) or 'none'}"

    rows = [(row.name, *map(cell, row.kept)) for row in section.rows]
    names = [Column(name, numeric=False) for name in section.models]
    said = (
        " Of tokens it is the share of a row's, the most significant ones, that a layer hands on "
        f"to the next; {numbers.ABSENT} where a layer is skipped, or the last one."
    )
    tokens = said if section.shows_tokens else ""
    return make_table("units", rows, section.notes, more=names, units=section.title, tokens=tokens)


def checks(view: ReportView) -> ReportTable:
    """Every verification of every build, with its tolerance."""
    rows = []
    for row in view.checks:
        check = row.check
        values = f"{check.largest_difference:.2e}", f"{check.tolerance:.1e}"
        result = ResultCell("within", "good") if check.is_met else ResultCell("EXCEEDED", "bad")
        rows.append((row.build, check.name, *values, result, check.detail))
    return make_table("checks", rows)
