"""Options that would do nothing are refused, with what they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from compressor.errors import UsageError, did_you_mean
from compressor.importance import METHODS
from compressor.learned_masks import LEARNED
from compressor.pipeline.recipe import Recipe
from compressor.recovery import parse_recovery

_MASKS = " or ".join(LEARNED)
# Option of scoring methods -> the methods that it changes.
SCORING = {
    option: tuple(name for name, method in METHODS.items() if option in method.options)
    for option in ("per", "normalize", "ablate")
}
# Option of learned masks -> the methods that have it.
_GATES = {
    "penalty": "hard-concrete",
    "estimator": "subset",
    "train_weights": _MASKS,
    "gate_epochs": _MASKS,
    "gate_learning_rate": _MASKS,
}
COLUMNS = (
    "source_column", "target_column", "text_column", "text_pair_column", "label_column",
)  # fmt: skip
_DECODING = ("num_beams", "target_length")


def check_method(method: str, *, masks: bool = False) -> None:
    """Raise `UsageError` for the name of no scoring method, or, with `masks`, of no method."""
    if method in METHODS or (masks and method in LEARNED):
        return
    if method in LEARNED:
        raise UsageError(
            f"{method} gives no scores, it learns which heads to keep; use it with `compress run`, "
            f"or one of {', '.join(METHODS)}",
            id="method-learns-a-mask",
        )
    known = (*METHODS, *LEARNED) if masks else tuple(METHODS)
    raise UsageError(
        f"there is no method {method!r}; there are {', '.join(known)}{did_you_mean(method, known)}",
        id="unknown-method",
    )


def require_calibration(method: str, calibration: str | None) -> None:
    """Raise `UsageError` if a method looks at data and no file is given."""
    if calibration is None and (method in LEARNED or METHODS[method].needs_rows):
        raise UsageError(f"--method {method} needs --calibration FILE", id="calibration-missing")


def refuse_unused(recipe: Recipe, task: str) -> None:
    """Refuse options of a run that its method, its repair and its task leave without effect.

    An option with its default value is as good as not given, so that resolved recipes run.

    Raises:
        UsageError: there is one.
    """
    refuse_unused_rows(recipe)
    refuse_unused_scoring(recipe, [recipe.method])
    learned = recipe.method in LEARNED
    if not learned:
        for name, methods in _GATES.items():
            _refuse(recipe, name, f"learned masks; use --method {methods}, or")
    refuse_unused_training(
        recipe, gates=learned, weights=learned and recipe.train_weights != "none"
    )
    if task != "translation":
        for name in _DECODING:
            _refuse(recipe, name, f"translators, and {recipe.model} is a {task} model;")


def refuse_unused_rows(recipe: Recipe) -> None:
    """Refuse options about rows of files that are not given.

    Raises:
        UsageError: there is one.
    """
    for name in ("calibration", "test"):
        if getattr(recipe, name) is None:
            _refuse(recipe, f"{name}_rows", f"--{name} FILE; give it, or")
    if recipe.calibration is None and recipe.test is None:
        for name in COLUMNS:
            _refuse(recipe, name, "--calibration FILE; give it, or")


def refuse_unused_scoring(
    recipe: Recipe, methods: Sequence[str], typed: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Refuse options of scoring methods that are not among `methods`.

    Args:
        typed: options of a command line without a recipe, None where not given: nothing is there
            that a default value could be meant to override.

    Raises:
        UsageError: there is one.
    """
    for name, users in SCORING.items():
        if not set(users) & set(methods):
            others = f", not for {', '.join(methods)}" if methods else ""
            where = f"--method {' or '.join(users)}{others};"
            _refuse(recipe, name, where, even_default=typed.get(name) is not None)


def refuse_unused_training(recipe: Recipe, *, gates: bool = False, weights: bool = False) -> None:
    """Refuse options of training where nothing is trained that they are about.

    Args:
        gates: gates are trained.
        weights: weights are trained along with gates.

    Raises:
        UsageError: there is one.
    """
    if "distill" in parse_recovery(recipe.recover):
        return
    _refuse(recipe, "distill_epochs", "distillation; add --recover distill, or")
    if not weights:
        along = "--train-weights encoder" if gates else "--recover distill"
        _refuse(recipe, "learning_rate", f"weights that are trained; add {along}, or")
    if not gates:
        _refuse(recipe, "patience", "training; add --recover distill, or")


def _refuse(recipe: Recipe, name: str, where: str, *, even_default: bool = False) -> None:
    value = getattr(recipe, name)
    if even_default or value != Recipe.model_fields[name].default:
        option = name.replace("_", "-")
        raise UsageError(f"--{option} {value} is for {where} leave it out")
