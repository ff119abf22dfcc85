"""Heads for a budget that must be measured: a wanted speed-up, an allowed drop in quality.

The choice itself is in `compressor.speed_budget` and `compressor.quality_budget`; here it meets the
checkpoint, the machine and the test rows. Every timing and every probe is a stage of its own, from
which a stopped run goes on.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compressor.budget import QualityBudget, SpeedBudget, fewest_heads
from compressor.choosing import first_scores, forget, repair
from compressor.evaluating import answer_rows
from compressor.evaluation import compare
from compressor.heads import HeadMask, HeadScores
from compressor.journey import Journey
from compressor.planning import Plan
from compressor.quality_budget import (
    MAIN_METRIC,
    acceptable,
    main_comparison,
    nested_mask,
    search,
)
from compressor.report.schema import QualityProbe, QualitySearch, SpeedSearch, Variant
from compressor.speed_budget import choose, fewest, reach
from compressor.speed_trials import measure_costs, time_mask
from compressor.stages import (
    Choice,
    Probe,
    build_variant,
    scores_from_json,
    scores_to_json,
)
from compressor.tasks.answers import answers

Found = tuple[HeadMask, SpeedSearch | QualitySearch, str]  # heads, how, and how in words


def search_heads(journey: Journey, plan: Plan, dense: Variant, probe: Probe) -> Choice:
    """The mask of a plan whose budget is measured; a resumable stage made of others.

    Args:
        dense: the exported dense model.
        probe: what every build is checked on.

    Raises:
        UsageError: the wanted speed-up cannot be reached.
    """

    def compute() -> dict[str, Any]:
        scores = first_scores(journey)
        if isinstance(plan.budget, SpeedBudget):
            mask, found, text = _for_speed(journey, plan.budget, Path(dense.directory), scores)
        else:
            assert isinstance(plan.budget, QualityBudget)
            mask, found, text = _for_quality(journey, plan, plan.budget, dense, probe, scores)
        return {
            "kept": mask.to_json(),
            "text": text,
            "search": found.model_dump(),
            **scores_to_json(scores),
        }

    title = f"searching heads for {plan.budget.text}"
    data = journey.workspace.stage(f"heads-{plan.name}", title, compute)
    kind = SpeedSearch if isinstance(plan.budget, SpeedBudget) else QualitySearch
    return Choice(
        HeadMask.from_json(data["kept"], journey.full.counts()),
        scores_from_json(data),
        journey.checkpoint.model,
        data["text"],
        kind.model_validate(data["search"]),
    )


def _for_speed(journey: Journey, budget: SpeedBudget, dense: Path, scores: HeadScores) -> Found:
    full, floors, batch = journey.full, journey.floors, budget.at_batch
    costs = measure_costs(journey, dense, batch)
    mask, tries = reach(
        budget.speedup,
        lambda aim: choose(scores, full, floors, costs, aim),
        fewest(scores, full, floors, costs),
        lambda mask, number: time_mask(journey, dense, mask, number, batch),
    )
    if not tries[-1].met:
        journey.talk.say(
            f"no choice reached {budget.speedup:g} at batch {batch} in {len(tries)} tries; "
            "the fastest one is taken"
        )
    count = "1 choice" if len(tries) == 1 else f"{len(tries)} choices"
    text = f"by the measured cost of attention at batch {batch}, {count} timed"
    return mask, SpeedSearch(wanted=budget.speedup, costs=costs, tries=tries), text


def _for_quality(
    journey: Journey,
    plan: Plan,
    budget: QualityBudget,
    dense: Variant,
    probe: Probe,
    scores: HeadScores,
) -> Found:
    full, floors = journey.full, journey.floors

    def look(kept: int) -> QualityProbe:
        choice = Choice(nested_mask(scores, full, floors, kept), scores, journey.checkpoint.model)
        found = journey.workspace.stage(
            f"probe-{kept}",
            f"trying {kept} of {full.total()} heads on the test rows",
            lambda: _look(journey, plan, budget, dense, probe, choice).model_dump(),
        )
        forget(journey, f"distill-probe-{kept}")
        result = QualityProbe.model_validate(found)
        low, high = result.comparison.interval
        journey.talk.say(
            f"  {kept} heads: {result.comparison.metric} {result.comparison.difference:+.2f} "
            f"[{low:+.2f}, {high:+.2f}], {'accepted' if result.accepted else 'refused'}"
        )
        return result

    kept, probes = search(full.total(), fewest_heads(full, floors), look)
    found = QualitySearch(
        drop=budget.drop, metric=MAIN_METRIC[journey.checkpoint.entry.task], probes=probes
    )
    count = "1 model" if len(probes) == 1 else f"{len(probes)} models"
    text = f"searched on the test rows, {count} built and run"
    return nested_mask(scores, full, floors, kept), found, text


def _look(
    journey: Journey,
    plan: Plan,
    budget: QualityBudget,
    dense: Variant,
    probe: Probe,
    choice: Choice,
) -> QualityProbe:
    """Build a smaller model as it would be delivered, let it answer the test rows, judge it."""
    rows, recipe, kept = journey.test, journey.recipe, choice.mask.count()
    assert rows is not None
    name = f"probe-{kept}"
    with TemporaryDirectory(dir=journey.workspace.state, prefix=f"{name}-") as directory:
        artifact = Path(directory) / "artifact"
        build_variant(
            journey.checkpoint,
            choice,
            plan.budget,
            recipe.seed,
            probe,
            name,
            artifact,
            lambda model: repair(journey, model, choice.mask, name),
            journey.tokens,
        )
        outputs = answers(artifact, rows, journey.device, recipe.num_beams, journey.talk)
    reference = answer_rows(journey, dense, rows)
    comparisons = compare(
        rows.task, reference, outputs, rows.targets, resamples=recipe.resamples, seed=recipe.seed
    )
    main = main_comparison(comparisons, rows.task)
    return QualityProbe(kept=kept, comparison=main, accepted=acceptable(main, budget.drop))
