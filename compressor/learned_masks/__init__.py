"""Learned masks: a gate per head, trained until it is open or closed.

One file per method, one line each in `LEARNED`; `learn` runs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from compressor.budgets.counts import ALL, Budget, check_possible
from compressor.errors import UsageError, did_you_mean
from compressor.learned_masks.job import Estimator, Learned, Learning, Weights
from compressor.model.sublayers import Mask

__all__ = [
    "LEARNED",
    "Estimator",
    "Learned",
    "Learning",
    "Method",
    "Weights",
    "check_learning",
    "learn",
]


class Method(NamedTuple):
    """What is known of a method of learning masks without importing it.

    Args:
        gates: `module:class` of its gates, called with a layout, a device and the options as
            keywords.
        options: what can be set beside what `Learning` holds.
        help: one line for the user.
    """

    gates: str
    options: tuple[str, ...]
    help: str


LEARNED: dict[str, Method] = {
    "hard-concrete": Method(
        "compressor.learned_masks.hard_concrete:HardConcrete",
        ("penalty", "gate_learning_rate"),
        "gates with an expected-L0 penalty, which a Lagrangian brings to the wanted head count",
    ),
    "subset": Method(
        "compressor.learned_masks.subset:Subset",
        ("estimator", "gate_learning_rate"),
        "differentiable subset pruning: exactly the wanted number of gates is open at every step",
    ),
}


def check_learning(
    method: str,
    *,
    counted: bool,
    penalty: float | None = None,
    estimator: Estimator = "gumbel",
    weights: Weights = "none",
    epochs: int = 20,
) -> None:
    """Refuse options that do not go together, before anything is run.

    Args:
        counted: whether a number of heads is wanted.

    Raises:
        UsageError: there is no such method (the message lists those there are), an option that
            the method does not have, both or neither of a count and a penalty, or too few epochs.
    """
    if method not in LEARNED:
        raise UsageError(
            f"there is no learned mask {method!r}; there are {', '.join(LEARNED)}"
            f"{did_you_mean(method, LEARNED)}",
            id="unknown-method",
        )
    if penalty is not None and method != "hard-concrete":
        raise UsageError(
            f"--penalty {penalty:g} is for --method hard-concrete; {method} keeps exactly as many "
            "heads as --keep says",
            id="penalty-without-effect",
        )
    if penalty is not None and counted:
        raise UsageError(
            f"--penalty {penalty:g} decides how many heads are left; drop it, or drop the budget",
            id="penalty-and-budget",
        )
    if penalty is None and not counted:
        raise UsageError(
            f"--method {method} needs to know how many heads to keep; give --keep",
            id="budget-missing",
        )
    if estimator != "gumbel" and method != "subset":
        raise UsageError(
            f"--estimator {estimator} is for --method subset, not for {method}",
            id="estimator-without-effect",
        )
    if weights != "none" and epochs < 2:
        raise UsageError(
            f"--gate-epochs {epochs} is too short with trained weights: the last epoch trains them "
            "on the final mask; give at least 2",
            id="epochs-too-few",
        )


def learn(method: str, learning: Learning, **options: Any) -> Learned:
    """Learn a mask with one of `LEARNED`.

    Args:
        options: of the method, see `LEARNED`; those that are not given have their defaults.

    Returns:
        The mask, which keeps exactly as many heads as were asked for (unless a penalty decides),
        and the weights that belong to it.

    Raises:
        UsageError: see `check_learning`; or the floors make the head count impossible.
        InputError: too few rows, a loss that is not finite, or a state of another training.
    """
    check_learning(
        method,
        counted=learning.keep is not None,
        penalty=options.get("penalty"),
        estimator=options.get("estimator", "gumbel"),
        weights=learning.weights,
        epochs=learning.epochs,
    )
    if learning.keep is not None:
        text = ",".join(str(n) if k == ALL else f"{k}={n}" for k, n in learning.keep.items())
        full = Mask.full(learning.layers)
        check_possible(Budget(f"keep {text}", learning.keep), learning.floors, full)
    from compressor.learned_masks.layout import Layout
    from compressor.learned_masks.learning import run

    module, _, name = LEARNED[method].gates.partition(":")
    make_gates = getattr(import_module(module), name)
    layout = Layout(learning.layers, learning.keep, learning.floors)
    return run(method, make_gates(layout, learning.device, **options), learning)
