"""The smallest model for `--max-drop`: candidates are built, run on test rows, and judged.

How far to cut is decided in `compressor.budgets.quality`; here it meets the checkpoint and the
rows. Half of the test rows are searched on; the others, which all final figures are measured on,
confirm what was found. Every candidate is a stage of its own, from which a stopped run goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from compressor.budgets.counts import QualityBudget
from compressor.budgets.path import RemovalPath
from compressor.budgets.quality import (
    Found,
    accepted,
    error_of_look,
    find,
    main_comparison,
    within,
)
from compressor.errors import UsageError
from compressor.evaluation import compare, lower_bound
from compressor.evaluation.answers import answers
from compressor.model.sublayers import Mask, Scores
from compressor.pipeline.context import Context, source_of
from compressor.pipeline.evaluate import answer_rows, answer_search_rows
from compressor.pipeline.select import Choice
from compressor.pipeline.stages import stage
from compressor.report.max_drop import unproven
from compressor.request.plan import Plan
from compressor.results import QualityProbe, QualitySearch, Record, Variant
from compressor.storage.staging import staging
from compressor.tasks import Rows

# Builds the artifact of a choice in a directory, as it would be delivered.
Build = Callable[[Context, Plan, Choice, Path], Variant]


class Cut(NamedTuple):
    """A mask of a path; position 0 is the dense model's.

    Args:
        macs: share of the dense model's multiply-adds.
    """

    position: int
    mask: Mask
    macs: float

    @classmethod
    def of(cls, path: RemovalPath, position: int) -> Cut:
        """The cut at a position of a path."""
        return cls(position, path.mask(position), path.shares[position])


def search_quality(
    context: Context,
    plan: Plan,
    budget: QualityBudget,
    scores: Scores,
    path: RemovalPath,
    dense: Variant,
    build: Build,
) -> Choice:
    """The smallest model that loses no more than allowed; each candidate is built and run.

    Args:
        path: nested masks, the dense model's first.
        dense: the exported dense model.
        build: makes the artifact of a candidate.

    Raises:
        UsageError: only the dense model is within the limit, or nothing may be removed.
    """
    if len(path) == 1:
        raise UsageError(
            f"{budget.text}: the floors keep all units; lower --floor or --multiple",
            id="floors-too-high",
        )
    rows, held_out = _parts(context)
    counts = len(rows.sources), len(held_out.sources)
    progress = context.progress
    progress.message(
        f"  searching on {counts[0]:,} of the {sum(counts):,} test rows; the other {counts[1]:,} "
        "are held out for the final figures"
    )
    answered: dict[int, list[str]] = {}

    def probe(position: int) -> QualityProbe:
        cut = Cut.of(path, position)
        candidate = _candidate(context, plan, cut, scores, budget, dense, build)
        answered[position] = candidate.held_out
        progress.message(f"  {_told(candidate.probe, cut.mask, budget.drop)}")
        return candidate.probe

    def look(position: int, number: int) -> QualityProbe:
        cut, reference = Cut.of(path, position), answer_rows(context, dense)
        error = error_of_look(number)
        seen = _judge(context, budget, held_out, reference, answered[position], cut, error)
        progress.message(f"  on the held-out rows: {_told(seen, cut.mask, budget.drop)}")
        return seen

    found = find(len(path) - 1, budget.drop, budget.proof, probe, look)
    if found.position == 0:
        raise _unreachable(context, budget, found, path)
    searched = _described(context, budget, found)
    warning = unproven(searched)
    if warning:
        progress.message(f"warning: {warning}")
    count = "1 model" if len(found.probes) == 1 else f"{len(found.probes)} models"
    text = f"searched on {counts[0]:,} test rows, {count} built and run"
    return Choice(path.mask(found.position), scores, text, searched)


class Candidate(Record):
    """A candidate judged on the rows of the search, and what it answers to the held-out rows.

    Args:
        held_out: answers; empty if the measured drop is too large to go on with.
    """

    probe: QualityProbe
    held_out: list[str]


@stage("candidate")
def _candidate(
    context: Context,
    plan: Plan,
    cut: Cut,
    scores: Scores,
    budget: QualityBudget,
    dense: Variant,
    build: Build,
) -> Candidate:
    """Build a smaller model as it would be delivered, let it answer the rows, judge it."""
    rows, held_out = _parts(context)
    device, beams = context.device, context.recipe.evaluation.num_beams
    name = f"candidate-{cut.position}"
    with staging(context.workspace.state) as staged:
        directory = staged / "artifact"
        candidate = Plan(f"{plan.name}-{name}", plan.budget, directory, plan.action)
        build(context, candidate, Choice(cut.mask, scores), directory)
        outputs = answers(directory, rows, device, beams, context.progress)
        reference = answer_search_rows(context, dense)
        judged = _judge(context, budget, rows, reference, outputs, cut, error_of_look(1))
        if not within(judged, budget.drop):
            return Candidate(probe=judged, held_out=[])
        outputs = answers(directory, held_out, device, beams, context.progress)
    return Candidate(probe=judged, held_out=outputs)


def _judge(
    context: Context,
    budget: QualityBudget,
    rows: Rows,
    reference: list[str],
    outputs: list[str],
    cut: Cut,
    error: float,
) -> QualityProbe:
    """Compare a candidate's answers with the dense model's, by a bound of this one-sided error."""
    resamples, seed = context.recipe.evaluation.resamples, context.recipe.seed
    comparisons = compare(rows.task, reference, outputs, rows.targets, resamples, seed)
    main = main_comparison(comparisons, context.task)
    bound = lower_bound(
        rows.task, main.metric, reference, outputs, rows.targets,
        limit=budget.drop, alpha=error, resamples=resamples, seed=seed,
    )  # fmt: skip
    neurons = cut.mask.count("neurons")
    probe = QualityProbe(
        kept=cut.mask.count("heads"),
        neurons=neurons if neurons < cut.mask.total("neurons") else None,
        macs=cut.macs,
        position=cut.position,
        comparison=main,
        bound=bound.value,
        confidence=1 - error,
        rows_needed=bound.rows,
        accepted=False,
    )
    return probe.model_copy(update={"accepted": accepted(probe, budget.drop, budget.proof)})


def _parts(context: Context) -> tuple[Rows, Rows]:
    """The rows to search on, and the test rows that are held out of the search."""
    assert context.data.search is not None
    assert context.data.test is not None
    return context.data.search, context.data.test


def _told(probe: QualityProbe, mask: Mask, drop: float) -> str:
    """What was found about a candidate, for messages."""
    refused = "not proven" if within(probe, drop) else "refused"
    result = "accepted" if probe.accepted else refused
    return (
        f"{mask}: {probe.comparison.metric} {probe.comparison.difference:+.2f}, "
        f"bound {probe.bound:+.2f}: {result}"
    )


def _described(context: Context, budget: QualityBudget, found: Found) -> QualitySearch:
    rows, held_out = _parts(context)
    return QualitySearch(
        drop=budget.drop,
        metric=context.task.main_metric,
        probes=found.probes,
        proof=budget.proof,
        rows=source_of(rows),
        held_out=len(held_out.sources),
        looks=found.looks,
        delivered=found.position,
        proven=found.proven,
    )


def _unreachable(
    context: Context, budget: QualityBudget, found: Found, path: RemovalPath
) -> UsageError:
    """No cut is within the limit: which one lost least, and how to go on."""
    where = "the held-out rows" if found.looks else "the rows of the search"
    best = max(found.looks or found.probes, key=lambda probe: probe.comparison.difference)
    assert best.position is not None
    metric = context.task.main_metric
    return UsageError(
        f"--max-drop {budget.drop:.15g}: no smaller model loses as little; of those tried, the one "
        f"with {path.mask(best.position)} loses least, {-best.comparison.difference:.2f} {metric} "
        f"on {where}; allow that much, or repair with --recover reconstruct+distill",
        id="max-drop-unreachable",
    )
