"""Options that would do nothing are refused, with what they belong to."""

from __future__ import annotations

from collections.abc import Sequence

from compressor.errors import UsageError
from compressor.gates import LEARNED
from compressor.recipe import Recipe
from compressor.recovery import parse_recovery

_MASKS = f"learned masks; use --method {' or '.join(LEARNED)}, or"
# Option of scoring methods -> the methods that it changes.
SCORING = {
    "per": ("taylor", "relevance"),
    # Scores of the others mean the same in every layer.
    "normalize": ("taylor", "fisher", "confidence", "relevance", "magnitude", "random"),
    "ablate": ("ablation",),
}
_GATES = ("penalty", "estimator", "train_weights", "gate_epochs", "gate_learning_rate")
COLUMNS = (
    "source_column", "target_column", "text_column", "text_pair_column", "label_column",
)  # fmt: skip
_DECODING = ("num_beams", "target_length")


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
        for name in _GATES:
            _refuse(recipe, name, _MASKS)
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


def refuse_unused_scoring(recipe: Recipe, methods: Sequence[str]) -> None:
    """Refuse options of scoring methods that are not among `methods`.

    Raises:
        UsageError: there is one.
    """
    for name, users in SCORING.items():
        if not set(users) & set(methods):
            others = f", not for {', '.join(methods)}" if methods else ""
            _refuse(recipe, name, f"--method {' or '.join(users)}{others};")


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


def _refuse(recipe: Recipe, name: str, where: str) -> None:
    value = getattr(recipe, name)
    if value != Recipe.model_fields[name].default:
        option = name.replace("_", "-")
        raise UsageError(f"--{option} {value} is for {where} leave it out")
