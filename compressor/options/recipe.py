"""What `compress run` takes: the recipe of a smaller model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any, Self

import yaml

from compressor.budgets import BUDGETS, Budget
from compressor.export.engine_names import ONNXRUNTIME
from compressor.importance import METHODS, ScoringMethod, UnitMethod
from compressor.learned_masks import LEARNED
from compressor.options.assemble import Chosen, Request, Values, condition_met, options_of_command
from compressor.options.declare import Options, declared_by, option
from compressor.options.refuse import CLASH, USELESS, refuse, require_rows
from compressor.options.sections import (
    DEVICE,
    SEED,
    Benchmark,
    Card,
    Data,
    Device,
    Gate,
    ModelSection,
    RunEvaluation,
    RunExport,
)
from compressor.recovery import RECOVERIES, RecoveryMethod, extra_text
from compressor.tasks import Task
from compressor.tasks.texts import SOURCE

DEFAULT_METHOD = "second-order"
Method = Annotated[ScoringMethod, Chosen(METHODS)]
Recovery = Annotated[list[RecoveryMethod], Chosen(RECOVERIES, many=True)]
RECOVERY_HELP = (
    "Recovery after pruning: reconstruct (least squares), none, distill (train on the dense "
    "model's predictions), or reconstruct+distill. "
)
_UNTESTED = "test-rows-missing"


class Recipe(Request):
    """What `compress run` takes."""

    model: ModelSection
    data: Data
    method: Annotated[UnitMethod, Chosen({**METHODS, **LEARNED})] = option(
        DEFAULT_METHOD,
        first=True,
        help=f"How to find the units to keep. Scores: {', '.join(METHODS)}. Learned masks: "
        f"{', '.join(LEARNED)}. Default: {DEFAULT_METHOD}.",
    )
    budget: Annotated[Budget, Chosen(BUDGETS)]
    recovery: Recovery = option(
        "reconstruct", name="recover", first=True, help=f"{RECOVERY_HELP}Default: reconstruct."
    )
    export: RunExport
    evaluation: RunEvaluation
    throughput: Annotated[Benchmark | None, Chosen(Benchmark)] = option(
        True, name="bench", first=True, help="Measure throughput, or not."
    )
    card: Card
    gate: Gate
    seed: int = SEED
    device: Device = DEVICE

    @classmethod
    def defaults(cls, values: Values) -> dict[str, Any]:
        """Do not reconstruct weights that are trained with a learned mask."""
        # Reconstruction would undo what training did to weights.
        return {} if values.get("train_weights", "none") == "none" else {"recover": "none"}

    @classmethod
    def needed(cls, values: Values) -> list[str]:
        """Rows: the usual method and recovery need them, and builds are checked on them."""
        given = values.get("calibration") or values.get("test")
        usual = not values.keys() & {"method", "recover"}
        return [] if values.get("calibration") or (given and not usual) else ["--calibration"]

    def check(self) -> None:
        """Raise `UsageError` for options that do not go together."""
        rules = self.gate.rules()
        _check_method(self)
        require_rows(self.method, self.recovery, self.data)
        _check_budget(self)
        _check_candidates(self)
        for rule in rules:
            refuse(
                rule.needs_test_rows and self.data.test is None,
                _UNTESTED,
                f"--{rule.name} needs --test FILE to measure quality on",
            )
            if rule.needs_timing:
                _check_timing(self, f"--{rule.name}", rule.batch_size)
            refuse(
                rule.needs_engines and len(self.export.engines) == 1,
                "engines-missing",
                f"--{rule.name} needs --engines with another engine beside {ONNXRUNTIME}",
            )

    def with_recovery(self, steps: Sequence[RecoveryMethod]) -> Self:
        """A copy with other options of the recovery."""
        options = dict(self.options)
        for step in steps:
            options |= options_of(step)
        return self.model_copy(update={"recovery": steps, "options": options})

    def resolved(self, device: str, task: Task, *, tokens: bool) -> Self:
        """A copy with what device and model decide, so that it says what was done.

        Args:
            device: to compute on.
            task: of the model.
            tokens: whether layers of the model may hand on fewer tokens than they get.
        """
        recovery = [x.on_device(device).for_task(task) for x in self.recovery]
        # Graphs that choose tokens have no fused form for CUDA.
        tokens = tokens and self.method.scores_tokens and device == "cpu"
        budget = self.budget.with_default_units(tokens)
        options = {**self.options, "device": self.device}  # which a launcher may have set
        if budget != self.budget:
            options |= options_of(budget)
        made = self.model_copy(update={"budget": budget, "options": options})
        return made.with_recovery(recovery)

    def options_that_count(self) -> dict[str, Any]:
        """The options that change results; see `options_by_file_names`."""
        free = {*Card.model_fields, *Gate.model_fields, "verify"}
        options = self.options_by_file_names().items()
        return {name: value for name, value in options if name not in free}

    def options_by_file_names(self) -> dict[str, Any]:
        """The options, with files by their names: their contents count, not where they lie."""
        declared = options_of_command(type(self))
        return {
            name: os.path.basename(value) if value and declared[name].files else value
            for name, value in self.options.items()
        }

    def to_yaml(self, budget: Budget | None = None) -> str:
        """All options as a recipe file, of the run or of the artifact of one of its budgets."""
        options = {**self.options, **({} if budget is None else options_of(budget))}
        return yaml.safe_dump(options, sort_keys=False, allow_unicode=True)


def options_of(value: Options) -> dict[str, Any]:
    """The options that a value was made of, by their names, as in `Request.options`."""
    fields, declared = value.model_dump(), declared_by(type(value))
    values = {x.name: x.portable(fields[x.field]) for x in declared}
    return {x.name: values[x.name] for x in declared if condition_met(x.only_with, values)}


def _check_method(recipe: Recipe) -> None:
    method, budget = recipe.method, recipe.budget
    trained = method.trained_weights
    takes = " or ".join(name for name, learned in LEARNED.items() if learned.takes_penalty)
    refuse(
        budget.by_penalty and not method.takes_penalty,
        USELESS,
        f"{budget.flag_text} is for --method {takes}, not for {method.name}; choose that, or give "
        "--keep",
    )
    refuse(
        method.learns and bool(budget.needs_scores),
        CLASH,
        f"--method {method.name} does not go with {budget.needs_scores}, which needs scores from "
        f"one of {', '.join(METHODS)}",
    )
    refuse(
        method.learns and budget.scorings > 1,
        CLASH,
        f"--steps {budget.scorings} does not go with --method {method.name}, which learns the "
        "whole mask at once; leave it out",
    )
    refuse(
        trained != "none" and any(step.undoes_training for step in recipe.recovery),
        CLASH,
        f"reconstruction would re-solve what --train-weights {trained} trains, towards the "
        "weights before; use --recover none, which is the default with trained weights, or distill",
    )


def _check_budget(recipe: Recipe) -> None:
    budget, export = recipe.budget, recipe.export
    has_test = recipe.data.test is not None
    refuse(
        recipe.data.calibration is None and not has_test,
        "rows-missing",
        "give --calibration FILE or --test FILE: builds are checked on its rows",
    )
    if budget.timed_batch is not None:
        _check_timing(recipe, budget.flag_text, budget.timed_batch)
        refuse(
            export.source_text is not None,
            CLASH,
            f"{SOURCE} does not go with {budget.flag_text}, whose dense model has all tokens; "
            "leave it out, and give it to `compress export` afterwards",
        )
    refuse(
        bool(budget.needs_training) and not any(step.trains for step in recipe.recovery),
        USELESS,
        f"{budget.needs_training} is for a recovery that trains; add --recover "
        "reconstruct+distill, or leave it out",
    )
    refuse(
        budget.timed_engine not in (None, *export.engines),
        "engine-not-exported",
        f"--at-engine {budget.timed_engine} is not among the engines that models are exported "
        f"for; add --engines {ONNXRUNTIME},{budget.timed_engine}",
    )
    refuse(
        budget.searches_rows and not has_test,
        _UNTESTED,
        f"{budget.flag_text} needs --test FILE to search on and to measure on",
    )


def _check_candidates(recipe: Recipe) -> None:
    wanted = recipe.export.candidates
    refuse(
        wanted is not None and extra_text(recipe.recovery) is None,
        "candidates-without-text",
        f"--candidates {wanted} are counted in the dense model's answers to --distill-text FILE; "
        "give that, and --recover reconstruct+distill, or leave --candidates out",
    )


def _check_timing(recipe: Recipe, option: str, batch_size: int | None) -> None:
    timed = recipe.throughput
    refuse(timed is None, CLASH, f"{option} needs throughput; drop --no-bench")
    refuse(
        timed is not None and batch_size not in (None, *timed.batch_size),
        "batch-size-not-measured",
        f"{option}: batch size {batch_size} is not measured; add it to --batch-size",
    )
