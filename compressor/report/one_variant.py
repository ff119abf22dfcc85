"""The report of one variant of a run; and scores that all variants share, held once."""

from __future__ import annotations

from collections.abc import Sequence

from compressor.report import facts
from compressor.report.schema import Report
from compressor.results import Ranking, Variant


def only(report: Report, variant: Variant) -> Report:
    """The report of the dense model and one variant, each in all its precisions."""
    chosen = {report.dense.name, variant.name, variant.base or variant.name}
    variants = [v for v in report.variants if chosen & {v.name, v.base}]
    names = {report.dense.name, *(v.name for v in variants)}
    timed = report.throughput
    if timed is not None:
        rows = [row for row in timed.rows if row.variant in names]
        timed = timed.model_copy(update={"rows": rows})
    return report.model_copy(
        update={
            "variants": [model.model_copy(update={"scoring": None}) for model in variants],
            "scoring": facts.scoring(report, variant),
            "throughput": timed,
            "gate": [outcome for outcome in report.gate if outcome.variant in names],
        }
    )


def share_scoring(variants: Sequence[Variant]) -> tuple[Ranking | None, list[Variant]]:
    """A scoring that all variants share, so that a report holds it once, and them without it.

    None and the variants as they are if their heads were ranked by different scores.
    """
    pruned = [variant for variant in variants if not variant.base]
    if not pruned or any(variant.scoring != pruned[0].scoring for variant in pruned):
        return None, list(variants)
    return pruned[0].scoring, [model.model_copy(update={"scoring": None}) for model in variants]
