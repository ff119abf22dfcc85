"""Relevance: how much a unit contributes to the top-1 logit, by layer-wise relevance propagation.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 4 and appendix A. Relevance starts
at the largest logit and flows back in proportion to what every neuron contributes. With the basic
rule (R_u = sum over v of W_uv u / (sum over u' of W_u'v u' + bias) R_v) this is gradient times
input of a model in which everything that is not linear is a constant factor: a unit's relevance is
a_h . d logit / d a_h. The constant factors are

- attention probabilities: relevance passes through the values alone;
- the standard deviation in layer normalization (subtracting the mean is linear);
- f(x) / x at an activation f: relevance passes through unchanged.

docs/methods.md has the differences to the paper, and the patent on the technique.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from compressor import parallel
from compressor.importance import Per, RawScores, Relevance, ScoringJob
from compressor.importance.gradients import require_gradient, zeros
from compressor.model.layers import find_sublayers
from compressor.model.modes import (
    computing_all_tokens,
    frozen,
    hooks,
    is_normalization,
    record_inputs,
)
from compressor.model.sublayers import parts_of
from compressor.model.surgery import gated, mask_gates
from compressor.tasks import Batch

# Projections whose outputs become constant factors: attention probabilities, and gates.
_FACTORS = frozenset({"query", "key", "gate"})


def relevance_scores(method: Relevance, scoring: ScoringJob) -> RawScores:
    """A unit's share of its sublayer's relevance, averaged over target positions (or rows).

    The relevance of a unit is the signed sum over its columns and tokens; shares are of absolute
    values. `per="token"` takes the top-1 logit of every position by itself, as the paper does, in a
    backward pass each; `per="example"` their sum, where contributions of opposite sign cancel.

    Args:
        method: its `per` says which of the two.
        scoring: the model and the calibration batches.

    Returns:
        Shares between 0 and 1, which add up to 1 over a sublayer.
    """
    shares = zeros(scoring)
    counted = backward = 0
    model, total = scoring.model, len(scoring.batches)
    gates = gated(model, scoring.layers, mask_gates(scoring.mask))
    # A fused projection of all tokens' queries and keys has one output for hooks.
    with frozen(model), gates, _linearized(model), computing_all_tokens(model):
        for done, batch in enumerate(scoring.batches, 1):
            positions, passes = _add_batch(scoring, batch.to(scoring.device), method.per, shares)
            counted += positions
            backward += passes
            scoring.progress(done, total)
    parallel.add_up(*shares.values())
    counted, total, backward = map(parallel.total, (counted, total, backward))
    values = {name: (share / counted).tolist() for name, share in shares.items()}
    return RawScores(values, f"per:{method.per}", total, backward)


def _add_batch(
    scoring: ScoringJob, batch: Batch, per: Per, shares: dict[str, Tensor]
) -> tuple[int, int]:
    """Add a batch's shares of relevance to `shares`, sublayer name -> [units].

    Returns:
        The number of positions (or rows) that were counted, and of backward passes.
    """
    outputs: dict[str, Tensor] = {}  # inputs of output projections, [batch, tokens, units x width]

    def take(name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        outputs[name] = require_gradient(inputs[0])
        return (outputs[name], *inputs[1:])

    modules = {layer.name: scoring.model.get_submodule(layer.output) for layer in scoring.layers}
    watching = hooks(
        module.register_forward_pre_hook(partial(take, name)) for name, module in modules.items()
    )
    projection = scoring.model.get_output_embeddings()  # type: ignore[operator]
    with watching, record_inputs(projection) as last, torch.enable_grad():
        logits = scoring.task.logits(scoring.model, batch).float()
    top = logits.max(-1).values.reshape(len(batch.rows), -1)  # [batch, positions]
    real = scoring.task.term_mask(batch).reshape(top.shape)
    if per == "example":
        top, real = (top * real).sum(1, keepdim=True), real.any(1, keepdim=True)
    units = [outputs[layer.name] for layer in scoring.layers]
    for position, gradients in enumerate(_gradients(top, units, last)):
        for layer, output, gradient in zip(scoring.layers, units, gradients, strict=True):
            products = (output.detach() * gradient).sum(1)  # [batch, units x columns]
            slices = (layer.units, layer.unit_width)
            relevance = products.unflatten(-1, slices).sum(-1).abs().double()
            share = relevance / relevance.sum(-1, keepdim=True).clamp_min(1e-30)  # [batch, units]
            shares[layer.name] += share[real[:, position]].sum(0)
    return int(real.sum()), top.shape[1]


def _gradients(top: Tensor, units: list[Tensor], last: list[Tensor]) -> Iterator[Sequence[Tensor]]:
    """Yield the gradients of each column of `top` by the units' outputs.

    Args:
        top: top-1 logits, [batch, positions].
        units: inputs of output projections, [batch, tokens, units x width] for each sublayer.
        last: the input of the output embedding, [batch, positions, width], if the model has one.

    Yields:
        For each position a gradient of the same shape for each of `units`.
    """
    count = top.shape[1]
    # A translator's logit depends on the last hidden state of its own position alone, so one
    # backward pass through the output projection, the most expensive part, serves all positions.
    shared = bool(last) and count > 1
    if shared:
        (hidden,) = last  # [batch, positions, width]
        (slope,) = torch.autograd.grad(top.sum(), hidden, retain_graph=True)
    for position in range(count):
        output = hidden if shared else top[:, position].sum()
        weights = torch.zeros_like(slope) if shared else None
        if weights is not None:
            weights[:, position] = slope[:, position]
        yield torch.autograd.grad(output, units, weights, retain_graph=position + 1 < count)


@contextmanager
def _linearized(model: nn.Module) -> Iterator[None]:
    """Within the context, the model's outputs are the same and its gradients are relevance."""
    from transformers.activations import ACT2CLS

    kinds: Any = tuple(x[0] if isinstance(x, tuple) else x for x in ACT2CLS.values())
    handles = []
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            handles.append(module.register_forward_hook(_fixed_norm))
        elif is_normalization(module) or isinstance(module, kinds):
            # T5's normalization subtracts no mean.
            handles.append(
                module.register_forward_hook(lambda _, inputs, output: _scaled(inputs[0], output))
            )
    for layer in find_sublayers(model):  # all sublayers, also where only some kinds are scored
        for roles, path in layer.inputs.items():
            if not _FACTORS.isdisjoint(parts_of(roles)):
                detach = partial(_detach_factors, parts_of(roles))
                handles.append(model.get_submodule(path).register_forward_hook(detach))
    with hooks(handles), _LinearTanh():
        yield


def _fixed_norm(module: nn.LayerNorm, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Layer normalization whose standard deviation is a constant in the backward pass."""
    centered = inputs[0] - inputs[0].mean(-1, keepdim=True)
    deviation = (centered.detach().square().mean(-1, keepdim=True) + module.eps).sqrt()
    scaled = centered / deviation
    if module.weight is not None:
        scaled = scaled * module.weight
    return scaled if module.bias is None else scaled + module.bias


def _scaled(x: Tensor, y: Tensor) -> Tensor:
    """The value y, computed as x times a constant: the gradient is y / x, or 0 where x is 0."""
    return x * torch.where(x == 0, 0, y / x).detach()


def _detach_factors(
    roles: Sequence[str], module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
) -> Tensor:
    """The output of a projection, without gradients in the parts that are constant factors."""
    parts = zip(roles, output.chunk(len(roles), dim=-1), strict=True)
    return torch.cat([x.detach() if role in _FACTORS else x for role, x in parts], dim=-1)


class _LinearTanh(TorchFunctionMode):
    """Replaces tanh by a linear function with the same value.

    RoBERTa's classification head calls it as a function, which hooks on modules do not see.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return _scaled(args[0], result) if func is torch.tanh else result
