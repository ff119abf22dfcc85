"""Learned masks: a gate per head, trained until it is open or closed.

One file per method, one line each in `LEARNED`; `learn` is the only entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from compressor.budgets.counts import ALL, Budget, check_possible
from compressor.errors import UsageError, did_you_mean
from compressor.model.sublayers import Mask, Scores, Sublayer

if TYPE_CHECKING:
    from torch import nn

    from compressor.tasks import Example, Task

Weights = Literal["none", "encoder", "all"]
Estimator = Literal["gumbel", "straight-through"]


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


@dataclass(frozen=True, kw_only=True)
class Learning:
    """Everything that learning a mask may use.

    Args:
        model: dense; never changed, a copy is trained where weights are.
        examples: calibration rows; a tenth is held out to validate on.
        keep: heads to keep per kind, or of all kinds together (`{"all": n}`); heads of kinds that
            are not named stay and get no gate. None with a penalty.
        floors: least number of heads in each layer of a kind.
        weights: which weights are trained along with the gates: none; those of the encoder alone
            (a classifier's are all but its classification head); or all.
        epochs: over the calibration rows, in all.
        learning_rate: of the weights.
        patience: epochs without a lower held-out loss after which training stops; counted once
            the wanted number of heads is reached.
        state: file to go on from if it is there, and to save to; with trained weights there is a
            second one beside it.
        report: called with a line after every epoch.
        progress: called with (steps done, steps in all).
    """

    model: nn.Module
    layers: Sequence[Sublayer]
    examples: Sequence[Example]
    task: Task
    keep: Mapping[str, int] | None
    floors: Mapping[str, int]
    weights: Weights = "none"
    epochs: int = 20
    batch_size: int = 32
    learning_rate: float = 1e-4
    patience: int = 2
    seed: int = 0
    device: str = "cpu"
    state: Path | None = None
    report: Callable[[str], None] = field(default=lambda line: None)
    progress: Callable[[int, int], None] = field(default=lambda done, total: None)


@dataclass(frozen=True)
class Learned:
    """A mask that was learned.

    Args:
        scores: what the gates learned per head, higher is kept; heads without a gate have the
            largest score.
        model: the weights that belong to the mask: `Learning.model` itself if none were trained.
        text: what was done and how far the gates were from open or closed, for the report.
    """

    mask: Mask
    scores: Scores
    model: nn.Module
    text: str


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
