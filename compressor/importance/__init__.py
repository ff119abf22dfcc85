"""Scoring methods: how important is each head, and each neuron?

A method is one class here, with its options and the place of its function, and a line in
`_METHODS`; `score_units` runs it. Nothing here imports torch: the options are part of the help.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from typing_extensions import override

from compressor.errors import InputError, UsageError
from compressor.model.sublayers import Mask, Scores, Sublayer, Units, units_of
from compressor.options.bounds import Positive
from compressor.options.declare import Options, option
from compressor.options.table import Table, import_object

if TYPE_CHECKING:
    from torch import nn

    from compressor.tasks import Batch, Task

Per = Literal["token", "example"]
Normalize = Literal["layer", "none"]
TrainedWeights = Literal["none", "encoder", "all"]


class UnitMethod(Options):
    """Base of all methods that choose the units to keep: scoring methods and learned masks.

    A subclass is a set of options, which are its fields, and the class variables say what it needs;
    a run reads nothing else about it.
    """

    panel: ClassVar[str] = "Method"

    name: ClassVar[str] = ""
    learns: ClassVar[bool] = False  # a mask, instead of scoring units
    needs_rows: ClassVar[bool] = True  # for calibration; otherwise at most the weights
    needs_answers: ClassVar[bool] = False  # labels, or the largest logit
    scores_tokens: ClassVar[bool] = False  # too: the error of handing on fewer of them
    # Whether a penalty on open gates can replace the number of units to keep.
    takes_penalty: ClassVar[bool] = False

    @property
    def trained_weights(self) -> TrainedWeights:
        """The weights that the method trains along with its gates."""
        return "none"

    @property
    def measures_metric(self) -> bool:
        """Whether the method computes the task's main metric of outputs of the model."""
        return False

    def check_units(self, units: Set[Units]) -> None:
        """Raise `UsageError` if the method does not handle one of these kinds of units.

        Args:
            units: `heads`, `neurons`, `tokens`: those that are to be removed.
        """
        if "tokens" in units and not self.scores_tokens:
            raise UsageError(
                f"--method {self.name} chooses heads and neurons, not tokens; use --method "
                "second-order, or leave tokens out (--prune both)",
                id="method-without-tokens",
            )

    def check_task(self, task: Task) -> None:
        """Raise `UsageError` if the method cannot handle models of the task."""
        if self.needs_answers and not task.has_answers:
            raise UsageError(
                f"--method {self.name} needs labels or the largest logit, and models for "
                f"{task.name} have neither; use another method, such as second-order",
                id="method-for-other-tasks",
            )

    def check_size(self, keep: Mapping[str, int], full: Mask) -> None:
        """Raise `UsageError` if the model has too many units for the method.

        Args:
            keep: the number of units to keep per pool (`heads`, `neurons` or a kind of sublayer).
            full: the mask of the dense model, which has all units.
        """


class ScoringMethod(UnitMethod):
    """Base of the methods that give every unit a score; units with the lowest are removed first.

    Scores are comparable across sublayers, except for a `NormalizedMethod`, whose scores are
    divided by their norm to make them so. A subclass names the function that computes its scores
    in `function`, or overrides `score`.
    """

    function: ClassVar[str]  # `module:function`, which `score` calls with the method and the job
    scores_neurons: ClassVar[bool] = True  # too, not heads alone

    def score(self, scoring: ScoringJob) -> RawScores:
        """Score the units of `scoring.layers`; the model is in evaluation mode.

        Args:
            scoring: the model and the calibration batches. Units that its mask removes are gated to
                zero while scores are computed.

        Returns:
            For each sublayer one number per unit, [units], higher is more important. Units that the
            mask removes may have any finite number; `score_units` sets it to 0.
        """
        raw: RawScores = import_object(self.function)(self, scoring)
        return raw

    def normalization(self, mixed: bool) -> Normalize:
        """How the scores of each sublayer are normalized.

        Args:
            mixed: whether heads and neurons are scored together.

        Returns:
            `layer`, to divide them by their L2 norm over the sublayer's units, or `none`.
        """
        return "none"

    @override
    def check_units(self, units: Set[Units]) -> None:
        super().check_units(units)
        if "neurons" in units and not self.scores_neurons:
            raise UsageError(
                f"--method {self.name} scores attention heads, not neurons; use another method, or "
                "prune heads alone (--prune heads, or --keep 0.5)",
                id="method-for-heads-alone",
            )


