"""The series of the report's plots; `plots.py` draws them."""

from __future__ import annotations

from collections.abc import Mapping

from compressor.model.sublayers import TOKEN_KIND
from compressor.report import facts, gains, numbers
from compressor.report.schema import Report
from compressor.report.view import Look, Plots, QualityPlot, QualityPoint, RateLine, UnitsPanel
from compressor.steps.results import Variant


def plots(report: Report) -> Plots:
    """The series of all plots; each is empty where the report has no data for it."""
    timed = [(model, gains.timings(report, model.name)) for model in facts.models(report)]
    lines = [
        RateLine(
            build=model.name,
            batch_sizes=tuple(row.batch_size for row in rows),
            rates=tuple(row.sentences_per_second for row in rows),
        )
        for model, rows in timed
        if rows
    ]
    return Plots(_looks(report), _quality(report), tuple(lines), _units(report))


def _looks(report: Report) -> Mapping[str, Look]:
    looks = {}
    for number, first in enumerate((report.dense, *facts.pruned(report)), -1):
        model = None if first is report.dense else number
        for build_number, build in enumerate(facts.builds(report, first)):
            looks[build.name] = Look(model, build_number)
    return looks


def _quality(report: Report) -> QualityPlot | None:
    """The main metric against the speed-up of every build that was compared and timed."""
    metric = facts.primary_metric(report)
    compared = {v.name: made for v in report.variants if (made := facts.comparison(v, metric))}
    rows = {v.name: facts.test_rows(report, v) for v in report.variants}
    panels: dict[int, list[QualityPoint]] = {size: [] for size in gains.batch_sizes(report)}
    for row in gains.all_timings(report):
        made = compared.get(row.variant)
        if made is None or row.speedup is None:
            continue
        low, high = facts.interval_of(made, rows[row.variant])
        point = QualityPoint(
            build=row.variant,
            speedup=row.speedup,
            speedup_interval=row.speedup_interval,
            score=made.pruned,
            score_interval=(made.dense + low, made.dense + high),
        )
        panels[row.batch_size].append(point)
    points = [point for panel in panels.values() for point in panel]
    if metric is None or not points:
        return None
    return QualityPlot(
        style=facts.metric_style(metric),
        dense=report.dense.name,
        dense_score=compared[points[0].build].dense,
        panels={size: tuple(panel) for size, panel in panels.items()},
        fastest_dense=_fastest_dense(report),
    )


def _fastest_dense(report: Report) -> Mapping[int, float]:
    """Batch size -> the speed-up over dense of the fastest dense build, where it is another one."""
    best: dict[int, float] = {}
    for build in facts.builds(report, report.dense):
        for row in gains.with_speedup(report, build):
            if row.speedup is not None and row.speedup > best.get(row.batch_size, 1.0):
                best[row.batch_size] = row.speedup
    return best


def _units(report: Report) -> Mapping[str, tuple[UnitsPanel, ...]]:
    """Pruned model -> what it keeps of each kind, layer by layer."""
    panels = {}
    for variant in facts.pruned(report):
        kinds = []
        for kind in facts.kinds(report):
            kinds.append(_panel(variant, kind))
        panels[variant.name] = tuple(kinds)
    return panels if facts.kinds(report) else {}


def _panel(variant: Variant, kind: str) -> UnitsPanel:
    """The panel of a kind; of tokens with all encoder layers, beside their heads and neurons."""
    kept, is_tokens = facts.kept_of(variant, kind), kind == TOKEN_KIND
    count = f"{kept.kept:,} of {kept.total:,}"
    title = f"{facts.kind_label(kind)}: {count}"
    if is_tokens:
        title = f"tokens handed on: {numbers.percent(kept.kept, kept.total)} in the mean"
    numbered = [
        name.rpartition(".")[2]
        for name in facts.layers(variant, "encoder_self" if is_tokens else kind)
    ]
    return UnitsPanel(title, {n: facts.units_of(variant, f"{kind}.{n}") for n in numbered})
