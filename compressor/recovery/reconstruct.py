"""Least squares on the output projections, from the bottom of the model to its top.

For each attention layer in execution order, with x the inputs that its output projection gets in
the pruned model as repaired so far, and e the difference that is left between the dense and the
pruned model's residual stream just after the layer, on the same tokens, solve

    min  mean |e - (dW x + db)|^2 + damping |dW|^2,     W <- W + dW,  b <- b + db.

(METHODS: structured Optimal Brain Surgeon's repair; solved bottom-up as in K-prune, Park et al.
2024.) The damping pulls towards the weights that are there, not towards zero. Because e is taken
in the residual stream, a layer also makes up for what the layers before it could not, as far as
it can; a layer without heads still has its bias. Layers that lost no heads take part as well.
No labels are used.

Cost: each stack is run about twice through both models, whatever the number of layers, plus one
solve per layer; memory for one hidden state per token, stack and model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from compressor.heads import AttentionLayer
from compressor.importance.statistics import Moments, damped, require_finite
from compressor.recovery import Recovery
from compressor.recovery.replay import Replay, blocks_in_order

# Share of the inputs' mean variance: see `compressor.importance.second_order`.
DAMPING = 1e-3


@dataclass(frozen=True)
class _Repair:
    """Mean squared difference to the dense model after a layer, before and after its repair."""

    before: float
    after: float


@torch.no_grad()
def recover(job: Recovery) -> str:
    """Re-solve the output projections of `job.pruned`; a repair that does not help is dropped."""
    batches = [batch.to(job.device) for batch in job.batches]
    dense = Replay(job.dense, batches, job.task)
    pruned = Replay(job.pruned, batches, job.task)
    repairs: list[_Repair] = []
    for block, layers in blocks_in_order(job.layers):
        for layer in layers:
            moments = _gather(dense, pruned, layer)
            repairs.append(_repair(layer, job.pruned.get_submodule(layer.output), moments))
            job.progress(len(repairs), len(job.layers))
        dense.finish(block)
        pruned.finish(block)
    return _describe(repairs, sum(len(batch.rows) for batch in batches))


def _gather(dense: Replay, pruned: Replay, layer: AttentionLayer) -> Moments:
    """Moments of the projection's inputs and of what is missing after it, over real tokens."""
    moments: Moments | None = None
    projection = pruned.model.get_submodule(layer.output)
    for number, batch in enumerate(pruned.batches):
        _, wanted = dense.observe(layer, number)
        inputs, found = pruned.observe(layer, number)
        real = pruned.task.token_mask(batch, layer.kind)
        # A layer without heads has nothing but its bias, whatever its stand-in is handed.
        width = projection.in_features if isinstance(projection, nn.Linear) else 0
        missing = wanted[real] - found[real]
        if moments is None:
            moments = Moments(width, missing.shape[-1], device=missing.device)
        moments.add(inputs[real][:, :width], missing)
    assert moments is not None
    return moments


def _repair(layer: AttentionLayer, projection: nn.Module, moments: Moments) -> _Repair:
    """Solve for one projection and put the solution in place if it is a better one."""
    weight: Tensor | None = getattr(projection, "weight", None)
    bias: Tensor | None = projection.bias  # type: ignore[assignment]
    centred = bias is not None
    covariance = moments.covariance(centred=centred)
    cross = moments.cross_covariance(centred=centred)
    require_finite(layer, covariance, cross, moments.other_mean)
    before = moments.other_square()
    solution = torch.linalg.solve(damped(covariance, DAMPING), cross).T  # [width, D]
    change = _representable(weight, solution)
    offset = _representable(bias, moments.other_mean - change @ moments.mean)
    gain = _gain(moments, change, offset)
    if gain <= 0:
        return _Repair(before, before)
    for parameter, step in ((weight, change), (bias, offset)):
        if parameter is not None:
            parameter.copy_(parameter.double() + step)
    return _Repair(before, before - gain)


def _representable(parameter: Tensor | None, step: Tensor) -> Tensor:
    """The part of a step that the parameter's precision can hold; all of none."""
    if parameter is None:
        return torch.zeros_like(step)
    return (parameter.double() + step).to(parameter.dtype).double() - parameter.double()


def _gain(moments: Moments, change: Tensor, offset: Tensor) -> float:
    """E|e|^2 - E|e - change x - offset|^2, from the moments of x and e."""
    spread = 2 * (change * moments.cross_covariance().T).sum()
    spread -= ((change @ moments.covariance()) * change).sum()
    mean = moments.other_mean
    rest = mean - change @ moments.mean - offset
    return float(spread + mean.pow(2).sum() - rest.pow(2).sum())


def _describe(repairs: list[_Repair], rows: int) -> str:
    changed = [repair for repair in repairs if repair.after < repair.before]
    if not changed:
        return f"reconstruct: nothing to repair in {len(repairs)} layers"
    ratio = sum(r.after / r.before for r in changed) / len(changed)
    return (
        f"reconstruct: output projections of {len(changed)} layers re-solved on {rows} rows; "
        f"squared difference to the dense model after a layer {100 * (1 - ratio):.0f} % smaller"
    )
