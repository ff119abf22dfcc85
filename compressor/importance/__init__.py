"""Scoring methods: how important is each head, and each neuron?

One file per method, one line each in `METHODS`; `score_heads` runs them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from compressor.errors import InputError, UsageError, did_you_mean
from compressor.model.sublayers import Mask, Scores, Sublayer, Units, units_of

if TYPE_CHECKING:
    from torch import nn

    from compressor.tasks import Batch, Task

Per = Literal["token", "example"]
Normalize = Literal["layer", "none"]
Ablate = Literal["loss", "metric"]


class Method(NamedTuple):
    """What is known of a scoring method without importing it.

    Args:
        function: `module:function`, called with a `Scoring` and the options as keywords.
        needs_rows: it looks at calibration rows; otherwise at the weights alone, or at nothing.
        options: what can be set. Scores of methods without `normalize` mean the same in every
            layer, and are never normalized.
        help: one line for the user.
        for_neurons: it scores neurons, too.
    """

    function: str
    needs_rows: bool
    options: tuple[str, ...]
    help: str
    for_neurons: bool = True


METHODS: dict[str, Method] = {
    "taylor": Method(
        "compressor.importance.taylor:score", True, ("per", "normalize"),
        "first-order change of the loss if the unit were silent",
    ),
    "fisher": Method(
        "compressor.importance.fisher:score", True, ("normalize",),
        "mean squared gradient of the loss by the unit's gate",
    ),
    "ablation": Method(
        "compressor.importance.ablation:score", True, ("ablate",),
        "measured loss, or metric, without the unit; slow, exact",
    ),
    "confidence": Method(
        "compressor.importance.confidence:score", True, ("normalize",),
        "mean of the head's largest attention weight; heads alone", for_neurons=False,
    ),
    "relevance": Method(
        "compressor.importance.relevance:score", True, ("per", "normalize"),
        "layer-wise relevance propagation from the largest logit",
    ),
    "second-order": Method(
        "compressor.importance.second_order:score", True, (),
        "error that the best repair of the other units would leave",
    ),
    "magnitude": Method(
        "compressor.importance.magnitude:score", False, ("normalize",),
        "norm of the unit's weights in the output projection; no data",
    ),
    "random": Method(
        "compressor.importance.random:score", False, ("normalize",),
        "random scores, a baseline; no data",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Scoring:
    """The model and the data that heads are scored on.

    Args:
        layers: the sublayers whose units are scored.
        mask: units already removed; they are gated to zero and score zero.
        batches: calibration batches of `task` (see `compressor.tasks`).
        tokenizer: the checkpoint's, where tokens are read or written as text.
        metric: the task's main metric of answers to all rows, in the order of the rows: its value
            (0-100) and its signature. None where right answers are not known.
        progress: called with (steps done, steps in all); a step is a batch, with `ablation` a pass.
    """

    model: nn.Module
    layers: Sequence[Sublayer]
    mask: Mask
    batches: Sequence[Batch]
    task: Task
    tokenizer: Any = None
    metric: Callable[[Sequence[str]], tuple[float, str]] | None = None
    seed: int = 0
    device: str = "cpu"
    progress: Callable[[int, int], None] = field(default=lambda done, total: None)


@dataclass(frozen=True)
class RawScores:
    """What a method returns: scores per layer, the settings behind them, passes made."""

    values: dict[str, list[float]]
    signature: str
    forward_passes: int = 0
    backward_passes: int = 0


def score_heads(method: str, scoring: Scoring, **options: Any) -> Scores:
    """Score every unit of some sublayers with one of `METHODS`; the model is left as it was.

    Args:
        options: of the method, see `METHODS`; those that are not given have their defaults.
            `normalize` divides by the L2 norm over the sublayer's units (`layer`), or not (`none`).
            The default is `layer`, but `none` where heads and neurons are scored together, whose
            scores must be comparable.

    Raises:
        UsageError: there is no such method, or it cannot score neurons.
        InputError: a score is not a finite number.
        TypeError: the method has no such option.
    """
    from compressor.model.modes import evaluating  # imports torch

    if method not in METHODS:
        raise UsageError(
            f"there is no method {method!r}; there are {', '.join(METHODS)}"
            f"{did_you_mean(method, METHODS)}",
            id="method-unknown",
        )
    check_units(method, {units_of(layer.kind) for layer in scoring.layers})
    entry = METHODS[method]
    normalize: Normalize = "none"
    if "normalize" in entry.options:
        mixed = len({layer.is_attention for layer in scoring.layers}) > 1
        normalize = options.pop("normalize", None) or ("none" if mixed else "layer")
    module, _, function = entry.function.partition(":")
    score: Callable[..., RawScores] = getattr(import_module(module), function)
    began = time.perf_counter()
    with evaluating(scoring.model):
        raw = score(scoring, **options)
    for name, scores in raw.values.items():
        if not all(math.isfinite(value) for value in scores):
            raise InputError(
                f"{method} scores of layer {name} are not finite; check the checkpoint and the "
                "calibration rows with `compress evaluate`",
                id="scores-not-finite",
            )
    values = {
        layer.name: _normalized(raw.values[layer.name], normalize) for layer in scoring.layers
    }
    return Scores(
        values=values,
        method=method,
        signature=f"{method}|{raw.signature}|normalize:{normalize}",
        cost={
            "seconds": time.perf_counter() - began,
            "forward_passes": raw.forward_passes,
            "backward_passes": raw.backward_passes,
        },
    )


def check_units(method: str, units: Set[Units]) -> None:
    """Raise `UsageError` if a method cannot score such units."""
    if "neurons" in units and not METHODS[method].for_neurons:
        raise UsageError(
            f"--method {method} is about attention, which neurons have none of; use another "
            "method, or prune heads alone (--prune heads, or --keep 0.5)",
            id="method-for-heads-alone",
        )


def _normalized(scores: Sequence[float], how: Normalize) -> tuple[float, ...]:
    norm = sum(score * score for score in scores) ** 0.5 if how == "layer" else 1.0
    return tuple(float(score) / norm if norm > 0 else float(score) for score in scores)
