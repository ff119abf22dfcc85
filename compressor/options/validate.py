"""Options must agree with each other and with the model; checked before any long computation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compressor.budgets import Counts
from compressor.budgets.competing import UNITS_TO_PRUNE
from compressor.errors import UsageError
from compressor.export.engine_names import ONNXRUNTIME
from compressor.importance import METHODS, UnitMethod
from compressor.learned_masks import LEARNED
from compressor.options.assemble import assemble
from compressor.options.declare import Options, declared_by
from compressor.options.requests import (
    DEFAULT_METHOD,
    ExportRequest,
    PruneRequest,
    Recipe,
    ScoreRequest,
)
from compressor.options.sections import CalibrationData, Export, Gate
from compressor.recovery import RecoveryMethod, extra_text
from compressor.report.rules import Rule, parse_rules
from compressor.tasks import TASKS, Task
from compressor.tasks.texts import SOURCE, TARGET

if TYPE_CHECKING:
    from compressor.model.checkpoint import Checkpoint

_CLASH, _USELESS = "options-exclude-each-other", "option-without-use"
_UNTESTED = "test-rows-missing"


def gate_rules(gate: Gate) -> list[Rule]:
    """The rules that options of a gate ask for; UsageError for a malformed one."""
    return parse_rules(gate.model_dump())


def check_recipe(recipe: Recipe) -> None:
    """Raise `UsageError` for options of a recipe that do not go together."""
    rules = gate_rules(recipe.gate)
    _check_method(recipe)
    require_rows(recipe.method, recipe.recovery, recipe.data)
    _check_budget(recipe)
    _check_candidates(recipe)
    for rule in rules:
        _refuse(
            rule.needs_test_rows and recipe.data.test is None,
            _UNTESTED,
            f"--{rule.name} needs --test FILE to measure quality on",
        )
        if rule.needs_timing:
            _check_timing(recipe, f"--{rule.name}", rule.batch_size)
        _refuse(
            rule.needs_engines and len(recipe.export.engines) == 1,
            "engines-missing",
            f"--{rule.name} needs --engines with another engine beside {ONNXRUNTIME}",
        )


def require_rows(
    method: UnitMethod | None, recovery: Sequence[RecoveryMethod], data: CalibrationData
) -> None:
    """Raise `UsageError` if a method or a recovery needs calibration rows and none are given."""
    if data.calibration is not None:
        return
    missing, wanted = "calibration-missing", "needs --calibration FILE; give one"
    if method is not None:
        _refuse(method.needs_rows, missing, f"--method {method.name} {wanted}")
    names = "+".join(step.name for step in recovery)
    _refuse(bool(recovery), missing, f"--recover {names} {wanted}, or --recover none")


def _refuse(is_wrong: bool, id: str, message: str) -> None:
    if is_wrong:
        raise UsageError(message, id=id)


def _check_method(recipe: Recipe) -> None:
    method, budget = recipe.method, recipe.budget
    trained = method.trained_weights
    takes = " or ".join(name for name, learned in LEARNED.items() if learned.takes_penalty)
    _refuse(
        budget.by_penalty and not method.takes_penalty,
        _USELESS,
        f"{budget.as_typed} is for --method {takes}, not for {method.name}; choose that, or give "
        "--keep",
    )
    _refuse(
        method.learns and bool(budget.needs_scores),
        _CLASH,
        f"--method {method.name} does not go with {budget.needs_scores}, which needs scores from "
        f"one of {', '.join(METHODS)}",
    )
    _refuse(
        method.learns and budget.scorings > 1,
        _CLASH,
        f"--steps {budget.scorings} does not go with --method {method.name}, which learns the "
        "whole mask at once; leave it out",
    )
    _refuse(
        trained != "none" and any(step.undoes_training for step in recipe.recovery),
        _CLASH,
        f"reconstruction would re-solve what --train-weights {trained} trains, towards the "
        "weights before; use --recover none, which is the default with trained weights, or distill",
    )


def _check_budget(recipe: Recipe) -> None:
    budget, export = recipe.budget, recipe.export
    has_test = recipe.data.test is not None
    _refuse(
        recipe.data.calibration is None and not has_test,
        "rows-missing",
        "give --calibration FILE or --test FILE: builds are checked on its rows",
    )
    if budget.timed_batch is not None:
        _check_timing(recipe, budget.as_typed, budget.timed_batch)
        _refuse(
            export.source_text is not None,
            _CLASH,
            f"{SOURCE} does not go with {budget.as_typed}, whose dense model has all tokens; leave "
            "it out, and give it to `compress export` afterwards",
        )
    _refuse(
        bool(budget.needs_training) and not any(step.trains for step in recipe.recovery),
        _USELESS,
        f"{budget.needs_training} is for a recovery that trains; add --recover "
        "reconstruct+distill, or leave it out",
    )
    _refuse(
        budget.timed_engine not in (None, *export.engines),
        "engine-not-exported",
        f"--at-engine {budget.timed_engine} is not among the engines that models are exported "
        f"for; add --engines {ONNXRUNTIME},{budget.timed_engine}",
    )
    _refuse(
        budget.searches_rows and not has_test,
        _UNTESTED,
        f"{budget.as_typed} needs --test FILE to search on and to measure on",
    )


def _check_candidates(recipe: Recipe) -> None:
    wanted = recipe.export.candidates
    _refuse(
        wanted is not None and extra_text(recipe.recovery) is None,
        "candidates-without-text",
        f"--candidates {wanted} are counted in the dense model's answers to --distill-text FILE; "
        "give that, and --recover reconstruct+distill, or leave --candidates out",
    )


def check_device(recipe: Recipe, device: str) -> None:
    """Raise `UsageError` for options of a recipe that do not go with the device.

    Args:
        recipe: as the user gave it.
        device: to compute on.
    """
    wanted = recipe.export.candidates
    _refuse(
        wanted is not None and device != "cpu",
        _USELESS,
        f"--candidates {wanted} is for CPUs: on {device} decoders score all tokens; use --device "
        "cpu, or leave it out",
    )


def _check_timing(recipe: Recipe, option: str, batch_size: int | None) -> None:
    timed = recipe.throughput
    _refuse(timed is None, _CLASH, f"{option} needs throughput; drop --no-bench")
    _refuse(
        timed is not None and batch_size not in (None, *timed.batch_size),
        "batch-size-not-measured",
        f"{option}: batch size {batch_size} is not measured; add it to --batch-size",
    )


def check_model(recipe: Recipe, checkpoint: Checkpoint) -> None:
    """Raise `UsageError` for options of a recipe that do not go with its model."""
    task = TASKS[checkpoint.task]
    recipe.method.check_task(task)
    sections = (recipe.data, recipe.evaluation, recipe.throughput, *recipe.recovery)
    check_options(sections, task, checkpoint.name)
    check_texts(recipe.export, checkpoint)
    if recipe.export.candidates is not None:
        _require_of_task("--candidates", recipe.export.candidates, task, checkpoint.name)
    require_token_units(recipe.budget.asks_for_tokens, checkpoint)
    if checkpoint.entry.decoder is not None:
        _check_beams(recipe, checkpoint.model)


def require_token_units(asked: str, checkpoint: Checkpoint) -> None:
    """Check that tokens can be units of a model.

    Args:
        asked: the option that is about tokens; empty: none is.
        checkpoint: the model.

    Raises:
        UsageError: they cannot, and are asked for.
    """
    if not asked:
        return
    from compressor.model.token_units import why_all_tokens  # imports torch

    if reason := why_all_tokens(checkpoint.model):
        raise UsageError(
            f"{asked}: {checkpoint.name} cannot do with fewer tokens, since {reason}; choose heads "
            "and neurons alone",
            id="tokens-not-units",
        )


def _check_beams(recipe: Recipe, model: Any) -> None:
    from compressor.model.generation import require_beams  # imports transformers

    require_beams(model.generation_config, "--num-beams", recipe.evaluation.num_beams)
    for text in filter(None, (step.extra_text for step in recipe.recovery)):
        require_beams(model.generation_config, "--distill-beams", text.beams)


def check_options(sections: Iterable[Options | None], task: Task, model: str) -> None:
    """Raise `UsageError` for options that other tasks have and that of the named model has not."""
    for section in filter(None, sections):
        for option in declared_by(type(section)):
            value = getattr(section, option.field)
            if value != option.info.default:
                _require_of_task(option.flag, value, task, model)


def check_texts(export: Export, checkpoint: Checkpoint) -> None:
    """Raise `UsageError` for texts whose tokens are to be kept that do not go with a model."""
    name, source = checkpoint.name, export.source_text
    writes = checkpoint.entry.decoder is not None
    _refuse(
        writes and source is not None and export.target_text is None,
        "target-text-missing",
        f"--source-text {source}: {name} writes texts, too, and the tokens of these must stay; "
        "give --target-text FILE with texts like those that it will write",
    )
    languages = ",".join(export.keep_languages)
    _refuse(
        bool(languages) and (source is None or not writes),
        _USELESS,
        f"--keep-languages {languages} is for translators whose vocabulary is cut; give "
        "--source-text and --target-text, or leave it out",
    )
    for option, path in ((SOURCE, source), (TARGET, export.target_text)):
        if path is not None:
            _require_of_task(option, path, TASKS[checkpoint.task], name)


def _require_of_task(flag: str, value: object, task: Task, model: str) -> None:
    owners = [other.name for other in TASKS.values() if flag in other.flags]
    if owners and task.name not in owners:
        raise UsageError(
            f"{flag} {value} is for {' and '.join(owners)}, and {model} is a model for "
            f"{task.name}; leave it out",
            id="option-without-use",
        )


def require_for_layout(request: ExportRequest) -> None:
    """Raise `UsageError` for options that do nothing for a layout of another program."""
    export, layout = request.export, request.layout
    engines = None if export.engines == [ONNXRUNTIME] else ",".join(export.engines)
    excluded, unused = "options-exclude-each-other", "option-without-use"
    # A smaller vocabulary is the checkpoint's; what decoders score is decided in our graphs.
    cuts = bool(export.source_text and export.target_text)
    for flag, value, id in (
        ("--engines", engines, excluded),
        *(() if cuts else ((SOURCE, export.source_text, excluded),)),
        *(() if cuts else ((TARGET, export.target_text, excluded),)),
        ("--calibration", request.data.calibration, unused),
    ):
        if value is not None:
            raise UsageError(
                f"{flag} {value} does nothing with --layout {layout}; leave it out, or use "
                "--layout compress",
                id=id,
            )


def check_score(request: ScoreRequest, checkpoint: Checkpoint) -> None:
    """Raise `UsageError` if `compress score` is to score what are no units of a model."""
    asked = f"--prune {request.prune}" if "tokens" in UNITS_TO_PRUNE[request.prune] else ""
    require_token_units(asked, checkpoint)


def check_prune(request: PruneRequest) -> None:
    """Raise `UsageError` for options of `compress prune` that do not go together."""
    require_rows(None, request.recovery, request.data)
    _refuse(
        request.data.calibration is not None and not request.recovery,
        _USELESS,
        f"--calibration {request.data.calibration} is for the recovery; add --recover reconstruct, "
        "or leave it out",
    )


def only_budget(request: PruneRequest) -> Counts:
    """The budget of `compress prune`; `UsageError` if there are several."""
    budgets = request.budget.each()
    _refuse(
        len(budgets) != 1,
        "budget-twice",
        "say once how many units to keep, for example --keep 0.5",
    )
    return budgets[0]


def score_requests(options: Mapping[str, Any]) -> list[ScoreRequest]:
    """One request for each method of `compress score`; options go to the methods with them."""
    methods = [options.get("method") or DEFAULT_METHOD, *(options.get("compare") or [])]
    options_of = {name: set(METHODS[name].model_fields) for name in methods if name in METHODS}
    requests = []
    for method in methods:
        others = set().union(*options_of.values()) - options_of.get(method, set())
        of_method = {name: value for name, value in options.items() if name not in others}
        requests.append(assemble(ScoreRequest, of_method | {"method": method}))
        require_rows(requests[-1].method, [], requests[-1].data)
    return requests
