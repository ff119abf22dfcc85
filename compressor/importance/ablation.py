"""Ablation, the oracle: how much worse is the model without this one unit?

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", section 3.2. By default
measured by the loss, which is smooth and needs no decoding; with `ablate="metric"` by the paper's
BLEU of greedy translations or accuracy. Cost: one pass per head and batch, and one more with all
heads (see `compressor.importance.ablation_runs`). Neurons are ablated in blocks; each neuron of a
block gets an equal share of the block's effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from compressor import parallel
from compressor.errors import UsageError
from compressor.importance import RawScores, ScoringJob, ScoringMethod
from compressor.options.declare import option

if TYPE_CHECKING:
    from torch import Tensor

    from compressor.tasks import Batch, Task


class Ablation(ScoringMethod):
    """Measured loss, or metric, without the unit; slow, exact."""

    needs_answers: ClassVar[bool] = True
    name: ClassVar[str] = "ablation"

    ablate: Literal["loss", "metric"] = option(
        "loss", help="ablation: measure the loss or the metric (BLEU or accuracy)."
    )

    @property
    def measures_metric(self) -> bool:
        return self.ablate == "metric"

    def check_task(self, task: Task) -> None:
        super().check_task(task)
        if self.measures_metric and not task.one_example_per_row:
            raise UsageError(
                f"--ablate metric needs one output per row from one pass, and rows for {task.name} "
                "are split into parts; use --ablate loss",
                id="method-for-other-tasks",
            )

    def score(self, scoring: ScoringJob) -> RawScores:
        """How much the loss grows, or the metric falls, when a unit is gated to zero.

        The loss is in nats per real target token for translation, per row for classification; the
        metric in points from 0 to 100. Negative where the model is better without the unit. The
        baseline has all units that the mask keeps. Scores need no normalization.

        Raises:
            UsageError: the metric needs labels, which the rows do not have.
            InputError: the baseline's metric is at its floor.
        """
        import torch

        from compressor.importance.ablation_runs import blocks_of, count_runs

        with torch.no_grad():
            values, signature = (_by_metric if self.measures_metric else _by_loss)(scoring)
        for layer in scoring.layers:
            for block in blocks_of(scoring, layer):
                share = values[layer.name][block[0]] / len(block)
                for unit in block:
                    values[layer.name][unit] = share
        passes = parallel.total(count_runs(scoring, scoring.layers))
        return RawScores(values, signature, forward_passes=passes)


def _by_loss(scoring: ScoringJob) -> tuple[dict[str, list[float]], str]:
    """The value of each unit (of a block of neurons: of the first), and the signature."""
    import torch

    from compressor.importance.ablation_runs import ablated

    increases = {layer.name: torch.zeros(layer.units).double() for layer in scoring.layers}
    terms, baseline = 0, torch.tensor(0.0)

    def loss(batch: Batch) -> Tensor:
        return scoring.task.loss(scoring.model, batch)

    for batch, unit, value in ablated(scoring, scoring.layers, scoring.layers, loss):
        if unit is None:
            baseline = value
            terms += scoring.task.loss_terms(batch)
        else:
            increases[unit[0]][unit[1]] += (value - baseline).cpu()
    parallel.add_up(*increases.values())
    terms = parallel.total(terms)
    values = {name: (increase / terms).tolist() for name, increase in increases.items()}
    return values, "loss_increase:mean"


def _by_metric(scoring: ScoringJob) -> tuple[dict[str, list[float]], str]:
    """As `_by_loss`."""
    from compressor.importance.ablation_runs import outputs_without_units

    if scoring.metric is None:
        raise UsageError(
            "--ablate metric needs rows with labels; give --calibration", id="references-missing"
        )
    baseline, outputs = outputs_without_units(scoring, scoring.layers)
    scoring.require_sight("--ablate metric", baseline)
    dense, signature = scoring.metric(baseline)
    values = {layer.name: [0.0] * layer.units for layer in scoring.layers}
    for (name, unit), texts in outputs.items():
        values[name][unit] = dense - scoring.metric(texts)[0]
    return values, f"decrease:{signature}"
