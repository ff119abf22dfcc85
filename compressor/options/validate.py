"""Options must go with the device and the model; checked before any long computation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from compressor.budgets.competing import UNITS_TO_PRUNE
from compressor.errors import UsageError
from compressor.options.declare import Options, declared_by
from compressor.options.recipe import Recipe
from compressor.options.refuse import USELESS
from compressor.options.requests import ScoreRequest
from compressor.options.sections import Export
from compressor.tasks import TASKS, Task
from compressor.tasks.texts import SOURCE, TARGET

if TYPE_CHECKING:
    from compressor.model.checkpoint import Checkpoint


def check_device(recipe: Recipe, device: str) -> None:
    """Raise `UsageError` for options of a recipe that do not go with the device.

    Args:
        recipe: as the user gave it.
        device: to compute on.
    """
    wanted = recipe.export.candidates
    if wanted is not None and device != "cpu":
        raise UsageError(
            f"--candidates {wanted} is for CPUs: on {device} decoders score all tokens; use "
            "--device cpu, or leave it out",
            id=USELESS,
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
    reason = asked and checkpoint.needs_all_tokens
    if reason:
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
    """Raise `UsageError` for options that other tasks have alone."""
    for section in filter(None, sections):
        for option in declared_by(type(section)):
            value = getattr(section, option.field)
            if value != option.info.default:
                _require_of_task(option.flag, value, task, model)


def check_texts(export: Export, checkpoint: Checkpoint) -> None:
    """Raise `UsageError` for texts whose tokens are to be kept that do not go with a model."""
    name, source = checkpoint.name, export.source_text
    writes = checkpoint.entry.decoder is not None
    if writes and source is not None and export.target_text is None:
        raise UsageError(
            f"--source-text {source}: {name} writes texts, too, and the tokens of these must stay; "
            "give --target-text FILE with texts like those that it will write",
            id="target-text-missing",
        )
    languages = ",".join(export.keep_languages)
    if languages and (source is None or not writes):
        raise UsageError(
            f"--keep-languages {languages} is for translators whose vocabulary is cut; give "
            "--source-text and --target-text, or leave it out",
            id=USELESS,
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
            id=USELESS,
        )


def check_score(request: ScoreRequest, checkpoint: Checkpoint) -> None:
    """Raise `UsageError` if `compress score` names tokens and a model needs them all."""
    asked = f"--prune {request.prune}" if "tokens" in UNITS_TO_PRUNE[request.prune] else ""
    require_token_units(asked, checkpoint)
