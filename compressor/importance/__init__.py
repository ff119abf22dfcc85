"""Scoring methods: how important is each head?

One file per method, one line each in `METHODS`; `score_heads` is the only entry.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from compressor.errors import InputError, UsageError
from compressor.learned_masks import LEARNED
from compressor.model.sublayers import Mask, Scores, Sublayer

if TYPE_CHECKING:
    from torch import nn

    from compressor.tasks import Batch, Task

Per = Literal["token", "example"]
Normalize = Literal["layer", "none"]
Ablate = Literal["loss", "metric"]

METHODS: dict[str, str] = {
    "taylor": "compressor.importance.taylor:score",
    "fisher": "compressor.importance.fisher:score",
    "ablation": "compressor.importance.ablation:score",
    "confidence": "compressor.importance.confidence:score",
    "relevance": "compressor.importance.relevance:score",
    "second-order": "compressor.importance.second_order:score",
    "magnitude": "compressor.importance.magnitude:score",
    "random": "compressor.importance.random:score",
}
# Methods that look at the weights alone, or at nothing.
DATA_FREE = frozenset({"magnitude", "random"})


@dataclass(frozen=True)
class Scoring:
    """Everything a scoring method may use.

    Args:
        mask: heads already removed; they are gated to zero and score zero.
        batches: calibration batches of `task` (see `compressor.tasks`).
        task: the task's module, for its loss and its token masks.
        per: where the absolute value of Taylor's product is taken; whether relevance is looked at
            for every target position or for all those of an example at once.
        normalize: divide by the L2 norm over the layer's heads, or not.
        ablate: whether ablation measures the loss or the task's metric.
        tokenizer, references: the checkpoint's tokenizer, and the right answer to every row (by
            row number); for ablation of the metric.
        special_ids: tokens that are no words ([CLS], [SEP], end of sentence), as
            `confidence.boundary_ids` finds them; attention from and to them is no confidence.
        progress: called with (steps done, steps in all); a step is a batch, with `ablation` a pass.
    """

    model: nn.Module
    layers: Sequence[Sublayer]
    mask: Mask
    batches: Sequence[Batch]
    task: Task
    per: Per = "token"
    normalize: Normalize = "layer"
    ablate: Ablate = "loss"
    tokenizer: Any = None
    references: Sequence[str] = ()
    seed: int = 0
    device: str = "cpu"
    special_ids: frozenset[int] = frozenset()
    progress: Callable[[int, int], None] = field(default=lambda done, total: None)


@dataclass(frozen=True)
class RawScores:
    """What a method returns: scores per layer, what its signature must tell, passes made.

    Args:
        comparable: the scores have the same meaning in every layer as they are, and scaling
            them by layer would destroy it; they are never normalized, and the signature says so.
    """

    values: dict[str, list[float]]
    signature: str
    forward_passes: int = 0
    backward_passes: int = 0
    comparable: bool = False


def check_method(method: str, *, masks: bool = False) -> None:
    """Refuse the name of no method; the message lists those there are.

    Args:
        masks: learned masks will do too.

    Raises:
        UsageError: there is no such method, or it learns a mask where scores are needed.
    """
    if method in METHODS or (masks and method in LEARNED):
        return
    if method in LEARNED:
        raise UsageError(
            f"{method} gives no scores, it learns which heads to keep; use it with `compress run`, "
            f"or one of {', '.join(METHODS)}"
        )
    there = ", ".join((*METHODS, *LEARNED) if masks else METHODS)
    raise UsageError(f"there is no method {method!r}; there are {there}")


def require_calibration(method: str, calibration: str | None) -> None:
    """Raise `UsageError` if a method looks at data and no file is given."""
    if calibration is None and method not in DATA_FREE:
        raise UsageError(f"--method {method} needs --calibration FILE")


def score_heads(method: str, scoring: Scoring) -> Scores:
    """Score every head of the model with one of `METHODS`; the model is left as it was.

    Raises:
        UsageError: there is no such method; the message lists those there are.
        InputError: a score is not a finite number.
    """
    check_method(method)
    module, _, function = METHODS[method].partition(":")
    began = time.perf_counter()
    with _evaluating(scoring.model):
        raw: RawScores = getattr(import_module(module), function)(scoring)
    for name, scores in raw.values.items():
        if not all(math.isfinite(score) for score in scores):
            raise InputError(
                f"{method} scores of layer {name} are not finite; check the checkpoint and the "
                "calibration rows with `compress evaluate`"
            )
    normalize: Normalize = "none" if raw.comparable else scoring.normalize
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


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """No dropout while the context lasts; every module then trains or not as before."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _normalized(scores: Sequence[float], how: Normalize) -> tuple[float, ...]:
    norm = sum(score * score for score in scores) ** 0.5 if how == "layer" else 1.0
    return tuple(float(score) / norm if norm > 0 else float(score) for score in scores)
