"""Learned masks: a gate per unit, trained until it is open or closed.

One file per method, one line each in `LEARNED`; `learn` runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from compressor.budgets.units import HEADS, check_possible
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
    "check_size",
    "learn",
]


class Method(NamedTuple):
    """What is known of a method of learning masks without importing it.

    Args:
        gates: `module:class` of its gates, called with a layout, a device and the options as
            keywords.
        options: what can be set beside what `Learning` holds.
        help: one line for the user.
        most_units: with gates; None for any number.
    """

    gates: str
    options: tuple[str, ...]
    help: str
    most_units: int | None = None


LEARNED: dict[str, Method] = {
    "hard-concrete": Method(
        "compressor.learned_masks.hard_concrete:HardConcrete",
        ("penalty", "gate_learning_rate"),
        "gates with an expected-L0 penalty, which a Lagrangian brings to the wanted count",
    ),
    "subset": Method(
        "compressor.learned_masks.subset:Subset",
        ("estimator", "gate_learning_rate"),
        "differentiable subset pruning: exactly the wanted number of gates is open at every step; "
        "for heads",
        # With 2,000 units, half of them kept, gates and their gradient take 0.8 seconds per step on
        # one core, besides the model.
        most_units=2000,
    ),
}


def learn(method: str, learning: Learning, **options: Any) -> Learned:
    """Learn a mask with one of `LEARNED`.

    Args:
        options: of the method, see `LEARNED`; those that are not given have their defaults.

    Returns:
        The mask, which keeps exactly as many units as were asked for (unless a penalty decides; of
        units that go in groups, the fewest that are no less), and the weights that belong to it.

    Raises:
        UsageError: there is no such method, both or neither of a count and a penalty, too few
            epochs, floors that make the count impossible, or too many units for the method.
        InputError: too few rows, a loss that is not finite, or a state of another training.
    """
    _check(method, learning, options.get("penalty"))
    if learning.keep is not None:
        text = ",".join(str(n) if k == HEADS else f"{k}={n}" for k, n in learning.keep.items())
        full = Mask.full(learning.layers)
        check_possible(f"keep {text}", learning.keep, learning.floors, full)
        check_size(method, learning.keep, full)
    from compressor.learned_masks.layout import Layout
    from compressor.learned_masks.learning import run

    module, _, name = LEARNED[method].gates.partition(":")
    make_gates = getattr(import_module(module), name)
    layout = Layout(learning.layers, learning.keep, learning.floors, learning.multiples)
    return run(method, make_gates(layout, learning.device, **options), learning)


def check_size(method: str, keep: Mapping[str, int], full: Mask) -> None:
    """Raise `UsageError` if a method would need more gates than it is made for.

    Args:
        keep: units to keep per pool; only units of these pools have gates.
        full: of the model.
    """
    most, gates = LEARNED[method].most_units, sum(full.total(pool) for pool in keep)
    if most is not None and gates > most:
        raise UsageError(
            f"--method {method} takes one softmax over all gates for each unit that it keeps, "
            f"which is made for at most {most:,} units, and here are {gates:,}; use "
            "--method hard-concrete, or keep all neurons",
            id="method-for-few-units",
        )


def _check(method: str, learning: Learning, penalty: float | None) -> None:
    if method not in LEARNED:
        raise UsageError(
            f"there is no learned mask {method!r}; there are {', '.join(LEARNED)}"
            f"{did_you_mean(method, LEARNED)}",
            id="method-unknown",
        )
    if penalty is not None and learning.keep is not None:
        raise UsageError(
            f"--penalty {penalty:g} decides how many heads are left; drop it, or drop the budget",
            id="penalty-and-budget",
        )
    if penalty is None and learning.keep is None:
        raise UsageError(
            f"--method {method} needs to know how many units to keep; give --keep",
            id="budget-missing",
        )
    if learning.weights != "none" and learning.epochs < 2:
        raise UsageError(
            f"--gate-epochs {learning.epochs} is too short with trained weights: the last epoch "
            "trains them on the final mask; give at least 2",
            id="too-few-epochs",
        )
