"""What options must agree about, with each other and with the model.

Everything here is checked before the first long computation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.errors import UsageError
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.target_text import count_texts
from compressor.importance import METHODS, UnitMethod
from compressor.learned_masks import LEARNED
from compressor.options.assemble import assemble
from compressor.options.declare import Options, as_flag, option_name
from compressor.progress import SILENT, Progress
from compressor.recovery import RecoveryMethod
from compressor.report.rule import Rule
from compressor.report.rules import parse_rules
from compressor.request.plan import RunPlan
from compressor.request.recipe import DEFAULT_METHOD, Recipe, ScoreRequest
from compressor.request.sections import Benchmark, CalibrationData, Columns, Gate
from compressor.tasks import TASKS, Task
from compressor.tasks.texts import SOURCE, TARGET, texts_of

if TYPE_CHECKING:
    from compressor.model.checkpoint import Checkpoint


def gate_rules(gate: Gate) -> list[Rule]:
    """The rules that a recipe or a command line asks for.

    Raises:
        UsageError: one has another form, or two limit the same number.
    """
    return parse_rules(gate.model_dump())


def check_recipe(recipe: Recipe, rules: Sequence[Rule]) -> None:
    """Raise `UsageError` for options of a recipe that do not go together."""
    _refuse(_about_method(recipe))
    require_rows(recipe.method, recipe.recovery, recipe.data)
    _refuse(_about_budget(recipe))
    for rule in rules:
        _refuse(_about_rule(recipe, rule))


def require_rows(
    method: UnitMethod | None, recovery: Sequence[RecoveryMethod], data: CalibrationData
) -> None:
    """Raise `UsageError` if a method or a repair looks at rows and there are none.

    Args:
        method: of scoring or of learning a mask; None for none.
    """
    if data.calibration is None:
        _refuse(_about_rows(method, recovery, data))


# Whether something is wrong, the error's id, and the message.
_Checks = Iterator[tuple[bool, str, str]]
_CLASH, _USELESS = "options-exclude-each-other", "option-without-use"
_UNTESTED = "test-rows-missing"


def _refuse(checks: _Checks) -> None:
    for is_wrong, id, message in checks:
        if is_wrong:
            raise UsageError(message, id=id)


def _about_method(recipe: Recipe) -> _Checks:
    method, budget = recipe.method, recipe.budget
    takes = " or ".join(name for name, learned in LEARNED.items() if learned.takes_penalty)
    yield (
        budget.by_penalty and not method.takes_penalty, _USELESS,
        f"{budget.as_typed} is for --method {takes}, not for {method.name}; choose that, or give "
        "--keep",
    )  # fmt: skip
    yield (
        method.learns and bool(budget.needs_scores), _CLASH,
        f"--method {method.name} does not go with {budget.needs_scores}, which needs scores from "
        f"one of {', '.join(METHODS)}",
    )  # fmt: skip
    yield (
        method.learns and budget.scorings > 1, _CLASH,
        f"--steps {budget.scorings} does not go with --method {method.name}, which learns the "
        "whole mask at once; leave it out",
    )  # fmt: skip
    trained = method.trained_weights
    yield (
        trained != "none" and any(step.undoes_training for step in recipe.recovery), _CLASH,
        f"reconstruction would re-solve what --train-weights {trained} trains, towards the "
        "weights before; use --recover none, which is the default with trained weights, or distill",
    )  # fmt: skip


def _about_rows(
    method: UnitMethod | None, recovery: Sequence[RecoveryMethod], data: CalibrationData
) -> _Checks:
    """There are no calibration rows."""
    wanted = "needs --calibration FILE; give one"
    if method is not None:
        yield method.needs_rows, "calibration-missing", f"--method {method.name} {wanted}"
    names = "+".join(step.name for step in recovery)
    yield bool(recovery), "calibration-missing", f"--recover {names} {wanted}, or --recover none"
    for name, info in Columns.model_fields.items():
        value, flag = getattr(data, name), as_flag(option_name(name, info))
        yield (
            getattr(data, "test", None) is None and value != info.default, _USELESS,
            f"{flag} {value} is for --calibration FILE; give it, or leave it out",
        )  # fmt: skip


def _about_budget(recipe: Recipe) -> _Checks:
    budget, has_test = recipe.budget, recipe.data.test is not None
    yield (
        recipe.data.calibration is None and not has_test, "rows-missing",
        "give --calibration FILE or --test FILE: builds are checked on its rows",
    )  # fmt: skip
    if budget.timed_batch is not None:
        yield from _about_timing(recipe.throughput, budget.as_typed, budget.timed_batch)
        for name in ("source_text", "target_text"):
            yield (
                getattr(recipe.export, name) is not None, _CLASH,
                f"{as_flag(name)} does not go with {budget.as_typed}, which is about units alone; "
                "leave it out, and give it to `compress export` afterwards",
            )  # fmt: skip
    yield (
        budget.timed_engine not in (None, *recipe.export.engines), "engine-not-exported",
        f"--at-engine {budget.timed_engine} is not among the engines that models are exported "
        f"for; add --engines {ONNXRUNTIME},{budget.timed_engine}",
    )  # fmt: skip
    yield (
        budget.searches_rows and not has_test, _UNTESTED,
        f"{budget.as_typed} needs --test FILE to search on and to measure on",
    )  # fmt: skip
    tokenizer = recipe.evaluation.bleu_tokenizer
    yield (
        tokenizer is not None and not has_test and not recipe.method.measures_metric, _USELESS,
        f"--bleu-tokenizer {tokenizer} is for BLEU, which nothing measures here; give --test FILE, "
        "or leave it out",
    )  # fmt: skip


def _about_rule(recipe: Recipe, rule: Rule) -> _Checks:
    yield (
        rule.needs_test_rows and recipe.data.test is None, _UNTESTED,
        f"--{rule.name} needs --test FILE to measure quality on",
    )  # fmt: skip
    if rule.needs_timing:
        yield from _about_timing(recipe.throughput, f"--{rule.name}", rule.batch_size)
    yield (
        rule.needs_engines and len(recipe.export.engines) == 1, "engines-missing",
        f"--{rule.name} needs --engines with another engine beside {ONNXRUNTIME}",
    )  # fmt: skip


def _about_timing(settings: Benchmark | None, option: str, batch_size: int | None) -> _Checks:
    yield settings is None, _CLASH, f"{option} needs throughput; drop --no-bench"
    sizes = () if settings is None else settings.batch_size
    yield (
        batch_size not in (None, *sizes), "batch-size-not-measured",
        f"{option}: batch size {batch_size} is not measured; add it to --batch-size",
    )  # fmt: skip


def check_model(
    plan: RunPlan, checkpoint: Checkpoint, task: Task, progress: Progress = SILENT
) -> RunPlan:
    """The plan with what the task decides; no option is left without effect by the model.

    Raises:
        UsageError: such an option.
        InputError: the text of `--source-text` or `--target-text` cannot be read, or holds none.
    """
    plan.method.check_task(task)
    for rule in plan.rules:
        rule.require_task(task)
    given = (plan.data, plan.evaluation, plan.throughput, *plan.recovery)
    check_options(given, task, checkpoint.name)
    texts = {SOURCE: plan.source_text, TARGET: plan.target_text}
    check_texts(texts, plan.data.columns(), task, checkpoint.name, progress)
    return plan.with_recovery([step.for_task(task) for step in plan.recovery])


def check_options(given: Iterable[Options | None], task: Task, model: str) -> None:
    """Raise `UsageError` for options that other tasks have and this one has not.

    Args:
        model: name of the checkpoint, for the message.
    """
    for one in filter(None, given):
        for name, info in type(one).model_fields.items():
            value = getattr(one, name)
            if value != info.default:
                _require_own(as_flag(option_name(name, info)), value, task, model)


def check_texts(
    texts: Mapping[str, Path | None],
    columns: Mapping[str, Any],
    task: Task,
    model: str,
    progress: Progress = SILENT,
) -> None:
    """Raise where `--source-text` or `--target-text` can do nothing, before anything is written.

    Args:
        texts: option, as typed -> file, if one is given.
        columns: names of columns that options give, of JSONL.

    Raises:
        UsageError: the task has no such option.
        InputError: the file cannot be read, or holds no text.
    """
    for option, path in texts.items():
        if path is not None:
            _require_own(option, path, task, model)
            file = texts_of(path, option, task, columns)
            count_texts(file, lambda done: progress.update("lines read", done, None))


def _require_own(flag: str, value: object, task: Task, model: str) -> None:
    owners = [other.name for other in TASKS.values() if flag in other.flags]
    if owners and task.name not in owners:
        raise UsageError(
            f"{flag} {value} is for {' and '.join(owners)}, and {model} is a {task.name} model; "
            "leave it out",
            id="option-without-use",
        )


def score_requests(options: Mapping[str, Any]) -> list[ScoreRequest]:
    """One request for each method that `compress score` runs; options go to the methods with them.

    Args:
        options: by name; None where not given.

    Raises:
        UsageError: an unknown method, one that is named twice, an option that none of them has, or
            no rows to look at.
    """
    methods = [options.get("method") or DEFAULT_METHOD, *(options.get("compare") or [])]
    for number, method in enumerate(methods):
        if method in methods[:number]:
            raise UsageError(
                f"--compare {method} compares the method with itself; name another one",
                id="option-without-use",
            )
    own = {name: set(METHODS[name].model_fields) for name in methods if name in METHODS}
    requests = []
    for method in methods:
        others = set().union(*own.values()) - own.get(method, set())
        given = {name: value for name, value in options.items() if name not in others}
        requests.append(assemble(ScoreRequest, given | {"method": method}))
        require_rows(requests[-1].method, [], requests[-1].data)
    return requests
