"""Which units go: scores or a learned mask, and the weights that belong to the mask.

Scores give a mask at once or in steps; with a recovery method the model is repaired between the
steps, so that the next scores are those of the model that is really left. Learned masks come with
the weights they were trained with. Weights that differ from the checkpoint's are kept beside the
stage's result, so that a stopped run goes on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file

from compressor.budgets.counts import MacsBudget, latest_scores, select, step_targets
from compressor.budgets.path import removal_path
from compressor.evaluation import main_metric
from compressor.importance import METHODS, Scoring, score_heads
from compressor.learned_masks import Learning
from compressor.learned_masks import learn as learn_mask
from compressor.model.checkpoint import Checkpoint
from compressor.model.restore_shape import restore_shape
from compressor.model.sublayers import Mask, Scores, Sublayer
from compressor.model.surgery import prune
from compressor.pipeline.context import Context
from compressor.pipeline.distill_text import text_of_run
from compressor.pipeline.stages import stage, weights_file
from compressor.progress import Progress
from compressor.recovery import Recovered, Recovery
from compressor.recovery import recover as recover_model
from compressor.recovery.text import Text
from compressor.request.methods import MethodSection, RecoverySection
from compressor.request.plan import Plan
from compressor.request.sections import Macs, Penalty, SteppedCounts
from compressor.results import QualitySearch, SpeedSearch
from compressor.tasks import Example, Task

if TYPE_CHECKING:
    from torch import nn

Search = SpeedSearch | QualitySearch


@dataclass(frozen=True)
class Choice:
    """The units to keep, and what led to them.

    Args:
        text: how they were found, in words, where scores alone do not tell.
        search: what was measured on the way, for budgets that are measured.
    """

    mask: Mask
    scores: Scores
    text: str = ""
    search: Search | None = None

    @property
    def kept(self) -> int:
        """Number of kept units."""
        return self.mask.count()

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "kept": self.mask.to_json(),
            "units": self.mask.totals(),
            "scores": self.scores.to_json(),
            "text": self.text,
            "search": None if self.search is None else self.search.model_dump(mode="json"),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Choice:
        """Inverse of `to_json`.

        Raises:
            ValueError, KeyError, TypeError: `data` is something else.
        """
        return cls(
            Mask.from_json(data["kept"], data["units"]),
            Scores.from_json(data["scores"]),
            data["text"],
            TypeAdapter[Search | None](Search | None).validate_python(data["search"]),
        )


@stage("scores")
def score(context: Context) -> Scores:
    """Scores of all units of the checkpoint; every budget starts from them."""
    return _score(context, context.full, context.checkpoint.model)


def choose(context: Context, plan: Plan, scores: Scores) -> Choice:
    """The mask of a plan that says how many units to keep, at once or in steps.

    Args:
        scores: of all units of the checkpoint that may go.
    """
    budget = context.recipe.budget
    steps = budget.steps if isinstance(budget, SteppedCounts | Macs) else 1
    repairs = steps > 1 and bool(context.recipe.recovery)
    layers, dense = context.checkpoint.layers, context.checkpoint.model
    first, *later = _cuts(context, plan, steps)
    mask, model = first(scores, context.full), dense
    for number, cut in enumerate(later, 1):
        if repairs:
            pruned = prune(model, layers, mask)
            repaired = recover(context, pruned, f"{plan.name}-step-{number}")
            model = restore_shape(dense, repaired.model, layers, mask)
        latest = _score(context, mask, model)
        scores = latest_scores(scores, latest, mask)
        mask = cut(latest, mask)
    if model is not dense:
        _save_weights(model, weights_file(context, "choice", plan=plan))
    return Choice(mask, scores, f"{steps} steps, repaired after each" if repairs else "")


def _cuts(context: Context, plan: Plan, steps: int) -> list[Callable[[Scores, Mask], Mask]]:
    """What each step removes: from scores, and what is left, to the next mask."""
    floors, multiples = context.floors, context.multiples
    if isinstance(plan.budget, MacsBudget):
        costs = context.costs

        def cut_to(share: float, scores: Scores, mask: Mask) -> Mask:
            path = removal_path(scores, mask, floors, costs, multiples)
            return path.mask(path.position_at(share))

        gone = 1 - plan.budget.share
        return [partial(cut_to, 1 - gone * step / steps) for step in range(1, steps + 1)]

    def cut_to_counts(target: Mapping[str, int], scores: Scores, mask: Mask) -> Mask:
        return select(scores, mask, target, floors, multiples)

    return [
        partial(cut_to_counts, target) for target in step_targets(context.full, plan.budget, steps)
    ]


def learn(context: Context, plan: Plan) -> Choice:
    """A learned mask; trained weights are kept beside the result."""
    recipe, checkpoint, progress = context.recipe, context.checkpoint, context.progress
    counted = not isinstance(recipe.budget, Penalty)
    options = _options(recipe.method)
    shared = ("train_weights", "epochs", "learning_rate", "patience")
    settings = {name: options.pop(name) for name in shared}
    if isinstance(recipe.budget, Penalty):
        options["penalty"] = recipe.budget.penalty
    learned = learn_mask(
        recipe.method.name,
        Learning(
            model=checkpoint.model,
            layers=context.sublayers,
            examples=context.examples,
            task=context.task,
            keep=plan.budget.keep if counted else None,
            floors=context.floors,
            multiples=context.multiples,
            weights=settings["train_weights"],
            epochs=settings["epochs"],
            learning_rate=settings["learning_rate"] or context.task.learning_rate,
            patience=settings["patience"],
            seed=recipe.seed,
            device=context.device,
            state=context.workspace.state / f"gates-{plan.name}.safetensors",
            report=progress.message,
            progress=lambda done, total: progress.update("training steps", done, total),
        ),
        **options,
    )
    if learned.model is not checkpoint.model:
        _save_weights(learned.model, weights_file(context, "choice", plan=plan))
    mask = Mask({**context.full.keep, **learned.mask.keep})
    return Choice(mask, learned.scores, learned.text)


def chosen_model(context: Context, plan: Plan) -> nn.Module:
    """What a plan's units are cut from: the checkpoint's model, or the weights of its choice."""
    path = weights_file(context, "choice", plan=plan)
    if not path.exists():
        return context.checkpoint.model
    model = copy.deepcopy(context.checkpoint.model)
    model.load_state_dict(load_file(path))
    return model


def recover(context: Context, pruned: nn.Module, name: str) -> Recovered:
    """Repair a pruned model as the recipe says.

    Args:
        name: of the model, for the file from which a stopped training goes on.
    """
    return repair(
        context.recipe.recovery,
        context.checkpoint,
        context.task,
        context.examples,
        pruned,
        seed=context.recipe.seed,
        device=context.device,
        progress=context.progress,
        state=context.workspace.state / f"distill-{name}.safetensors",
        text=text_of_run(context),
    )


def _score(context: Context, mask: Mask, model: nn.Module) -> Scores:
    return score_model(
        context.recipe.method,
        context.checkpoint,
        context.sublayers,
        context.task,
        context.examples,
        mask,
        seed=context.recipe.seed,
        device=context.device,
        progress=context.progress,
        references=context.data.fitted.targets,
        model=model,
    )


def score_model(
    method: MethodSection,
    checkpoint: Checkpoint,
    sublayers: Sequence[Sublayer],
    task: Task,
    examples: Sequence[Example],
    mask: Mask,
    *,
    seed: int,
    device: str,
    progress: Progress,
    references: Sequence[str] = (),
    model: nn.Module | None = None,
) -> Scores:
    """Run a scoring method over encoded calibration rows on a device.

    Args:
        sublayers: whose units are scored.
        mask: units that are still there; the others are gated to zero and score zero.
        references: the right answer to every row that `examples` were made from.
        model: one of the checkpoint's shape, to be scored in its place.
    """
    model = model or checkpoint.model
    needs_rows = METHODS[method.name].needs_rows
    labels = task.label_names(checkpoint.model.config)

    def metric(answers: Sequence[str]) -> tuple[float, str]:
        return main_metric(task.name, answers, references, labels)

    scoring = Scoring(
        model=model.to(device),
        layers=sublayers,
        mask=mask,
        batches=task.batches(examples, model) if needs_rows else [],
        task=task,
        tokenizer=checkpoint.tokenizer,
        metric=metric if references else None,
        seed=seed,
        device=device,
        progress=lambda done, total: progress.update("scoring", done, total),
    )
    try:
        return score_heads(method.name, scoring, **_options(method))
    finally:
        model.to("cpu")


def repair(
    steps: Sequence[RecoverySection],
    checkpoint: Checkpoint,
    task: Task,
    examples: Sequence[Example],
    pruned: nn.Module,
    *,
    seed: int,
    device: str,
    progress: Progress,
    state: Path | None = None,
    text: Text | None = None,
) -> Recovered:
    """Run recovery methods, with a checkpoint's model as what to come close to.

    Args:
        text: to distill from, of a translator with its translations.
    """
    job = Recovery(
        dense=checkpoint.model,
        pruned=pruned,
        layers=checkpoint.layers,
        task=task,
        examples=examples,
        seed=seed,
        device=device,
        progress=lambda done, total: progress.update("repair", done, total),
        report=progress.message,
        state=state,
        text=text,
    )
    methods = {}
    for step in steps:
        methods[step.name] = step.model_dump(exclude={"name", "text", "beams"})
        for option, default in (
            ("learning_rate", task.learning_rate), ("hidden", task.hidden_weight)
        ):  # fmt: skip
            if methods[step.name].get(option, default) is None:
                methods[step.name][option] = default
    return recover_model(methods, job)


def _options(section: MethodSection) -> dict[str, Any]:
    return section.model_dump(exclude={"name"})


def _save_weights(model: nn.Module, path: Path) -> None:
    # Tied weights share memory, which the file format refuses: every name gets a copy.
    tensors = {n: t.to("cpu", copy=True).contiguous() for n, t in model.state_dict().items()}
    temporary = path.with_suffix(".tmp")
    save_file(tensors, temporary)
    temporary.replace(path)
