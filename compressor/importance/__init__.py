"""Scoring methods: how important is each head, and each neuron?

One file per method, with its options and its function in one class, and one line each in `METHODS`;
`score_units` runs them. Importing a method imports no torch: its options are part of the help.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from compressor.errors import InputError, UsageError
from compressor.model.sublayers import Mask, Scores, Sublayer, Units, units_of
from compressor.options.declare import Options, option
from compressor.options.table import Table

if TYPE_CHECKING:
    from torch import nn

    from compressor.tasks import Batch, Task

Per = Literal["token", "example"]
Normalize = Literal["layer", "none"]
TrainedWeights = Literal["none", "encoder", "all"]


class UnitMethod(Options):
    """A method that chooses the units to keep: its options, and what it needs.

    Args:
        learns: whether it learns a mask instead of scoring units.
        needs_rows: whether it reads calibration rows; otherwise at most the weights.
        needs_answers: whether it uses labels, or the largest logit.
        takes_penalty: whether a penalty on open gates can replace the number of units to keep.
    """

    panel: ClassVar[str] = "Method"

    learns: ClassVar[bool] = False
    needs_rows: ClassVar[bool] = True
    needs_answers: ClassVar[bool] = False
    takes_penalty: ClassVar[bool] = False
    name: ClassVar[str] = ""

    @property
    def trained_weights(self) -> TrainedWeights:
        """Which weights are trained together with the mask."""
        return "none"

    @property
    def measures_metric(self) -> bool:
        """Whether it computes the task's main metric."""
        return False

    def check_units(self, units: Set[Units]) -> None:
        """Raise `UsageError` if the method cannot handle such units."""

    def check_task(self, task: Task) -> None:
        """Raise `UsageError` if the method cannot handle models of the task."""
        if self.needs_answers and not task.has_answers:
            raise UsageError(
                f"--method {self.name} needs labels or the largest logit, and models for "
                f"{task.name} have neither; use another method, such as second-order",
                id="method-for-other-tasks",
            )

    def check_size(self, keep: Mapping[str, int], full: Mask) -> None:
        """Raise `UsageError` if the pools of `keep` have too many units for the method."""


class ScoringMethod(UnitMethod):
    """Gives every unit a score that is comparable across layers (but see `NormalizedMethod`).

    Args:
        scores_neurons: whether it scores neurons too, not heads alone.
    """

    scores_neurons: ClassVar[bool] = True

    @abstractmethod
    def score(self, scoring: ScoringJob) -> RawScores:
        """Score the units of all sublayers; the model is in evaluation mode."""

    def normalization(self, mixed: bool) -> Normalize:
        """What the scores of a sublayer are divided by; `mixed`: heads and neurons together."""
        return "none"

    def check_units(self, units: Set[Units]) -> None:
        if "neurons" in units and not self.scores_neurons:
            raise UsageError(
                f"--method {self.name} scores attention heads, not neurons; use another method, or "
                "prune heads alone (--prune heads, or --keep 0.5)",
                id="method-for-heads-alone",
            )


class NormalizedMethod(ScoringMethod):
    """Scores that may be divided by the L2 norm over their sublayer's units."""

    normalize: Normalize | None = option(
        None,
        help="Divide scores by the sublayer's L2 norm: layer or none. Default: layer; none where "
        "heads and neurons are scored together.",
    )

    def normalization(self, mixed: bool) -> Normalize:
        return self.normalize or ("none" if mixed else "layer")  # heads must compare with neurons


class TokenwiseMethod(NormalizedMethod):
    """Scores averaged over tokens or over examples."""

    per: Per = option(
        "token", help="Scores per token or per example; which one the papers have: docs/methods.md."
    )


METHODS: Table[type[ScoringMethod]] = Table(
    "method",
    {
        "taylor": "compressor.importance.taylor:Taylor",
        "fisher": "compressor.importance.fisher:Fisher",
        "ablation": "compressor.importance.ablation:Ablation",
        "confidence": "compressor.importance.confidence:Confidence",
        "relevance": "compressor.importance.relevance:Relevance",
        "second-order": "compressor.importance.second_order:SecondOrder",
        "magnitude": "compressor.importance.magnitude:Magnitude",
        "random": "compressor.importance.random:Random",
    },
    id="method-unknown",
)


@dataclass(frozen=True)
class ScoringJob:
    """The model and the data that units are scored on.

    Args:
        layers: the sublayers whose units are scored.
        mask: units already removed are gated to zero and score zero.
        batches: calibration batches of `task`; each rank has those of its own rows.
        metric: the task's main metric of outputs for all rows, in the order of the rows: its value
            (0-100) and its signature. None without labels.
        require_sight: raises `InputError` where the metric could show no loss; takes the option
            that needs the metric, as typed, and the outputs with all units.
        progress: called with (steps done, total steps); a step is a batch, with `ablation` a pass.
        report: called with lines for the user.
    """

    model: nn.Module
    layers: Sequence[Sublayer]
    mask: Mask
    batches: Sequence[Batch]
    task: Task
    tokenizer: Any = None
    metric: Callable[[Sequence[str]], tuple[float, str]] | None = None
    require_sight: Callable[[str, Sequence[str]], None] = field(default=lambda asked, answers: None)
    seed: int = 0
    device: str = "cpu"
    progress: Callable[[int, int], None] = field(default=lambda done, total: None)
    report: Callable[[str], None] = field(default=lambda text: None)


@dataclass(frozen=True)
class RawScores:
    """A method's result: scores per layer, a signature of the settings, number of passes."""

    values: dict[str, list[float]]
    signature: str
    forward_passes: int = 0
    backward_passes: int = 0


def score_units(method: ScoringMethod, scoring: ScoringJob) -> Scores:
    """Score every unit of some sublayers; the model does not change.

    Raises:
        UsageError: the method cannot score neurons.
        InputError: a score is not a finite number.
    """
    from compressor.model.modes import evaluating  # imports torch

    method.check_units({units_of(layer.kind) for layer in scoring.layers})
    normalize = method.normalization(len({layer.is_attention for layer in scoring.layers}) > 1)
    began = time.perf_counter()
    with evaluating(scoring.model):
        raw = method.score(scoring)
    values = {}
    for layer in scoring.layers:
        scores = raw.values[layer.name]
        if not all(map(math.isfinite, scores)):
            raise InputError(
                f"{method.name} scores of layer {layer.name} are not finite; check the checkpoint "
                "and the calibration rows with `compress evaluate`",
                id="scores-not-finite",
            )
        # Also of methods by gradients, which a unit whose gate is zero still has.
        kept = scoring.mask.keep[layer.name]
        scores = [score if keep else 0.0 for score, keep in zip(scores, kept, strict=True)]
        norm = sum(score * score for score in scores) ** 0.5 if normalize == "layer" else 1.0
        values[layer.name] = tuple(float(x) / norm if norm > 0 else float(x) for x in scores)
    return Scores(
        values=values,
        method=method.name,
        signature=f"{method.name}|{raw.signature}|normalize:{normalize}",
        cost={
            "seconds": time.perf_counter() - began,
            "forward_passes": raw.forward_passes,
            "backward_passes": raw.backward_passes,
        },
    )
