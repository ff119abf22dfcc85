"""One report from several of the same model: each run's variants side by side."""

from __future__ import annotations

from collections.abc import Sequence

from compressor.errors import InputError
from compressor.report import facts
from compressor.report.schema import Report, Scoring, Variant


def combine(reports: Sequence[Report]) -> Report:
    """The variants of all reports in one; the rest is the first report's.

    Timings are kept only where all come from one report: ratios of different runs are not
    comparable on a machine whose load changes.

    Raises:
        InputError: the reports are about different models, tasks or test rows.
    """
    first, *others = reports
    for other in others:
        for what, mine, its in (
            ("model", first.model, other.model),
            ("task", first.task, other.task),
            ("test data", first.test and first.test.sha256, other.test and other.test.sha256),
        ):
            if mine != its:
                raise InputError(
                    f"the reports cannot stand side by side: their {what} differs "
                    f"({mine} and {its})"
                )
    if not others:
        return first
    variants: dict[str, Variant] = {}
    for report in reports:
        renamed = {report.dense.name: first.dense.name}
        for variant in report.variants:
            name, number = variant.name, 2
            while name in variants:
                name, number = f"{variant.name}-{number}", number + 1
            renamed[variant.name] = name
            base = renamed[variant.base] if variant.base else ""  # float32 comes first
            variants[name] = variant.model_copy(update={"name": name, "base": base})
    return first.model_copy(
        update={
            "variants": list(variants.values()),
            "throughput": None,
            "gate": [],
            "search": None,  # it is about one variant's heads
        }
    )


def only(report: Report, variant: Variant) -> Report:
    """The report with the dense model and one variant alone, both in all their precisions."""
    chosen = {report.dense.name, variant.name, variant.base or variant.name}
    variants = [v for v in report.variants if chosen & {v.name, v.base}]
    names = {report.dense.name, *(v.name for v in variants)}
    timed = report.throughput
    if timed is not None:
        rows = [row for row in timed.rows if row.variant in names]
        timed = timed.model_copy(update={"rows": rows})
    gates = [outcome for outcome in report.gate if outcome.variant in names]
    scoring = facts.scoring(report, variant)
    variants = [found.model_copy(update={"scoring": None}) for found in variants]
    return report.model_copy(
        update={"variants": variants, "throughput": timed, "gate": gates, "scoring": scoring}
    )


def share_scoring(variants: Sequence[Variant]) -> tuple[Scoring | None, list[Variant]]:
    """The scoring that all variants have in common, and the variants without it.

    None, and the variants as they are, where their heads were ranked by different scores.
    """
    cut = [variant for variant in variants if not variant.base]
    if not cut or any(variant.scoring != cut[0].scoring for variant in cut):
        return None, list(variants)
    return cut[0].scoring, [found.model_copy(update={"scoring": None}) for found in variants]
