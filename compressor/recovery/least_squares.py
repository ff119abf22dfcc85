"""Reconstruction: least squares on the projections into the residual stream, bottom-up.

For the output projection of each sublayer in execution order: with x its inputs in the pruned model
as reconstructed so far, and e the remaining difference between the dense and the pruned model's
residual stream just after it, on the tokens that the pruned model has left there, solve

    min  mean |e - (dW x + db)|^2 + damping |dW|^2,     W <- W + dW,  b <- b + db.

(The weight update of structured Optimal Brain Surgeon; solved bottom-up as in K-prune, Park et al.
2024.) The damping pulls towards the present weights, not towards zero. Because e is measured in the
residual stream, a projection also compensates for errors of earlier ones, so sublayers that lost
nothing take part, too; one without units still has its bias. Every solution is tested on rows it
was not fitted to. Each stack is run about three times through both models, for any number of
layers.

A layer stands for itself and for the dropped ones right behind it: e of its last projection is
towards the dense model's stream after the last of these.
"""

from __future__ import annotations

from collections.abc import Set
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from compressor import parallel
from compressor.importance.statistics import Moments, add_damping, require_finite
from compressor.model.layers import find_sublayers
from compressor.model.modeling_tokens import ReadsOneToken
from compressor.model.modes import (
    computing_all_tokens,
    is_normalization,
    shared_copy,
    tokens_of,
)
from compressor.model.sublayers import Sublayer, by_layer
from compressor.model.token_selection import at_tokens, tokens_left
from compressor.recovery import Reconstruct, Recovered, RecoveryJob
from compressor.recovery.layerwise_forward import LayerwiseForward
from compressor.tasks import Batch

DAMPING = 1e-3  # share of the inputs' mean variance
# Feed-forward parts have several times as many inputs, so 1,000 rows determine each less well.
FEED_FORWARD_DAMPING = 1e-2
HELD_OUT = 5  # one row in five is held out, to test solutions on
DAMPINGS = 4  # to try, each ten times the one before