class NormalizedMethod(ScoringMethod):
    """Base of the methods whose scores are divided by their L2 norm over the sublayer's units.

    So sublayers with large gradients do not keep all their units. Where heads and neurons are
    scored together, scores are not normalized: the two would have to compare with each other.
    """

    normalize: Normalize | None = option(
        None,
        help="Divide scores by the sublayer's L2 norm: layer or none. Default: layer; none where "
        "heads and neurons are scored together.",
    )

    @override
    def normalization(self, mixed: bool) -> Normalize:
        return self.normalize or ("none" if mixed else "layer")  # heads must compare with neurons


class TokenwiseMethod(NormalizedMethod):
    """Base of the methods that average over tokens or over examples, as `per` says."""

    per: Per = option(
        "token", help="Scores per token or per example; which one the papers have: docs/methods.md."
    )


class Taylor(TokenwiseMethod):
    """First-order change of the loss without the unit.

    Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", equation 2.
    """

    name: ClassVar[str] = "taylor"
    function = "compressor.importance.gradients:taylor_scores"


class Fisher(NormalizedMethod):
    """Mean squared gradient of the loss by the unit's gate.

    Kwon et al. 2022, "A Fast Post-Training Pruning Framework for Transformers": the diagonal of the
    empirical Fisher information.
    """

    name: ClassVar[str] = "fisher"
    function = "compressor.importance.gradients:fisher_scores"


class Ablation(ScoringMethod):
    """Measured loss, or metric, without the unit; slow, exact.

    Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", section 3.2.
    """

    name: ClassVar[str] = "ablation"
    function = "compressor.importance.ablation_runs:ablation_scores"
    needs_answers: ClassVar[bool] = True

    ablate: Literal["loss", "metric"] = option(
        "loss", help="ablation: measure the loss or the metric (BLEU or accuracy)."
    )

    @property
    @override
    def measures_metric(self) -> bool:
        return self.ablate == "metric"

    @override
    def check_task(self, task: Task) -> None:
        super().check_task(task)
        if self.measures_metric and not task.one_example_per_row:
            raise UsageError(
                f"--ablate metric needs one output per row from one pass, and rows for {task.name} "
                "are split into parts; use --ablate loss",
                id="method-for-other-tasks",
            )


class Confidence(NormalizedMethod):
    """Mean of the head's largest attention weight; heads only.

    Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 4.
    """

    name: ClassVar[str] = "confidence"
    function = "compressor.importance.attention:confidence_scores"
    scores_neurons: ClassVar[bool] = False


class Relevance(TokenwiseMethod):
    """Layer-wise relevance propagation from the largest logit.

    Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 4 and appendix A.
    """

    name: ClassVar[str] = "relevance"
    function = "compressor.importance.relevance:relevance_scores"
    needs_answers: ClassVar[bool] = True


class SecondOrder(ScoringMethod):
    """Error that remains after reconstruction from the other units.

    Optimal Brain Surgeon (Hassibi & Stork 1993) for whole units, as in ZipLM (Kurtic et al. 2023).
    """

    name: ClassVar[str] = "second-order"
    function = "compressor.importance.second_order:second_order_scores"
    scores_tokens: ClassVar[bool] = True

    statistics_memory: Positive | None = option(
        None,
        help="GiB for the statistics of sublayers that are held at the same time; where all need "
        "more, there are several passes over the rows, with the same scores. Default: half of the "
        "free memory.",
    )


class Magnitude(NormalizedMethod):
    """Frobenius norm of the unit's weights in the output projection, without any data."""

    name: ClassVar[str] = "magnitude"
    needs_rows: ClassVar[bool] = False

    @override
    def score(self, scoring: ScoringJob) -> RawScores:
        values = {}
        for layer in scoring.layers:
            weight: Any = scoring.model.get_submodule(layer.output).weight
            blocks = weight.detach().unflatten(1, (layer.units, layer.unit_width))
            norms = blocks.float().pow(2).sum((0, 2)).sqrt().cpu()  # [units]
            values[layer.name] = (norms * norms.new_tensor(scoring.mask.keep[layer.name])).tolist()
        return RawScores(values, "block:output_projection")


