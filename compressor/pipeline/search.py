"""Units for a budget that must be measured: a wanted speed-up, an allowed drop in quality.

The choice itself is in `compressor.budgets`; here it meets the checkpoint, the machine and the test
rows. Every timing and every candidate is a stage of its own, from which a stopped run goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from compressor.budgets.counts import QualityBudget, SpeedBudget, fewest_units
from compressor.budgets.quality import acceptable, main_comparison, nested_mask, search
from compressor.budgets.speed import Candidate, choose, fewest, reach
from compressor.evaluation import compare
from compressor.evaluation.answers import answers
from compressor.model.sublayers import Mask, Scores
from compressor.pipeline.context import Context
from compressor.pipeline.evaluate import answer_rows
from compressor.pipeline.plan import Plan
from compressor.pipeline.select import Choice
from compressor.pipeline.stages import stage
from compressor.pipeline.time_masks import measure_costs, time_mask
from compressor.results import QualityProbe, QualitySearch, SpeedSearch, Timing, Variant

# Builds the artifact of a choice in a directory, as it would be delivered.
Build = Callable[[Context, Plan, Choice, Path], Variant]


def search_speed(context: Context, budget: SpeedBudget, scores: Scores, dense: Variant) -> Choice:
    """The least loss that makes the model as fast as wanted, by a table of measured times.

    Args:
        dense: the exported dense model.

    Raises:
        UsageError: the wanted speed-up cannot be reached.
    """
    full, floors, batch = context.full, context.floors, budget.at_batch
    directory = Path(dense.directory)
    costs = measure_costs(context, directory, batch)

    def choose_for(aim: float) -> Candidate | None:
        return choose(scores, full, floors, costs, aim, context.multiples)

    def measure(mask: Mask, number: int) -> Timing:
        return time_mask(context, directory, mask, number, batch)

    least = fewest(scores, full, floors, costs, context.multiples)
    mask, tries = reach(budget.speedup, choose_for, least, measure)
    if not tries[-1].met:
        context.progress.message(
            f"no choice reached {budget.speedup:g} at batch {batch} in {len(tries)} tries; "
            "the fastest one is taken"
        )
    count = "1 choice" if len(tries) == 1 else f"{len(tries)} choices"
    text = f"by the measured cost of units at batch {batch}, {count} timed"
    found = SpeedSearch(wanted=budget.speedup, costs=costs, tries=tries)
    return Choice(mask, scores, text, found)


def search_quality(
    context: Context,
    plan: Plan,
    budget: QualityBudget,
    scores: Scores,
    dense: Variant,
    build: Build,
) -> Choice:
    """As few units as lose no more than allowed; each candidate is built and run on the test rows.

    Args:
        dense: the exported dense model.
        build: makes the artifact of a candidate.
    """
    full, floors = context.full, context.floors

    def evaluate_candidate(kept: int) -> QualityProbe:
        choice = Choice(nested_mask(scores, full, floors, kept), scores)
        found = _candidate(context, plan, choice, budget, dense, build)
        low, high = found.comparison.interval
        context.progress.message(
            f"  {kept} heads: {found.comparison.metric} {found.comparison.difference:+.2f} "
            f"[{low:+.2f}, {high:+.2f}], {'accepted' if found.accepted else 'refused'}"
        )
        return found

    kept, probes = search(full.total(), fewest_units(full, floors), evaluate_candidate)
    count = "1 model" if len(probes) == 1 else f"{len(probes)} models"
    return Choice(
        nested_mask(scores, full, floors, kept),
        scores,
        f"searched on the test rows, {count} built and run",
        QualitySearch(drop=budget.drop, metric=context.task.main_metric, probes=probes),
    )


@stage("candidate")
def _candidate(
    context: Context,
    plan: Plan,
    choice: Choice,
    budget: QualityBudget,
    dense: Variant,
    build: Build,
) -> QualityProbe:
    """Build a smaller model as it would be delivered, let it answer the test rows, judge it."""
    rows, recipe = context.data.test, context.recipe
    assert rows is not None
    name = f"candidate-{choice.kept}"
    with TemporaryDirectory(dir=context.workspace.state, prefix=f"{name}-") as temporary:
        directory = Path(temporary) / "artifact"
        candidate = Plan(f"{plan.name}-{name}", plan.budget, directory, plan.action)
        build(context, candidate, choice, directory)
        outputs = answers(
            directory, rows, context.device, recipe.evaluation.num_beams, context.progress
        )
    reference = answer_rows(context, dense)
    comparisons = compare(
        rows.task, reference, outputs, rows.targets,
        resamples=recipe.evaluation.resamples, seed=recipe.seed,
    )  # fmt: skip
    main = main_comparison(comparisons, context.task)
    return QualityProbe(kept=choice.kept, comparison=main, accepted=acceptable(main, budget.drop))
