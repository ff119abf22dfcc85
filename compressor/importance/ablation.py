"""Ablation, the oracle: how much worse is the model without this one unit?

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", section 3.2. By default
worse in the loss, which is smooth and needs no decoding; with `ablate="metric"` in the paper's own
terms, BLEU of greedy translations or accuracy. It takes one pass per head and batch, and one more
with all heads, of which `compressor.importance.ablation_runs` says what they cost. Neurons are
ablated in blocks; each gets its part of what the block does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

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
                f"--ablate metric needs an answer to each row from one pass, and rows for "
                f"{task.name} are read in parts; use --ablate loss",
                id="method-for-other-tasks",
            )

    def score(self, scoring: ScoringJob) -> RawScores:
        """How much the loss grows, or the metric falls, when a unit is gated to zero.

        The loss in nats per real target token for translation, per row for classification; the
        metric in points from 0 to 100. Negative where the model is better off without the unit.
        "All units" are those that the mask has left. Comparable as they are.

        Raises:
            UsageError: the metric is wanted, but the right answers are not known.
            InputError: the metric of all units' answers is at its floor.
        """
        import torch

        from compressor import parallel
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
    """Values of each unit, or of the first one of its block, and their signature."""
    import torch

    from compressor import parallel
    from compressor.importance.ablation_runs import silenced

    increases = {layer.name: torch.zeros(layer.units).double() for layer in scoring.layers}
    terms, whole = 0, torch.tensor(0.0)

    def loss(batch: Batch) -> Tensor:
        return scoring.task.loss(scoring.model, batch)

    for batch, unit, value in silenced(scoring, scoring.layers, scoring.layers, loss):
        if unit is None:
            whole = value
            terms += scoring.task.loss_terms(batch)
        else:
            increases[unit[0]][unit[1]] += (value - whole).cpu()
    parallel.add_up(*increases.values())
    terms = parallel.total(terms)
    values = {name: (increase / terms).tolist() for name, increase in increases.items()}
    return values, "loss_increase:mean"


def _by_metric(scoring: ScoringJob) -> tuple[dict[str, list[float]], str]:
    """As `_by_loss`."""
    from compressor.importance.ablation_runs import answers_without_units

    if scoring.metric is None:
        raise UsageError(
            "--ablate metric needs rows with their right answers; give --calibration",
            id="references-missing",
        )
    whole, silenced = answers_without_units(scoring, scoring.layers)
    scoring.require_sight("--ablate metric", whole)
    dense, signature = scoring.metric(whole)
    values = {layer.name: [0.0] * layer.units for layer in scoring.layers}
    for (name, unit), answers in silenced.items():
        values[name][unit] = dense - scoring.metric(answers)[0]
    return values, f"decrease:{signature}"
