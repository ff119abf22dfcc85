"""Heads for a budget that must be measured: a wanted speed-up, an allowed drop in quality.

The choice itself is in `compressor.budgets.speed` and `compressor.budgets.quality`; here it meets
the checkpoint, the machine and the test rows. Every timing and every probe is a stage of its own,
from which a stopped run goes on.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compressor.budgets.counts import QualityBudget, SpeedBudget, fewest_heads
from compressor.budgets.quality import (
    acceptable,
    main_comparison,
    nested_mask,
    search,
)
from compressor.budgets.speed import choose, fewest, reach
from compressor.evaluation import compare
from compressor.evaluation.answers import answers
from compressor.model.sublayers import Mask, Scores
from compressor.pipeline.build import (
    Choice,
    Probe,
    build_variant,
)
from compressor.pipeline.context import Context
from compressor.pipeline.evaluate import answer_rows
from compressor.pipeline.plan import Plan
from compressor.pipeline.select import first_scores, forget, repair
from compressor.pipeline.time_masks import measure_costs, time_mask
from compressor.results import QualityProbe, QualitySearch, SpeedSearch, Variant

Found = tuple[Mask, SpeedSearch | QualitySearch, str]  # heads, how, and how in words


def search_heads(context: Context, plan: Plan, dense: Variant, probe: Probe) -> Choice:
    """The mask of a plan whose budget is measured; a resumable stage made of others.

    Args:
        dense: the exported dense model.
        probe: what every build is checked on.

    Raises:
        UsageError: the wanted speed-up cannot be reached.
    """

    def compute() -> dict[str, Any]:
        scores = first_scores(context)
        if isinstance(plan.budget, SpeedBudget):
            mask, found, text = _for_speed(context, plan.budget, Path(dense.directory), scores)
        else:
            assert isinstance(plan.budget, QualityBudget)
            mask, found, text = _for_quality(context, plan, plan.budget, dense, probe, scores)
        return {
            "kept": mask.to_json(),
            "text": text,
            "search": found.model_dump(),
            **scores.to_json(),
        }

    title = f"searching heads for {plan.budget.text}"
    data = context.workspace.stage(f"heads-{plan.name}", title, compute)
    kind = SpeedSearch if isinstance(plan.budget, SpeedBudget) else QualitySearch
    return Choice(
        Mask.from_json(data["kept"], context.full.counts()),
        Scores.from_json(data),
        context.checkpoint.model,
        data["text"],
        kind.model_validate(data["search"]),
    )


def _for_speed(context: Context, budget: SpeedBudget, dense: Path, scores: Scores) -> Found:
    full, floors, batch = context.full, context.floors, budget.at_batch
    costs = measure_costs(context, dense, batch)
    mask, tries = reach(
        budget.speedup,
        lambda aim: choose(scores, full, floors, costs, aim),
        fewest(scores, full, floors, costs),
        lambda mask, number: time_mask(context, dense, mask, number, batch),
    )
    if not tries[-1].met:
        context.progress.message(
            f"no choice reached {budget.speedup:g} at batch {batch} in {len(tries)} tries; "
            "the fastest one is taken"
        )
    count = "1 choice" if len(tries) == 1 else f"{len(tries)} choices"
    text = f"by the measured cost of attention at batch {batch}, {count} timed"
    return mask, SpeedSearch(wanted=budget.speedup, costs=costs, tries=tries), text


def _for_quality(
    context: Context,
    plan: Plan,
    budget: QualityBudget,
    dense: Variant,
    probe: Probe,
    scores: Scores,
) -> Found:
    full, floors = context.full, context.floors

    def evaluate_candidate(kept: int) -> QualityProbe:
        choice = Choice(nested_mask(scores, full, floors, kept), scores, context.checkpoint.model)
        found = context.workspace.stage(
            f"probe-{kept}",
            f"trying {kept} of {full.total()} heads on the test rows",
            lambda: _evaluate_candidate(context, plan, budget, dense, probe, choice).model_dump(),
        )
        forget(context, f"distill-probe-{kept}")
        result = QualityProbe.model_validate(found)
        low, high = result.comparison.interval
        context.progress.message(
            f"  {kept} heads: {result.comparison.metric} {result.comparison.difference:+.2f} "
            f"[{low:+.2f}, {high:+.2f}], {'accepted' if result.accepted else 'refused'}"
        )
        return result

    kept, probes = search(full.total(), fewest_heads(full, floors), evaluate_candidate)
    found = QualitySearch(drop=budget.drop, metric=context.task.main_metric, probes=probes)
    count = "1 model" if len(probes) == 1 else f"{len(probes)} models"
    text = f"searched on the test rows, {count} built and run"
    return nested_mask(scores, full, floors, kept), found, text


def _evaluate_candidate(
    context: Context,
    plan: Plan,
    budget: QualityBudget,
    dense: Variant,
    probe: Probe,
    choice: Choice,
) -> QualityProbe:
    """Build a smaller model as it would be delivered, let it answer the test rows, judge it."""
    rows, recipe, kept = context.test, context.recipe, choice.mask.count()
    assert rows is not None
    name = f"probe-{kept}"
    with TemporaryDirectory(dir=context.workspace.state, prefix=f"{name}-") as directory:
        artifact = Path(directory) / "artifact"
        build_variant(
            context.checkpoint,
            choice,
            plan.budget,
            recipe.seed,
            probe,
            name,
            artifact,
            lambda model: repair(context, model, name),
            context.tokens,
        )
        outputs = answers(artifact, rows, context.device, recipe.num_beams, context.progress)
    reference = answer_rows(context, dense, rows)
    comparisons = compare(
        rows.task, reference, outputs, rows.targets, resamples=recipe.resamples, seed=recipe.seed
    )
    main = main_comparison(comparisons, rows.task)
    return QualityProbe(kept=kept, comparison=main, accepted=acceptable(main, budget.drop))
