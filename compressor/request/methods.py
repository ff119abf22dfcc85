"""The sections of methods: how units are scored or learned, and how a model is repaired.

There is a class for each method in `METHODS`, `LEARNED` and `RECOVERIES`, made from the options
that these tables name for it; each option is declared here once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Union

from pydantic import create_model, model_validator

from compressor.errors import UsageError
from compressor.importance import METHODS
from compressor.learned_masks import LEARNED
from compressor.options.bounds import MOST_BEAMS, Count
from compressor.options.declare import Section, option
from compressor.recovery import RECOVERIES


class MethodSection(Section):
    """How units to keep are found; `METHODS` and `LEARNED` list the methods."""

    name: str


class _Per(Section):
    per: Literal["token", "example"] = option(
        "token",
        help="Scores per token or per example; which one the papers have: docs/methods.md.",
    )


class _Normalize(Section):
    normalize: Literal["layer", "none"] | None = option(
        None,
        help="Divide scores by the sublayer's L2 norm: layer or none. Default: layer; none where "
        "heads and neurons are scored together.",
    )


class _Ablate(Section):
    ablate: Literal["loss", "metric"] = option(
        "loss", help="ablation: measure the loss or the metric (BLEU or accuracy)."
    )


class _Gates(Section):
    """What all learned masks have."""

    train_weights: Literal["none", "encoder", "all"] = option(
        "none", help="Learned masks: train along none, encoder or all weights."
    )
    epochs: Count = option(20, flag="--gate-epochs", help="Learned masks: epochs.")
    learning_rate: float | None = option(
        None,
        gt=0,
        allow_inf_nan=False,
        needs="train_weights",
        help="Of weights that are trained. Default: 0.0001 for translators, 0.00005 for "
        "classifiers.",
    )
    patience: Count = option(2, help="Training stops after so many epochs without gain.")

    @model_validator(mode="after")
    def _leaves_an_epoch_for_the_weights(self) -> _Gates:
        if self.train_weights != "none" and self.epochs < 2:
            raise UsageError(
                f"--gate-epochs {self.epochs} is too short with trained weights: the last epoch "
                "trains them on the final mask; give at least 2",
                id="too-few-epochs",
            )
        return self


class _Estimator(Section):
    estimator: Literal["gumbel", "straight-through"] = option(
        "gumbel", help="subset: gumbel or straight-through."
    )


class _GateRate(Section):
    gate_learning_rate: float | None = option(
        None, gt=0, allow_inf_nan=False, help="Learned masks: of the gates; default: by method."
    )


# Options of single methods, by the names that the tables of methods have for them.
_OPTIONS: dict[str, type[Section]] = {
    "per": _Per, "normalize": _Normalize, "ablate": _Ablate, "estimator": _Estimator,
    "gate_learning_rate": _GateRate,
}  # fmt: skip


def _member(
    name: str, bases: list[type[Section]], base: type[Section] = MethodSection
) -> type[Section]:
    """The class of one member of a union, told apart by `name`."""
    tag: Any = (Literal[name], name)
    return create_model(name, __base__=(*bases, base), name=tag)


SCORED = {
    name: _member(name, [_OPTIONS[own] for own in method.options])
    for name, method in METHODS.items()
}
LEARNING = {
    # A penalty takes the place of a budget and stands there.
    name: _member(name, [*(_OPTIONS[own] for own in method.options if own != "penalty"), _Gates])
    for name, method in LEARNED.items()
}


class RecoverySection(Section):
    """One step of the repair after the cut; `RECOVERIES` lists them."""

    name: str


class _Epochs(Section):
    epochs: Count = option(5, flag="--distill-epochs", help="Distillation: epochs, at most.")


class _LearningRate(Section):
    learning_rate: float | None = option(
        None,
        gt=0,
        allow_inf_nan=False,
        help="Of weights that are trained. Default: 0.0001 for translators, 0.00005 for "
        "classifiers.",
    )


class _Patience(Section):
    patience: Count = option(2, help="Training stops after so many epochs without gain.")


class _Hidden(Section):
    hidden: float | None = option(
        None,
        flag="--distill-hidden",
        ge=0,
        allow_inf_nan=False,
        help="Distillation: weight of the difference in hidden states after every layer; 0 leaves "
        "it out. Default: 1 for classifiers, 0 for translators.",
    )


class _Steps(Section):
    steps: Count | None = option(
        None,
        flag="--distill-steps",
        help="Distillation: steps of 32 rows, at most. Default: as many as the epochs have.",
    )


class _Text(Section):
    text: str | None = option(
        None,
        flag="--distill-text",
        help="Distillation: more text to learn from, in the source language, a sentence a line; "
        "the dense model translates or classifies it. Of any size.",
    )


class _Beams(Section):
    beams: Count = option(
        1,
        le=MOST_BEAMS,
        flag="--distill-beams",
        needs="text",
        help="Beam width of the dense model's translations of --distill-text.",
    )


# Options of single recovery methods, by the names that `RECOVERIES` has for them.
_REPAIR_OPTIONS: dict[str, type[Section]] = {
    "epochs": _Epochs, "learning_rate": _LearningRate, "patience": _Patience,
    "hidden": _Hidden, "steps": _Steps, "text": _Text, "beams": _Beams,
}  # fmt: skip
REPAIRS = {
    name: _member(name, [_REPAIR_OPTIONS[own] for own in method.options], RecoverySection)
    for name, method in RECOVERIES.items()
}

if TYPE_CHECKING:
    AnyMethod = MethodSection
    ScoringMethod = MethodSection
    Repair = RecoverySection
else:
    AnyMethod = Union[(*SCORED.values(), *LEARNING.values())]
    ScoringMethod = Union[tuple(SCORED.values())]  # noqa: UP007
    Repair = Union[tuple(REPAIRS.values())]  # noqa: UP007

METHOD_HELP = "How to score units: " + ", ".join(SCORED) + ". Default: second-order."
METHOD_OR_MASK_HELP = (
    f"How to find the units to keep. Scores: {', '.join(SCORED)}. Learned masks: "
    f"{', '.join(LEARNING)}. Default: second-order."
)
RECOVER_HELP = (
    "Repair after the cut: reconstruct (least squares), none, distill (train on the dense model's "
    "predictions), or reconstruct+distill."
)
