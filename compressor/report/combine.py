"""Combine reports of several runs on the same model into one, or take one variant out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compressor.errors import InputError
from compressor.report import facts
from compressor.report.schema import Report, Run
from compressor.results import Outcome, Ranking, Variant


def combine(reports: Sequence[Report]) -> Report:
    """One report with the variants and gate outcomes of all, and the runs they come from.

    Facts in which the runs differ are left out; `runs` has them. Timings are left out too: ratios
    of different runs are not comparable on a machine whose load changes.

    Raises:
        InputError: the reports are about different models, tasks, test rows, or dense quality.
    """
    first, *others = reports
    for other in others:
        _require_same(first, other)
    if not others:
        return first
    variants: list[Variant] = []
    gate: list[Outcome] = []
    runs: list[Run] = []
    for report in reports:
        renamed = _new_names(report, first.dense.name, {variant.name for variant in variants})
        variants += [
            variant.model_copy(
                update={
                    "name": renamed[variant.name],
                    "base": renamed[variant.base] if variant.base else "",
                    "scoring": None if variant.base else facts.scoring(report, variant),
                }
            )
            for variant in report.variants
        ]
        gate += [
            found.model_copy(update={"variant": renamed.get(found.variant, found.variant)})
            for found in report.gate
        ]
        runs += [
            run.model_copy(update={"variants": [renamed[name] for name in run.variants]})
            for run in facts.runs(report)
        ]
    scoring, variants = share_scoring(variants)
    found = {
        "scoring": scoring,
        "variants": variants,
        "gate": gate,
        "runs": runs,
        "throughput": None,
        "search": None,  # `runs` has each run's own
    }
    return first.model_copy(update=_common(runs) | found)


def _require_same(first: Report, other: Report) -> None:
    for what, mine, its in (
        ("model", first.model, other.model),
        ("task", first.task, other.task),
        ("test data", first.test and first.test.sha256, other.test and other.test.sha256),
        ("dense quality", _quality(first), _quality(other)),
    ):
        if mine != its:
            raise InputError(
                f"the reports cannot be combined: their {what} differs ({mine} and {its}); give "
                "reports of runs on the same model and test rows with the same options for "
                "answering, such as --num-beams",
                id="reports-differ",
            )


def _quality(report: Report) -> str:
    """The dense model's metrics in full precision, with their signatures."""
    found = report.dense.quality
    if found is None:
        return "none"
    return ", ".join(
        f"{name} {value!r} [{found.signatures.get(name, '')}]"
        for name, value in found.metrics.items()
    )


def _new_names(report: Report, dense: str, taken: set[str]) -> dict[str, str]:
    """Old name -> name that no other variant has."""
    renamed = {report.dense.name: dense}
    for variant in report.variants:
        name, number = variant.name, 2
        while name in taken:
            name, number = f"{variant.name}-{number}", number + 1
        renamed[variant.name] = name
        taken.add(name)
    return renamed


def _common(runs: Sequence[Run]) -> dict[str, Any]:
    """The facts in which all runs agree, with a neutral value for the others."""
    first, *others = runs

    def shared(name: str, otherwise: Any) -> Any:
        mine = getattr(first, name)
        return mine if all(getattr(run, name) == mine for run in others) else otherwise

    def shared_items(name: str) -> dict[str, str]:
        common = set.intersection(*(set(getattr(run, name).items()) for run in runs))
        return {key: text for key, text in getattr(first, name).items() if (key, text) in common}

    return {
        "command": shared("command", ""),
        "seed": shared("seed", None),
        "calibration": shared("calibration", None),
        "source_text": shared("source_text", None),
        "target_text": shared("target_text", None),
        "shared_rows": max(run.shared_rows for run in runs),
        "created": max(run.created for run in runs),
        "hardware": shared_items("hardware"),
        "versions": shared_items("versions"),
    }


def only(report: Report, variant: Variant) -> Report:
    """The report of the dense model and one variant, each in all its precisions."""
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
    own: dict[str, Any] = {"variants": variants, "throughput": timed, "gate": gates}
    for run in report.runs:
        if variant.name in run.variants:
            own |= {name: getattr(run, name) for name in facts.RUN_FIELDS}
            own["runs"] = [run.model_copy(update={"variants": [v.name for v in variants]})]
    return report.model_copy(update=own | {"scoring": scoring})


def share_scoring(variants: Sequence[Variant]) -> tuple[Ranking | None, list[Variant]]:
    """Move a scoring that all variants share out of them, so that a report holds it once.

    Returns:
        The shared scoring and the variants without it; None and the variants as they are, where
        their heads were ranked by different scores.
    """
    cut = [variant for variant in variants if not variant.base]
    if not cut or any(variant.scoring != cut[0].scoring for variant in cut):
        return None, list(variants)
    return cut[0].scoring, [found.model_copy(update={"scoring": None}) for found in variants]
