"""What options of different sections, or options and the model, must agree about.

Everything here is checked before the first long computation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    """Raise `UsageError` for sections of a recipe that do not go together."""
    _check_method(recipe)
    require_rows(recipe.method, recipe.recovery, recipe.data)
    if recipe.data.calibration is None and recipe.data.test is None:
        raise UsageError(
            "give --calibration FILE or --test FILE: builds are checked on its rows",
            id="rows-missing",
        )
    _check_budget(recipe)
    tokenizer = recipe.evaluation.bleu_tokenizer
    if tokenizer is not None and recipe.data.test is None and not recipe.method.measures_metric:
        raise UsageError(
            f"--bleu-tokenizer {tokenizer} is for BLEU, which nothing measures here; give --test "
            "FILE, or leave it out",
            id="option-without-use",
        )
    for rule in rules:
        if rule.needs_test_rows and recipe.data.test is None:
            raise UsageError(
                f"--{rule.name} needs --test FILE to measure quality on", id="test-rows-missing"
            )
        if rule.needs_timing:
            _require_timing(recipe.throughput, f"--{rule.name}", rule.batch_size)
        if rule.needs_engines and len(recipe.export.engines) == 1:
            raise UsageError(
                f"--{rule.name} needs --engines with another engine beside {ONNXRUNTIME}",
                id="engines-missing",
            )


def _check_method(recipe: Recipe) -> None:
    method, budget = recipe.method.name, recipe.budget
    if budget.by_penalty and not recipe.method.takes_penalty:
        takes = " or ".join(name for name, learned in LEARNED.items() if learned.takes_penalty)
        raise UsageError(
            f"{budget.as_typed} is for --method {takes}, not for {method}; choose that, or give "
            "--keep",
            id="option-without-use",
        )
    if not recipe.method.learns:
        return
    if budget.needs_scores:
        raise UsageError(
            f"--method {method} does not go with {budget.needs_scores}, which needs scores from "
            f"one of {', '.join(METHODS)}",
            id="options-exclude-each-other",
        )
    if budget.scorings > 1:
        raise UsageError(
            f"--steps {budget.scorings} does not go with --method {method}, which learns the "
            "whole mask at once; leave it out",
            id="options-exclude-each-other",
        )
    trained = recipe.method.trained_weights
    if trained != "none" and any(step.undoes_training for step in recipe.recovery):
        raise UsageError(
            f"reconstruction would re-solve what --train-weights {trained} trains, towards the "
            "weights before; use --recover none, which is the default with trained weights, or "
            "distill",
            id="options-exclude-each-other",
        )


def require_rows(
    method: UnitMethod | None, recovery: Sequence[RecoveryMethod], data: CalibrationData
) -> None:
    """Raise `UsageError` if a method or a repair looks at rows and there are none.

    Args:
        method: of scoring or of learning a mask; None for none.
    """
    if data.calibration is not None:
        return
    if method is not None and method.needs_rows:
        raise UsageError(
            f"--method {method.name} needs --calibration FILE; give one", id="calibration-missing"
        )
    if recovery:
        names = "+".join(step.name for step in recovery)
        raise UsageError(
            f"--recover {names} needs --calibration FILE; give one, or --recover none",
            id="calibration-missing",
        )
    if not hasattr(data, "test") or data.test is None:
        for name, info in Columns.model_fields.items():
            if (value := getattr(data, name)) != info.default:
                flag = as_flag(option_name(name, info))
                raise UsageError(
                    f"{flag} {value} is for --calibration FILE; give it, or leave it out",
                    id="option-without-use",
                )


def _check_budget(recipe: Recipe) -> None:
    budget = recipe.budget
    if budget.timed_batch is not None:
        _require_timing(recipe.throughput, budget.as_typed, budget.timed_batch)
        for name in ("source_text", "target_text"):
            if getattr(recipe.export, name) is not None:
                raise UsageError(
                    f"{as_flag(name)} does not go with {budget.as_typed}, which is about units "
                    "alone; leave it out, and give it to `compress export` afterwards",
                    id="options-exclude-each-other",
                )
    if budget.timed_engine not in (None, *recipe.export.engines):
        raise UsageError(
            f"--at-engine {budget.timed_engine} is not among the engines that models are exported "
            f"for; add --engines {ONNXRUNTIME},{budget.timed_engine}",
            id="engine-not-exported",
        )
    if budget.searches_rows and recipe.data.test is None:
        raise UsageError(
            f"{budget.as_typed} needs --test FILE to search on and to measure on",
            id="test-rows-missing",
        )


def _require_timing(settings: Benchmark | None, option: str, batch_size: int | None) -> None:
    if settings is None:
        raise UsageError(
            f"{option} needs throughput; drop --no-bench", id="options-exclude-each-other"
        )
    if batch_size not in (None, *settings.batch_size):
        raise UsageError(
            f"{option}: batch size {batch_size} is not measured; add it to --batch-size",
            id="batch-size-not-measured",
        )


def check_model(
    plan: RunPlan, checkpoint: Checkpoint, task: Task, progress: Progress = SILENT
) -> None:
    """Raise for options that a model or its task leave without effect.

    Raises:
        UsageError: such an option.
        InputError: the text of `--source-text` or `--target-text` cannot be read, or holds none.
    """
    plan.method.check_task(task)
    for rule in plan.rules:
        rule.require_task(task)
    sections = (plan.data, plan.evaluation, plan.throughput, *plan.recovery)
    check_options(sections, task, checkpoint.name)
    texts = {SOURCE: plan.source_text, TARGET: plan.target_text}
    check_texts(texts, plan.data.columns(), task, checkpoint.name, progress)


def check_options(sections: Iterable[Options | None], task: Task, model: str) -> None:
    """Raise `UsageError` for options that other tasks have and this one has not.

    Args:
        model: name of the checkpoint, for the message.
    """
    for section in filter(None, sections):
        for name, info in type(section).model_fields.items():
            value = getattr(section, name)
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


def score_requests(options: Mapping[str, Any], compare: Sequence[str]) -> list[ScoreRequest]:
    """One request for each method that `compress score` runs; options go to the methods with them.

    Args:
        options: by name; None where not given.
        compare: methods beside the one of `--method`.

    Raises:
        UsageError: an unknown method, one that is named twice, an option that none of them has, or
            no rows to look at.
    """
    methods = [options.get("method") or DEFAULT_METHOD, *compare]
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