@torch.no_grad()
def reconstruct(method: Reconstruct, job: RecoveryJob) -> Recovered:
    """Re-solve the projections of a copy; solutions that do not help are dropped.

    Args:
        method: has no options.
        job: the models, on the device, and the calibration rows, whose labels are not used.

    Returns:
        A model that shares all other weights with `job.pruned`.

    Raises:
        InputError: activations are not finite.
    """
    on_host: list[Batch] = job.task.batches(job.examples, job.dense, device=job.device)
    rows = [row for batch in on_host for row in batch.rows]
    held = set(rows[HELD_OUT // 2 :: HELD_OUT])  # in the order of the batches, which is by length
    if parallel.size() > 1:
        on_host = job.task.batches(parallel.shard(job.examples), job.dense, device=job.device)
    batches = [batch.to(job.device) for batch in on_host]
    ends = _ends(job)
    changing = [job.pruned.get_submodule(sublayer.output) for sublayer in job.layers]
    for path in ends:
        changing += filter(is_normalization, job.pruned.get_submodule(path).modules())
    model = shared_copy(job.pruned, own=[p for module in changing for p in module.parameters()])
    dense = LayerwiseForward(job.dense, batches, job.task)
    pruned = LayerwiseForward(model, batches, job.task)
    ratios = []  # squared difference to the dense model after each projection, after over before
    with _comparable(job):
        for block, sublayers in by_layer(job.layers).items():
            end = ends.get(block, sublayers[-1])
            for sublayer in sublayers:
                damping = DAMPING if sublayer.is_attention else FEED_FORWARD_DAMPING
                target = end if sublayer is sublayers[-1] else sublayer
                moments = _gather(dense, pruned, sublayer, target, held)
                module = model.get_submodule(sublayer.output)
                solve = partial(_reconstruct_projection, sublayer, module, *moments, damping)
                ratios.append(parallel.on_main(solve))
                parallel.equalize(module.parameters())
                if target is not sublayer and ratios[-1] < 1:
                    _take_normalization(dense, model, target, sublayer)
                job.progress(len(ratios), len(job.layers))
            dense.finish(end.layer_path)
            pruned.finish(block)
    changed = [ratio for ratio in ratios if ratio < 1]
    if not changed:
        return Recovered(model, f"reconstruct: nothing to improve in {len(ratios)} projections")
    ratio = sum(changed) / len(changed)
    text = (
        f"reconstruct: {len(changed)} output projections of attention and feed-forward parts "
        f"re-solved on {len(job.examples)} rows; squared difference to the dense model after each "
        f"{100 * (1 - ratio):.0f} % smaller"
    )
    return Recovered(model, text)


def _ends(job: RecoveryJob) -> dict[str, Sublayer]:
    """Path of each layer before dropped ones -> the last sublayer of the last of these."""
    ends: dict[str, Sublayer] = {}
    standing = ""
    for path, sublayers in by_layer(find_sublayers(job.dense)).items():
        if sublayers[0].layer not in job.mask.dropped:
            standing = path
        elif standing.rpartition(".")[0] == path.rpartition(".")[0]:
            ends[standing] = sublayers[-1]
    return ends


def _comparable(job: RecoveryJob) -> AbstractContextManager[None]:
    """Let the dense model compute all tokens of a last layer for which another one stands."""
    dropped = [x.layer_path for x in find_sublayers(job.dense) if x.layer in job.mask.dropped]
    reads = (isinstance(job.dense.get_submodule(path), ReadsOneToken) for path in dropped)
    return computing_all_tokens(job.dense) if any(reads) else nullcontext()


def _take_normalization(
    dense: LayerwiseForward, model: nn.Module, target: Sublayer, sublayer: Sublayer
) -> None:
    """Copy what normalizes the stream behind a target to the layer that stands for it.

    Only where it belongs to the layer; else it is the next layer's, which stays.
    """
    inside = f"{target.layer_path}."
    if dense.normalization.startswith(inside):
        own = f"{sublayer.layer_path}.{dense.normalization.removeprefix(inside)}"
        behind = dense.model.get_submodule(dense.normalization)
        model.get_submodule(own).load_state_dict(behind.state_dict())


def _gather(
    dense: LayerwiseForward,
    pruned: LayerwiseForward,
    sublayer: Sublayer,
    target: Sublayer,
    held: Set[int],
) -> tuple[Moments, Moments]:
    """Moments of a projection's inputs and of what is missing after it, over real tokens.

    Args:
        dense: forward pass of the dense model.
        pruned: forward pass of the pruned model, as reconstructed so far.
        sublayer: whose output projection it is.
        target: of the dense model, after which the stream is wanted.
        held: rows that are held out.

    Returns:
        The moments of the rows to fit on, and of those held out.
    """
    both: list[Moments] = []
    module = pruned.model.get_submodule(sublayer.output)
    for number, batch in enumerate(pruned.batches):
        _, wanted = dense.observe(target, number)
        inputs, stream = pruned.observe(sublayer, number)
        wanted = at_tokens(wanted, tokens_left(pruned.model, sublayer.layer_path))
        mask = pruned.task.token_mask(batch, sublayer.kind)
        real = tokens_of(mask, pruned.model, sublayer.layer_path)
        # A sublayer without units has only its bias, although its stand-in has an input.
        width = module.in_features if isinstance(module, nn.Linear) else 0
        out = torch.tensor([row in held for row in batch.rows], device=real.device)
        if not both:
            both = [Moments(width, wanted.shape[-1], device=real.device) for _ in range(2)]
        for moments, chosen in zip(both, (real & ~out[:, None], real & out[:, None]), strict=True):
            moments.add(inputs[chosen][:, :width], wanted[chosen] - stream[chosen])
    for moments in both:
        moments.add_up_ranks()
    return both[0], both[1]


def _reconstruct_projection(
    sublayer: Sublayer, module: nn.Module, fit: Moments, held: Moments, damping: float
) -> float:
    """Change one projection in place, if that brings the model closer to the dense one.

    The damping grows while the solution of `fit` is worse on the held-out rows, as with few rows
    and many inputs. `fit` ends with the moments of all rows, which saves memory.

    Args:
        sublayer: whose output projection it is.
        module: the projection.
        fit: moments of the rows to fit on.
        held: moments of the held-out rows.
        damping: the first to try, a share of the inputs' mean variance.

    Returns:
        The squared difference to the dense model after over before; 1 if nothing changed.
    """
    for stronger in range(DAMPINGS):
        chosen = damping * 10**stronger
        if held.rows and fit.rows and _gain(held, *_solve(sublayer, module, fit, chosen)) <= 0:
            continue
        fit.merge(held)
        change, offset = _solve(sublayer, module, fit, chosen)
        gain = _gain(fit, change, offset)
        if gain <= 0:
            return 1.0
        weight: Tensor | None = getattr(module, "weight", None)
        for parameter, step in ((weight, change), (module.bias, offset)):
            if parameter is not None:
                parameter.copy_(parameter.double() + step)  # type: ignore[operator]
        before = fit.other_square()
        return (before - gain) / before
    return 1.0


def _solve(
    sublayer: Sublayer, module: nn.Module, moments: Moments, damping: float
) -> tuple[Tensor, Tensor]:
    """Changes of the weight [width, inputs] and bias [width] that their precision can hold."""
    weight: Tensor | None = getattr(module, "weight", None)
    bias: Tensor | None = module.bias  # type: ignore[assignment]
    centered = bias is not None
    covariance = moments.covariance(centered=centered)
    cross = moments.cross_covariance(centered=centered)
    require_finite(sublayer.name, covariance, cross, moments.other_mean)
    solution = torch.linalg.solve(add_damping(covariance, damping), cross).T
    change = _representable(weight, solution)
    return change, _representable(bias, moments.other_mean - change @ moments.mean)


def _representable(parameter: Tensor | None, step: Tensor) -> Tensor:
    """The change that the parameter's precision can represent; zeros without a parameter."""
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