class Random(NormalizedMethod):
    """Uniform random numbers as scores: a baseline that any other method has to beat."""

    name: ClassVar[str] = "random"
    needs_rows: ClassVar[bool] = False

    @override
    def score(self, scoring: ScoringJob) -> RawScores:
        import numpy as np

        rng = np.random.default_rng(scoring.seed)
        # By the columns of a unit, so that heads and neurons lose the same share.
        values = {x.name: (rng.random(x.units) * x.unit_width).tolist() for x in scoring.layers}
        return RawScores(values, f"seed:{scoring.seed}")


_METHODS = (Taylor, Fisher, Ablation, Confidence, Relevance, SecondOrder, Magnitude, Random)
METHODS: Table[type[ScoringMethod]] = Table(
    "method", {method.name: method for method in _METHODS}, id="method-unknown"
)


@dataclass(frozen=True)
class ScoringJob:
    """The model and the data that units are scored on."""

    model: nn.Module
    layers: Sequence[Sublayer]  # whose units are scored
    mask: Mask  # units already removed are gated to zero and score zero
    batches: Sequence[Batch]  # for calibration; each rank has those of its own rows
    task: Task
    tokenizer: Any = None
    # Value (0-100) and signature of the task's main metric, of outputs for all rows.
    metric: Callable[[Sequence[str]], tuple[float, str]] | None = None
    # Raises `InputError` where the metric could show no loss of these outputs; names the option.
    require_above_chance: Callable[[str, Sequence[str]], None] = field(
        default=lambda asked, answers: None
    )
    seed: int = 0
    device: str = "cpu"
    # Called with (steps done, total steps); a step is a batch, with `ablation` a pass.
    progress: Callable[[int, int], None] = field(default=lambda done, total: None)
    report: Callable[[str], None] = field(default=lambda text: None)  # lines for the user


@dataclass(frozen=True)
class RawScores:
    """A method's result, before normalization.

    Args:
        values: sublayer name -> a score per unit, higher is more important; of tokens, too, where
            the method scores them.
        signature: the settings that the scores depend on, `name:value` separated by `|`.
        forward_passes: batches that the model was run on, on all ranks.
        backward_passes: the same for gradients.
    """

    values: dict[str, list[float]]
    signature: str
    forward_passes: int = 0
    backward_passes: int = 0


def score_units(method: ScoringMethod, scoring: ScoringJob) -> Scores:
    """Score every unit of some sublayers; the model does not change.

    Args:
        method: with its options.
        scoring: the model and the calibration batches.

    Returns:
        The scores per sublayer, normalized as the method says, 0 for units that `scoring.mask`
        removes; with the method's signature, seconds, and the number of passes.

    Raises:
        UsageError: the method does not score units of a sublayer's kind.
        InputError: a score is not finite.
    """
    from compressor.model.modes import evaluating  # imports torch

    method.check_units({units_of(layer.kind) for layer in scoring.layers})
    normalize = method.normalization(len({layer.is_attention for layer in scoring.layers}) > 1)
    began = time.perf_counter()
    with evaluating(scoring.model):
        raw = method.score(scoring)
    values = {}
    own = [layer.name for layer in scoring.layers]
    for name in (*own, *(x for x in raw.values if units_of(x) == "tokens")):
        scores = raw.values[name]
        if not all(map(math.isfinite, scores)):
            raise InputError(
                f"{method.name} scores of layer {name} are not finite; check what the "
                "checkpoint answers to the calibration rows in PyTorch",
                id="scores-not-finite",
            )
        # Also of methods by gradients, which a unit whose gate is zero still has.
        kept = scoring.mask.keep[name]
        scores = [score if keep else 0.0 for score, keep in zip(scores, kept, strict=True)]
        norm = sum(score * score for score in scores) ** 0.5 if normalize == "layer" else 1.0
        values[name] = tuple(float(x) / norm if norm > 0 else float(x) for x in scores)
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
